"""Figures of rankers: labels, rates over time, coverage of inputs; and of pairs with one."""

from __future__ import annotations

import datetime as dt
from collections.abc import Mapping, Sequence
from typing import Any

from recsys.formats import count, counted
from recsys.pair.folder import RANKER
from recsys.report.charts import Chart, Series, key, spread, ticks
from recsys.report.evaluated import Evaluated
from recsys.report.page import read_part
from recsys.report.run_figures import training_of
from recsys.report.runs import Artifacts, MissingError, read_json

_DIAGONAL = 4
"""Style of the line of perfect calibration."""
_PARTS = {"training rows": False, "held-out rows": True}
_MOST_DATES = 4


def read_labels(artifacts: Artifacts) -> dict[str, Any] | None:
    """Returns charts of the labels, and the coverage of the inputs; None for a task without them.

    Raises:
        MissingError: The evaluation has no labels.
    """
    if not artifacts.has_labels:
        return None
    evaluation = artifacts.evaluated
    labels = evaluation["labels"]
    if not labels:
        raise MissingError("The evaluation has no labels.")
    rates = evaluation.get("label_rates") or {}
    return {
        **calibration_of(labels),
        "rates": [_rates(name, periods) for name, periods in rates.items() if periods],
        "rate_keys": [(name, key(style)) for style, name in enumerate(_PARTS)],
        "coverage": evaluation.get("coverage") or [],
        "negatives": (evaluation.get("negatives") or {}).get("meaning", ""),
    }


def calibration_of(labels: Mapping[str, Any]) -> dict[str, Any]:
    """Returns charts of the calibration of labels, with their legend and bins."""
    bins = {name: one["calibration"] for name, one in labels.items() if one.get("calibration")}
    return {
        "calibration": [_calibration(name, own) for name, own in bins.items()],
        "bins": bins,
        "calibration_keys": [("the model", key(0)), ("perfect calibration", key(_DIAGONAL))],
    }


def _calibration(label: str, bins: Sequence[Mapping[str, Any]]) -> Chart:
    points = [(one["probability"], one["rate"]) for one in bins]
    n_rows = [one["rows"] for one in bins]
    highest = max(max(point) for point in points)
    caption = (
        f"Share of rows with {label}, over the probability that the model predicts;"
        f" {counted(len(bins), 'bin', 'bins')}, of {count(min(n_rows))} to {count(max(n_rows))}"
        " rows."
    )
    series = [
        Series(0, points),
        Series(_DIAGONAL, [(0.0, 0.0), (highest, highest)], has_marks=False),
    ]
    x_ticks = [(at, f"{at:g}") for at in ticks(0.0, highest, 4) if at <= highest]
    return Chart(f"Calibration of {label}", caption, series, x_ticks, x_name="probability")


def _rates(label: str, periods: Sequence[Mapping[str, Any]]) -> Chart:
    series, texts = [], []
    for style, (part, is_held_out) in enumerate(_PARTS.items()):
        own = [one for one in periods if one["held_out"] == is_held_out]
        series.append(Series(style, [(float(one["from"]), one["mean"]) for one in own]))
        texts.append(f"{count(sum(one['rows'] for one in own))} {part}")
    starts = sorted({float(one["from"]) for one in periods})
    dates = [starts[at] for at in spread(len(starts), _MOST_DATES)]
    caption = f"Mean of {label} over time, in {' and '.join(texts)}."
    return Chart(f"Mean of {label}", caption, series, [(at, _date(at)) for at in dates])


def _date(time: float) -> str:
    return dt.datetime.fromtimestamp(time, dt.UTC).strftime("%Y-%m-%d")


# --- pairs


def read_pair(artifacts: Artifacts) -> dict[str, Any] | None:
    """Returns the decision on a pair's ranker, the funnel of its lists, and the ranker's figures.

    It is None for a model of one stage.
    """
    evaluation = artifacts.evaluated
    pair = evaluation.get("pair")
    if pair is None:
        return None
    own = evaluation.get("ranker")
    return {
        **pair,
        "is_left_out": pair["second_stage"] == "left_out",
        "metrics": own and {"evaluated": (of := Evaluated(own)), "names": [*of.metrics]},
        "labels": calibration_of((own or {}).get("labels") or {}),
        "training": read_part(_training, artifacts),
    }


def _training(artifacts: Artifacts) -> dict[str, Any]:
    training = read_json(artifacts.model / RANKER / "training.json", "The ranker's training")
    return training_of(training, artifacts.config.get("ranker") or {})
