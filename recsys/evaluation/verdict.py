"""Whether a model may be pushed: the figures against what the config asks for."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping

from recsys.config import BlessConfig


@dataclasses.dataclass(frozen=True)
class Verdict:
    """The decision, in words.

    Attributes:
        blessed: Whether every condition holds.
        reasons: One sentence for each condition, with its figures.
    """

    blessed: bool
    reasons: list[str]


def judge(
    config: BlessConfig,
    model: Mapping[str, float],
    popularity: Mapping[str, float],
    blessed_model: Mapping[str, float] | None,
) -> Verdict:
    """Returns the verdict on a model.

    Args:
        config: The conditions.
        model: Metrics of the model.
        popularity: Metrics of the popularity baseline on the same queries.
        blessed_model: Metrics of the last blessed model on the same queries; None
            if there is none.
    """
    name, value = config.metric, model[config.metric]
    checks = [(f"the {config.at_least:.4f} asked for", config.at_least)]
    if config.over_popularity:
        checks.append(_ratio("popularity", config.over_popularity, popularity[name]))
    if blessed_model is not None and config.over_blessed:
        checks.append(_ratio("the last blessed model", config.over_blessed, blessed_model[name]))
    reasons = [
        f"{name} is {value:.4f}: {'at least' if value >= floor else 'below'} {words}"
        for words, floor in checks
    ]
    if blessed_model is None:
        reasons.append("there is no other blessed model to compare with")
    return Verdict(all(value >= floor for _, floor in checks), reasons)


def _ratio(whose: str, ratio: float, theirs: float) -> tuple[str, float]:
    return f"{ratio:g} × {theirs:.4f}, which is that of {whose}", ratio * theirs
