"""The description of a bundle: the lineage in its manifest, and its MODEL_CARD.md.

The lineage doesn't depend on the folder or time of a run: the same data, commit and config give the
same manifest. So rolled-back content is recognised.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from importlib import resources
from pathlib import Path
from typing import Any

import jinja2

from recsys.data.vocabulary import Vocabulary
from recsys.fingerprint import source_version, version_text
from recsys.pair.folder import ranker_of
from recsys.system.files import digest_of_files
from recsys.system.manifest import manifest_digest

FORMAT = 1
_STATE = "training_state/manifest.json"  # The same as in `recsys.training.warm_start`.
_COUNTED = ("read", "good", "rejected", "duplicates", "cut", "split", "positives")
_OF_SPAN = ("span", "name", "version", "state", "rows", "rejected")
_OF_BASE = ("fingerprint", "cut", "trained_until", "steps_before", "warm_starts", "carried")


def describe_source(letters: Path, digest: str) -> dict[str, Any]:
    """Returns the lineage of one kind of raw data.

    Args:
        letters: Folder of its dead letters, with the counts.
        digest: Digest of the names and contents of its files, or of a query and its time.

    Returns:
        `digest`, `files` (names below the folder that all of them share), `counts`, and `spans` if
        it has any.
    """
    summary = json.loads((letters / "summary.json").read_text(encoding="utf-8"))
    files = [str(name) for name in summary.get("files") or []]
    description: dict[str, Any] = {
        "digest": digest,
        "files": _below_common(files),
        "counts": {name: summary[name] for name in _COUNTED if name in summary},
    }
    spans = letters / "spans.json"
    if spans.is_file():
        listed = json.loads(spans.read_text(encoding="utf-8"))
        description["spans"] = [{name: span.get(name) for name in _OF_SPAN} for span in listed]
    return description


def describe_origin(
    model: Path, evaluation: Mapping[str, Any] | None, data: Mapping[str, Any] | None
) -> dict[str, Any]:
    """Returns the field `lineage` of a manifest.

    Args:
        model: The model folder.
        evaluation: `evaluation.json`, if the model was evaluated.
        data: Result of `describe_source` for each kind of raw data; None if it is unknown, as after
            `recsys export`.

    Returns:
        `format`, `data`, `vocabulary` (a fingerprint of each), `model` (its fingerprint), `ranker`
        (that of a pair's), `base` (the model that its training continued from), `choice` (the
        comparison that chose the model, if there was one), `evaluation`, `source` (of `training`
        and `export`, what `source_version` returned there).
    """
    training = json.loads((model / "training.json").read_text(encoding="utf-8"))
    base, ranker = training.get("warm_start"), ranker_of(model)
    return {
        "format": FORMAT,
        "data": data,
        "vocabulary": {
            name: Vocabulary.load(model / "vocabulary" / f"{name}.parquet").fingerprint()
            for name in ("users", "items")
        },
        "model": model_fingerprint(model),
        **({} if ranker is None else {"ranker": model_fingerprint(ranker)}),
        "base": None if base is None else {n: base[n] for n in _OF_BASE if n in base},
        **({"choice": _choice(choice)} if (choice := training.get("choice")) else {}),
        "evaluation": None if evaluation is None else _evaluation(evaluation),
        "source": {"training": training.get("source"), "export": source_version()},
    }


def _choice(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the record of a comparison without its times, which differ from run to run."""
    figures = [{n: one[n] for n in one if n != "seconds"} for one in choice["candidates"]]
    return {**choice, "candidates": figures}


def model_fingerprint(model: Path) -> str:
    """Returns a sha256 in hex of a model folder.

    A folder for warm starts stores one; for other folders it is computed from the names and
    contents of the weights.
    """
    # The manifest has the checksums of everything that a warm start reads.
    stored = manifest_digest(model / _STATE)
    return stored or digest_of_files(model, (model / "weights").rglob("*.npy"))


def _evaluation(evaluation: Mapping[str, Any]) -> dict[str, Any]:
    verdict = evaluation.get("verdict") or {}
    known = {name: evaluation.get(name) for name in ("query", "users", "queries", "candidates")}
    return {**known, **{name: verdict.get(name) for name in ("metric", "blessed", "sentence")}}


def _below_common(files: list[str]) -> list[str]:
    """Returns the files from the folder on that all of them share."""
    if any("://" in file for file in files):
        return files
    paths = [Path(file).absolute() for file in files]
    common = os.path.commonpath([path.parent for path in paths]) if paths else ""
    return [path.relative_to(common).as_posix() for path in paths]


# --- MODEL_CARD.md

_BUNDLE = "bundle"
_TASK = {"type": "recommendation", "name": "Recommendation"}


def model_card(
    name: str,
    template: str | None,
    fields: Mapping[str, Any],
    training: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
) -> str:
    """Returns the text of the card, with Hugging Face's YAML header.

    Args:
        name: Name of the served model.
        template: Template of the task, as `package:file`, which extends `bundle` or another one;
            None: only `bundle`.
        fields: Fields of the manifest and of the template. `bundle` shows `summary`, `counts`,
            `config` and, in the header, `tags` and `hub_task`.
        training: The trainer's `training.json`.
        evaluation: The evaluator's `evaluation.json`, if there is one.
    """
    environment = jinja2.Environment(  # noqa: S701 Markdown, and no page
        keep_trailing_newline=True,
        undefined=jinja2.ChainableUndefined,
        loader=jinja2.FunctionLoader(_read),
    )
    # JSON is valid YAML, and quotes any name.
    environment.filters |= {
        "json": json.dumps,
        "indented_json": lambda value: json.dumps(value, indent=1),
        "figure": lambda value: f"{value:.4f}" if isinstance(value, float) else "–",
    }
    return environment.get_template(template or _BUNDLE).render(
        {"counts": {}, **fields},
        name=name,
        header=_header(name, fields, evaluation),
        training=training,
        evaluation=evaluation,
        version=version_text(training.get("source")),
    )


def _read(template: str) -> str:
    package, _, file = template.partition(":")
    if template == _BUNDLE:
        package, file = "recsys.bundles", "model_card.jinja"
    return (resources.files(package) / file).read_text(encoding="utf-8")


def _header(
    name: str, fields: Mapping[str, Any], evaluation: Mapping[str, Any] | None
) -> dict[str, Any]:
    header: dict[str, Any] = {
        "library_name": "tensorflow",
        "tags": fields.get("tags", ["recommendation", "keras"]),
    }
    if evaluation:
        metrics = [{"type": m, "name": m, "value": v} for m, v in evaluation["metrics"].items()]
        result = {
            "task": fields.get("hub_task", _TASK),
            "dataset": {"type": name, "name": name},
            "metrics": metrics,
        }
        header["model-index"] = [{"name": name, "results": [result]}]
    return header
