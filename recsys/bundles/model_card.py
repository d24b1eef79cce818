"""The bundle's MODEL_CARD.md: the model, its quality and its limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import jinja2

from recsys.fingerprint import version_text

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
        template: Template of the task, as `package:file`, which extends `bundle`; None: only
            `bundle`.
        fields: Fields of the manifest and of the template. `bundle` shows `summary`, `counts`,
            `config` and, in the header, `tags` and `hub_task`.
        training: The trainer's `training.json`.
        evaluation: The evaluator's `evaluation.json`, if there is one.
    """
    texts = {"bundle": _read("recsys.bundles:model_card.jinja")}
    if template is not None:
        texts["task"] = _read(template)
    environment = jinja2.Environment(  # noqa: S701 Markdown, and no page
        keep_trailing_newline=True,
        undefined=jinja2.ChainableUndefined,
        loader=jinja2.DictLoader(texts),
    )
    # JSON is valid YAML, and quotes any name.
    environment.filters |= {
        "json": json.dumps,
        "indented_json": lambda value: json.dumps(value, indent=1),
        "figure": lambda value: f"{value:.4f}" if isinstance(value, float) else "–",
    }
    return environment.get_template("bundle" if template is None else "task").render(
        {"counts": {}, **fields},
        name=name,
        header=_header(name, fields, evaluation),
        training=training,
        evaluation=evaluation,
        version=version_text(training.get("source")),
    )


def _read(template: str) -> str:
    package, _, file = template.partition(":")
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
