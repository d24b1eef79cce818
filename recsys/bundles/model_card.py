"""The bundle's MODEL_CARD.md: the model, its quality and its limits."""

from __future__ import annotations

import json
from collections.abc import Mapping
from importlib import resources
from typing import Any

import jinja2

from recsys import registry
from recsys.bundles.config import ExportStage
from recsys.bundles.signatures import query_facts
from recsys.fingerprint import version_text
from recsys.registry import Choice


def model_card(
    stage: ExportStage,
    fields: Mapping[str, Any],
    training: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
) -> str:
    """Returns the text of the card, with Hugging Face's YAML header.

    Args:
        stage: What was exported, and how.
        fields: Of the bundle's manifest: `counts`, `history_facts`, `kinds`, and the `config`
            that the trainer had.
        training: The trainer's `training.json`.
        evaluation: The evaluator's `evaluation.json`, if there is one.
    """
    trained_with = fields["config"]
    model = trained_with["model"]
    config = registry.config_type("model", model.get("type", "two_tower"))
    environment = jinja2.Environment(  # noqa: S701 Markdown, and no page
        keep_trailing_newline=True, undefined=jinja2.ChainableUndefined
    )
    # JSON is YAML, and quotes whatever text a name may hold.
    environment.filters |= {
        "json": json.dumps,
        "indented_json": lambda value: json.dumps(value, indent=1),
        "figure": lambda value: f"{value:.4f}" if isinstance(value, float) else "–",
    }
    text = (resources.files("recsys.bundles") / "model_card.jinja").read_text(encoding="utf-8")
    return environment.from_string(text).render(
        name=stage.name,
        header=_header(stage.name, evaluation),
        summary=getattr(config, "summary", ""),
        similarity="dot product" if model["similarity"] == "dot" else model["similarity"],
        item_bias=model.get("item_bias", False),
        item_age=model.get("item_age"),
        counts=fields["counts"],
        training=training,
        loss=Choice("loss").read(trained_with["train"]["loss"]).title,
        version=version_text(training.get("source")),
        trained_with=trained_with,
        evaluation=evaluation,
        excludes_seen=stage.repeats == "exclude",
        is_apart=stage.export.vectors == "apart",
        fact_inputs=query_facts(fields["history_facts"]),
        kinds=fields["kinds"],
    )


def _header(name: str, evaluation: Mapping[str, Any] | None) -> dict[str, Any]:
    fields: dict[str, Any] = {
        "library_name": "tensorflow",
        "tags": ["recommendation", "retrieval", "two-tower", "keras"],
    }
    if evaluation:
        metrics = [{"type": m, "name": m, "value": v} for m, v in evaluation["metrics"].items()]
        result = {
            "task": {"type": "retrieval", "name": "Candidate retrieval"},
            "dataset": {"type": name, "name": name},
            "metrics": metrics,
        }
        fields["model-index"] = [{"name": name, "results": [result]}]
    return fields
