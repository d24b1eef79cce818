"""The verdict: blessed and pushed, blessed, or refused, and why."""

from __future__ import annotations

import dataclasses
from pathlib import PurePath
from typing import Any

from recsys.formats import figure, is_number, ratio
from recsys.report.artifacts import Artifacts, MissingError


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The first thing that a reader wants to know.

    Attributes:
        state: `good`, `bad` or `unknown`.
        headline: The verdict in one line.
        detail: What it means for the served model.
        reasons: What the evaluator gave as reasons.
    """

    state: str
    headline: str
    detail: str
    reasons: list[str]


def read_verdict(artifacts: Artifacts) -> Verdict:
    """Returns the verdict; where there is none, the headline says so."""
    try:
        evaluation = artifacts.evaluated()
    except MissingError as missing:
        return Verdict("unknown", "No verdict", str(missing), [])
    verdict = evaluation.get("verdict")
    if not isinstance(verdict, dict) or not isinstance(verdict.get("blessed"), bool):
        return Verdict("unknown", "No verdict", "The evaluation came to no verdict.", [])
    reasons = verdict.get("reasons")
    reasons = [str(reason) for reason in reasons] if isinstance(reasons, list) else []
    if not verdict["blessed"]:
        broken = _broken_rules(artifacts.bless(), evaluation)
        why = (broken or reasons or ["no reason was given"])[0]
        # The list below the headline is the evaluator's; the report adds what it lacks.
        reasons = reasons or broken
        detail = "Nothing was pushed; what was served before is still served."
        if artifacts.pushed:
            detail = f"Refused, and yet {artifacts.pushed} was pushed: look into the pipeline."
        return Verdict("bad", f"Refused: {why}", detail, reasons)
    if not artifacts.pushed:
        return Verdict("good", "Blessed, not pushed", "This run served nothing new.", reasons)
    version = PurePath(artifacts.pushed).name
    return Verdict(
        "good",
        f"Blessed and pushed as version {version}",
        f"Served from {artifacts.pushed}",
        reasons,
    )


def _broken_rules(bless: dict[str, Any], evaluation: dict[str, Any]) -> list[str]:
    """Returns what the model failed of the config's rules, in words."""
    name = str(bless.get("metric"))
    value = _metric(evaluation.get("metrics"), name)
    if not is_number(value):
        return []
    broken = []
    at_least = bless.get("at_least")
    if is_number(at_least) and value < at_least:
        broken.append(f"{name} is {figure(value)}, at least {figure(at_least)} was asked for")
    baselines = evaluation.get("baselines")
    others = {
        "over_popularity": ("the popularity baseline", (baselines or {}).get("popularity")),
        "over_blessed": ("the last blessed model", evaluation.get("blessed_model")),
    }
    for key, (other_name, metrics) in others.items():
        lowest, other = bless.get(key), _metric(metrics, name)
        if is_number(lowest) and is_number(other) and value < lowest * other:
            broken.append(
                f"{name} is {ratio(value, other)} that of {other_name},"
                f" at least {ratio(lowest, 1)} was asked for"
            )
    return broken


def _metric(metrics: Any, name: str) -> Any:
    return metrics.get(name) if isinstance(metrics, dict) else None
