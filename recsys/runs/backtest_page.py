"""Results of a backtest: its arms compared, with intervals, and the page of them."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recsys.formats import ABSENT, change, count, counted, duration, figure, is_number, share, span
from recsys.report.charts import Series, draw_lines, key, picture, spread
from recsys.report.evaluated import metric_title
from recsys.report.page import render
from recsys.system.commit import commit_text

WARM, COLD, FROZEN = "warm", "cold", "frozen"
ARMS = (WARM, COLD, FROZEN)
"""Started from the last blessed model; trained from scratch; the first night's model, as it was."""

_RESAMPLES = 2_000
_CONFIDENCE = 0.95
_LAST_SHARE = 0.25
_LEAST = 5
"""Nights without which there is no interval."""

Nights = Sequence[Mapping[str, Any]]


def value(night: Mapping[str, Any], arm: str, name: str = "value") -> float | None:
    """Returns a number of an arm in a night; None where it wasn't measured."""
    number = (night.get(arm) or {}).get(name)
    return number if is_number(number) else None


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


# --- the page

PAGE = "nights.html"

_NAMES = {
    WARM: "warm: from the last blessed model on",
    COLD: "cold: trained from scratch",
    FROZEN: "frozen: the first night's model",
}
_WIDE, _NARROW = (960, 300), (330, 230)
_MOST_TICKS = 6
_MARKED = ("refused", "failed", "broken")


def write_page(out: Path, name: str, metric: str, nights: Nights, index: Path) -> Path:
    """Writes `nights.html` into the folder of a simulation; returns its path.

    Args:
        out: Folder of the simulation.
        name: Name of the pipeline.
        metric: The metric that decides.
        nights: The result of each night.
        index: The page of the pipeline's own runs.
    """
    file = out / PAGE
    page = render(
        "nights.html.jinja",
        name=name,
        metric=metric_title(metric),
        facts=_facts(nights),
        keys=[(_NAMES[arm], key(style)) for style, arm in enumerate(ARMS)],
        pictures=[picture for picture in _pictures(metric, nights) if picture["wide"]],
        nights=[_row(night) for night in nights],
        index=index.relative_to(out).as_posix(),
    )
    commit_text(page, file)
    return file


def _facts(nights: Nights) -> list[tuple[str, str]]:
    summary = summarize(nights)
    states = ", ".join(f"{n} {state}" for state, n in summary["states"].items())
    return [
        ("nights", f"{count(summary['nights'])}: {states}"),
        ("spans that came broken", count(summary["broken_spans"])),
        ("warm against cold", _compared(summary["warm_over_cold"])),
        ("the same in the last quarter", _compared(summary["warm_over_cold_at_the_end"])),
        ("warm against frozen, at the end", _compared(summary["warm_over_frozen_at_the_end"])),
        ("steps, share of cold's", _part(summary["steps_of_warm_over_cold"])),
        ("training time, share of cold's", _part(summary["train_seconds_of_warm_over_cold"])),
        ("total time", duration(summary["seconds"])),
    ]


def _compared(comparison: Mapping[str, Any] | None) -> str:
    """Returns a ratio as a relative difference from 1."""
    if comparison is None:
        return ABSENT
    if comparison["interval"] is None:
        nights = counted(comparison["nights"], "night", "nights")
        return f"{change(comparison['ratio'] - 1)} (of {nights})"
    ends = [change(end - 1) for end in comparison["interval"]]
    return f"{change(comparison['ratio'] - 1)} ({ends[0]} … {ends[1]})"


def _part(comparison: Mapping[str, Any] | None) -> str:
    return ABSENT if comparison is None else share(comparison["ratio"])


def _pictures(metric: str, nights: Nights) -> list[dict[str, Any]]:
    title = metric_title(metric)
    return [
        _picture(title, nights, "value", figure, with_intervals=True),
        _picture("seconds of training", nights, "seconds", duration),
        _picture("steps of training", nights, "steps", count),
    ]


def _picture(
    title: str,
    nights: Nights,
    name: str,
    shown: Callable[[Any], str],
    *,
    with_intervals: bool = False,
) -> dict[str, Any]:
    series = [
        Series(
            style,
            [(float(x), value(night, arm, name)) for x, night in enumerate(nights)],
            _intervals(nights) if with_intervals and arm == WARM else [],
        )
        for style, arm in enumerate(ARMS)
    ]
    caption = f"{title}, night by night: {_ends(nights, name, shown)}."
    marks = [(float(x), word) for x, night in enumerate(nights) for word in _marks(night)]
    ticks = [(float(x), nights[x]["span"]) for x in spread(len(nights), _MOST_TICKS)]
    draw = functools.partial(draw_lines, series, ticks, caption, margin=0.5, events=marks)
    return picture(title, caption, draw, _WIDE, _NARROW)


def _ends(nights: Nights, name: str, shown: Callable[[Any], str]) -> str:
    """Returns the first and the last number of each arm, in words."""
    parts = []
    for arm in ARMS:
        known = [x for x in (value(night, arm, name) for night in nights) if x is not None]
        if known:
            parts.append(f"{arm} {shown(known[0])} first, {shown(known[-1])} last")
    return "; ".join(parts) or "nothing was measured"


def _intervals(nights: Nights) -> list[tuple[float, float, float]]:
    intervals = [
        (float(x), (night.get(WARM) or {}).get("interval")) for x, night in enumerate(nights)
    ]
    return [(x, ends[0], ends[1]) for x, ends in intervals if ends]


def _marks(night: Mapping[str, Any]) -> Sequence[str]:
    word = "broken" if night.get("broken") else night["state"]
    return [word] if word in _MARKED else []


def _row(night: Mapping[str, Any]) -> dict[str, Any]:
    says = [text for text in (night.get("error"), *_spans(night)) if text]
    cells = [
        (arm, figure(value(night, arm)), duration(value(night, arm, "seconds"))) for arm in ARMS
    ]
    return {
        "span": night["span"],
        "events": counted(night["events"], "event", "events"),
        "state": night["state"],
        "says": says,
        "started": _started(night),
        "cells": cells,
        "interval": span((night.get(WARM) or {}).get("interval")),
        "seconds": duration(night["seconds"]),
    }


def _spans(night: Mapping[str, Any]) -> list[str]:
    broken = [f"broken span: {night['broken']}"] if night.get("broken") else []
    return [*broken, *(f"span {day} repaired" for day in night.get("repaired", []))]


def _started(night: Mapping[str, Any]) -> str:
    if value(night, WARM) is None:
        return ""
    return "warm" if is_warm(night) else "cold"
