"""Titles of metrics and baselines, for evaluations of any version."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal

from recsys import registry
from recsys.errors import UsageError


def baseline_title(name: str, evaluation: Mapping[str, Any] | None = None) -> str:
    """Returns the title of a baseline, from the evaluation or else from its class."""
    described = ((evaluation or {}).get("descriptions") or {}).get("baselines") or {}
    return str(described.get(name) or _of_class("baseline", name, "title") or name)


def metric_description(name: str, evaluation: Mapping[str, Any] | None = None) -> dict[str, Any]:
    """Returns `title`, `meaning` and `better` of a metric, as the evaluation or its class says.

    Args:
        name: Name of the metric, without a cut-off.
        evaluation: What `evaluation.json` holds; one of an earlier version says nothing of it.
    """
    described = ((evaluation or {}).get("descriptions") or {}).get("metrics") or {}
    if isinstance(described.get(name), dict):
        return dict(described[name])
    title = _of_class("metric", name, "title") or name.replace("_", " ")
    meaning = _of_class("metric", name, "meaning") or ""
    return {"title": title, "meaning": meaning, "better": _of_class("metric", name, "better")}


def _of_class(kind: Literal["metric", "baseline"], name: str, attribute: str) -> Any:
    try:
        return getattr(registry.get(kind, name), attribute)
    except UsageError:
        return None
