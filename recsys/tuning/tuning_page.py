"""The page of a tuning study: the best value over time, the effect of each key, all trials."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from recsys.formats import counted, duration, figure, is_number
from recsys.report.charts import Series, draw_lines, key, picture, spread
from recsys.report.page import render
from recsys.system.commit import commit_text
from recsys.tuning.study_records import PAGE, shown_state

_WIDE, _NARROW = (480, 230), (330, 210)
_MOST_TICKS = 5
_MOST_STEEP = 20.0
"""Ratio of the highest to the lowest value of a key above which its axis is logarithmic."""

Trials = Sequence[Mapping[str, Any]]


def write_tuning_page(folder: Path, record: Mapping[str, Any]) -> Path:
    """Writes the page of a study, in one step, and returns its path.

    Args:
        folder: Folder of the study.
        record: Its record, as `write_record` takes it.
    """
    trials, metric = record["trials"], record["metric"]
    measured = [trial for trial in trials if trial["value"] is not None]
    names = list(dict.fromkeys(name for trial in trials for name in trial["parameters"]))
    pictures = [_course(measured, metric), *(_slice(measured, n, metric) for n in names)]
    page = render(
        "tuning.html.jinja",
        name=record["name"],
        metric=metric,
        facts=_facts(record, measured),
        keys=[("trial", key(1)), ("best so far", key(0))],
        pictures=[picture for picture in pictures if picture is not None],
        names=names,
        trials=[_row(trial, names, record["best"]) for trial in _best_first(trials)],
    )
    commit_text(page, folder / PAGE)
    return folder / PAGE


def _facts(record: Mapping[str, Any], measured: Trials) -> list[tuple[str, str]]:
    states = [shown_state(trial) for trial in record["trials"]]
    counts = ", ".join(f"{states.count(state)} {state}" for state in dict.fromkeys(states))
    best = next((trial for trial in measured if trial["number"] == record["best"]), None)
    facts = [
        ("trials", counts or "none"),
        ("time", f"{duration(record['seconds'])} of {duration(60 * record['minutes'])}"),
    ]
    if best is not None:
        facts.insert(0, ("best", f"{figure(best['value'])}, trial {best['number']}"))
    return facts


def _best_first(trials: Trials) -> list[Mapping[str, Any]]:
    return sorted(trials, key=lambda t: (t["value"] is None, -(t["value"] or 0.0), t["number"]))


def _row(trial: Mapping[str, Any], names: Sequence[str], best: int | None) -> dict[str, Any]:
    return {
        **trial,
        "is_best": trial["number"] == best,
        "shown_state": shown_state(trial),
        "cells": [_text(trial["parameters"].get(name)) for name in names],
        "epochs": len(trial["looks"]),
    }


def _text(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)


def _course(trials: Trials, metric: str) -> dict[str, Any] | None:
    """Returns the picture of all trials in their order, and of the best so far."""
    if len(trials) < 2:
        return None
    points = [(float(trial["number"]), float(trial["value"])) for trial in trials]
    best = [(x, max(value for _, value in points[: i + 1])) for i, (x, _) in enumerate(points)]
    ticks = [(points[i][0], str(int(points[i][0]))) for i in spread(len(points), _MOST_TICKS)]
    caption = (
        f"{metric} on validation of {counted(len(points), 'trial', 'trials')}: first"
        f" {figure(points[0][1])}, best {figure(best[-1][1])}."
    )
    draw = functools.partial(
        draw_lines, [Series(0, best), Series(1, points)], ticks, caption, x_name="trial", margin=0.5
    )
    return picture("Trials", caption, draw, _WIDE, _NARROW)


def _slice(trials: Trials, name: str, metric: str) -> dict[str, Any] | None:
    """Returns the picture of what the trials reached by one setting; None if it is no number."""
    points = sorted(
        (float(trial["parameters"][name]), float(trial["value"]))
        for trial in trials
        if is_number(trial["parameters"].get(name))
    )
    if len(points) < 2 or points[0][0] == points[-1][0]:
        return None
    low, high = points[0][0], points[-1][0]
    is_log = low > 0 and high / low >= _MOST_STEEP
    ticks = [(points[i][0], f"{points[i][0]:.3g}") for i in spread(len(points), 3)]
    # A gap after each point: neighbours share nothing but their place.
    dots = [dot for x, y in points for dot in ((x, y), (x, None))]
    caption = f"{metric} by {name}, {_text(low)} to {_text(high)}."
    margin = 0.02 * (high - low)
    draw = functools.partial(
        draw_lines, [Series(1, dots)], ticks, caption, x_name=name, log_x=is_log, margin=margin
    )
    return picture(name, caption, draw, _WIDE, _NARROW)
