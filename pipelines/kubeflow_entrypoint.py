"""The entry point of a step's container on Kubeflow: turns bucket URIs into folders.

    python -m pipelines.kubeflow_entrypoint [--plugin=MODULE …] WORDS OF TFX'S OWN ENTRY POINT

The bucket is mounted, so each `gs://` URI has a path. The executor gets paths, and its output is
written with URIs. Plugins are loaded first, since the step's part of the config names their
classes.
"""

from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import yaml

from recsys.registry import load_plugins

BUCKET_SCHEME = "gs://"
MOUNT_VARIABLE = "RECSYS_GCS_MOUNT"
"""Environment variable of the folder of mounted buckets, `/gcs` by default."""
OUR_TYPES = "recsys."
"""Prefix of our artifact types on Kubeflow; TFX's own have `tfx.`."""
PLUGIN = "--plugin="
_INVOCATION = "--json_serialized_invocation_args"
_MODELS = {"current_model_id": "model", "baseline_model_id": "blessed_model"}


def main(words: Sequence[str]) -> None:
    """Runs the executor that the command line names."""
    load_plugins([word.removeprefix(PLUGIN) for word in words if word.startswith(PLUGIN)])
    words = [word for word in words if not word.startswith(PLUGIN)]
    from tfx.orchestration.kubeflow.v2.container import kubeflow_v2_run_executor as executor

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


def mounted(address: str) -> str:
    """Returns the path under the mount of a `gs://` URI; other text is unchanged."""
    if not address.startswith(BUCKET_SCHEME):
        return address
    return f"{_mount()}/{address.removeprefix(BUCKET_SCHEME)}"


def addressed(path: str) -> str:
    """Returns the `gs://` URI of a path under the mount; other text is unchanged."""
    inside = path.startswith(f"{_mount()}/")
    return BUCKET_SCHEME + path.removeprefix(f"{_mount()}/") if inside else path


def _mount() -> str:
    return os.environ.get(MOUNT_VARIABLE, "/gcs")


def _with_uris(part: dict[str, Any], change: Callable[[str], str]) -> dict[str, Any]:
    """Returns a copy of inputs and outputs with changed URIs."""
    copy: dict[str, Any] = json.loads(json.dumps(part))
    for side in ("inputs", "outputs"):
        for artifact in _artifacts(copy.get(side, {})):
            artifact["uri"] = change(artifact["uri"])
    return copy


def _artifacts(side: dict[str, Any]) -> list[dict[str, Any]]:
    lists = [each["artifacts"] for each in side.get("artifacts", {}).values()]
    return [artifact for artifacts in lists for artifact in artifacts]


def _name_class(kind: dict[str, str]) -> None:
    """Sets the class of one of our types, which TFX imports."""
    title = kind.get("schemaTitle") or yaml.safe_load(kind.get("instanceSchema", "{}")).get("title")
    if title and title.startswith(OUR_TYPES):
        kind.clear()
        kind["schemaTitle"] = f"components.artifacts.{title.removeprefix(OUR_TYPES)}"


def _name_models(output: dict[str, Any], inputs: dict[str, Any]) -> None:
    """Names models as the platform does, since its query for the blessed model uses the name.

    TFX does this only for its own evaluator.
    """
    for artifact in _artifacts(output):
        metadata = artifact.get("metadata", {})
        for key, name in _MODELS.items():
            models = inputs.get(name, {}).get("artifacts", [])
            if key in metadata and models:
                metadata[key] = models[0]["name"]


if __name__ == "__main__":
    main(sys.argv[1:])
