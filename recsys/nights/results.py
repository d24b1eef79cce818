"""What a simulation found: how the arms compare over all nights, with their intervals."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from recsys.formats import is_number

WARM, COLD, FROZEN = "warm", "cold", "frozen"
ARMS = (WARM, COLD, FROZEN)
"""Started from the last blessed model; trained anew; the first night's model, as it was."""

_RESAMPLES = 2_000
_CONFIDENCE = 0.95
_LAST_SHARE = 0.25
_LEAST = 5
"""Nights without which there is no interval."""

Nights = Sequence[Mapping[str, Any]]


def value(night: Mapping[str, Any], arm: str, name: str = "value") -> float | None:
    """Returns a number of an arm in a night; None where it wasn't measured."""
    found = (night.get(arm) or {}).get(name)
    return found if is_number(found) else None


def summarize(nights: Nights) -> dict[str, Any]:
    """Returns the simulation in a few numbers.

    A night counts in a comparison where both arms were measured, and the warm one didn't
    start anew itself. Each ratio is of the sums over these nights, with the 95 % interval of
    the bootstrap over nights, which takes them as independent: neighbouring nights share most
    of their data, so it is too narrow rather than too wide.
    """
    states = [night["state"] for night in nights]
    both = [n for n in nights if value(n, COLD) is not None and is_warm(n)]
    last = both[-max(1, round(len(both) * _LAST_SHARE)) :] if both else []
    return {
        "nights": len(nights),
        "states": {state: states.count(state) for state in dict.fromkeys(states)},
        "broken_spans": sum(1 for night in nights if night.get("broken")),
        "compared": len(both),
        "warm_over_cold": _ratio(both, "value"),
        "warm_over_cold_at_the_end": _ratio(last, "value"),
        "steps_of_warm_over_cold": _ratio(both, "steps"),
        "train_seconds_of_warm_over_cold": _ratio(both, "seconds"),
        "warm_over_frozen_at_the_end": _ratio(last, "value", FROZEN),
        "seconds": round(sum(night["seconds"] for night in nights), 1),
    }


def is_warm(night: Mapping[str, Any]) -> bool:
    """Returns whether the night's model started from an earlier one, and was measured."""
    return bool((night.get(WARM) or {}).get("base")) and value(night, WARM) is not None


def _ratio(nights: Nights, name: str, other: str = COLD) -> dict[str, Any] | None:
    """Returns the ratio of the warm arm's sum to another's, and its interval.

    Of few nights there is none: a bootstrap over two says that it is sure of anything.
    """
    pairs = [(value(night, WARM, name), value(night, other, name)) for night in nights]
    known = np.array([pair for pair in pairs if None not in pair], np.float64).reshape(-1, 2)
    if not len(known) or known[:, 1].sum() <= 0:
        return None
    return {
        "ratio": round(float(known[:, 0].sum() / known[:, 1].sum()), 4),
        "interval": _interval(known) if len(known) >= _LEAST else None,
        "nights": len(known),
    }


def _interval(pairs: np.ndarray) -> list[float]:
    """Returns the ends of the interval of the ratio of sums of `pairs` `[nights, 2]`."""
    draws = np.random.default_rng(0).integers(0, len(pairs), (_RESAMPLES, len(pairs)))
    sums = pairs[draws].sum(axis=1)
    ratios = sums[:, 0] / np.maximum(sums[:, 1], np.finfo(np.float64).tiny)
    tail = (1 - _CONFIDENCE) / 2
    return [round(float(x), 4) for x in np.quantile(ratios, [tail, 1 - tail])]
