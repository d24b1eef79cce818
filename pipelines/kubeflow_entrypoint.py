"""What a step's container starts with on Kubeflow: our steps want folders, it gives addresses.

The bucket is mounted, so each `gs://` address has a path. The executor is given the paths,
and what it says of its output is written with the addresses again. TFX's own entry point
does the rest.
"""

from __future__ import annotations

import json
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from pipelines.kubeflow_platform import OUR_TYPES, addressed, mounted

_INVOCATION = "--json_serialized_invocation_args"
_CURRENT = "current_model_id"
_BASELINE = "baseline_model_id"
_MODELS = {_CURRENT: "model", _BASELINE: "blessed_model"}


def main(words: Sequence[str]) -> None:
    """Runs the executor that the command line names."""
    from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_run_executor as executor

    words = list(words)
    place = words.index(_INVOCATION) + 1
    invocation = json.loads(words[place])
    local = _with_uris(invocation, mounted)
    for artifact in [*_artifacts(local["inputs"]), *_artifacts(local["outputs"])]:
        _name_class(artifact["type"])
    local["outputs"]["outputFile"] = mounted(invocation["outputs"]["outputFile"])
    for artifact in _artifacts(local["outputs"]):
        Path(artifact["uri"]).mkdir(parents=True, exist_ok=True)
    words[place] = json.dumps(local)
    executor.main(executor._parse_flags([sys.argv[0], *words]))
    file = Path(local["outputs"]["outputFile"])
    output = json.loads(file.read_text())
    _name_models(output, invocation["inputs"].get("artifacts", {}))
    file.write_text(json.dumps(_with_uris({"outputs": output}, addressed)["outputs"]))


def _with_uris(part: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Returns a copy of inputs and outputs with the address of each artifact changed."""
    copy: dict[str, Any] = json.loads(json.dumps(part))
    for side in ("inputs", "outputs"):
        for artifact in _artifacts(copy.get(side, {})):
            artifact["uri"] = change(artifact["uri"])
    return copy


def _artifacts(side: dict[str, Any]) -> list[dict[str, Any]]:
    return [one for some in side.get("artifacts", {}).values() for one in some["artifacts"]]


def _name_class(kind: dict[str, str]) -> None:
    """Gives the class of a type of ours, which TFX imports; its own it knows."""
    title = kind.get("schemaTitle") or yaml.safe_load(kind.get("instanceSchema", "{}")).get("title")
    if title and title.startswith(OUR_TYPES):
        name = title.removeprefix(OUR_TYPES)
        kind.clear()
        kind["schemaTitle"] = f"components.artifacts.{name}"


def _name_models(output: dict[str, Any], inputs: dict[str, Any]) -> None:
    """Names models as the platform does: its query for the blessed one goes by the name.

    TFX does it for its own evaluator alone.
    """
    for artifact in _artifacts(output):
        metadata = artifact.get("metadata", {})
        for key, given in _MODELS.items():
            models = inputs.get(given, {}).get("artifacts", [])
            if key in metadata and models:
                metadata[key] = models[0]["name"]


if __name__ == "__main__":
    main(sys.argv[1:])
