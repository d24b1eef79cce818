"""The bundle's MODEL_CARD.md: the model, its quality and its limits."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from importlib import resources
from typing import Any

import jinja2

from recsys import registry
from recsys.config import Repeats
from recsys.fingerprint import version_text
from recsys.registry import Choice


def model_card(
    name: str,
    counts: Mapping[str, int],
    training: Mapping[str, Any],
    evaluation: Mapping[str, Any] | None,
    trained_with: Mapping[str, Any],
    repeats: Repeats = "exclude",
    vectors: str = "bundle",
    fact_inputs: Sequence[str] = (),
    kinds: Sequence[str] = (),
) -> str:
    """Returns the text of the card, with Hugging Face's YAML header.

    Args:
        name: Name of the served model.
        counts: How many of what the bundle holds, by name.
        training: The trainer's `training.json`.
        evaluation: The evaluator's `evaluation.json`, if there is one.
        trained_with: The trainer's config.
        repeats: What becomes of items that a user has seen, by default.
        vectors: Where the item vectors are, `bundle` or `apart`.
        fact_inputs: Inputs for facts of the query and its history.
        kinds: The kinds of events that it distinguishes.
    """
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
        name=name,
        header=_header(name, evaluation),
        summary=getattr(config, "summary", ""),
        similarity="dot product" if model["similarity"] == "dot" else model["similarity"],
        item_bias=model.get("item_bias", False),
        item_age=model.get("item_age"),
        counts=counts,
        training=training,
        loss=Choice("loss").read(trained_with["train"]["loss"]).title,
        version=version_text(training.get("source")),
        trained_with=trained_with,
        evaluation=evaluation,
        excludes_seen=repeats == "exclude",
        is_apart=vectors == "apart",
        fact_inputs=fact_inputs,
        kinds=kinds,
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
