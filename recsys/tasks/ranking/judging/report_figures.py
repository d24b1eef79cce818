"""Figures of the report: calibration, the labels' rates over time, and coverage of features."""

from __future__ import annotations

from typing import Any

import numpy as np

from recsys.metrics.scores import ScoredRows, equal_mass_bins
from recsys.tasks.ranking.judging.labelled_rows import LabelledRows

_BINS = 20
_PERIODS = 30
_MOST_ROWS = 100_000
_IDS = {"user_row": "user", "id_row": "item"}


def calibration(rows: ScoredRows) -> list[dict[str, float]]:
    """Returns bins of rows by ascending probability, of equal weight.

    Each has its number of `rows`, the mean `probability`, and the `rate` of the label.
    """
    place = equal_mass_bins(rows, _BINS)
    weights = np.bincount(place, rows.weights, _BINS)
    counts = np.bincount(place, minlength=_BINS)
    sums = [np.bincount(place, rows.weights * x, _BINS) for x in (rows.score, rows.label)]
    return [
        {
            "rows": int(counts[at]),
            "probability": float(sums[0][at] / weights[at]),
            "rate": float(sums[1][at] / weights[at]),
        }
        for at in np.flatnonzero(counts).tolist()
    ]


def rates(train: LabelledRows, held_out: LabelledRows, cut: int) -> dict[str, list[dict[str, Any]]]:
    """Returns the mean of each label by period, without empty periods.

    Each period has its start `from` [seconds since 1970, UTC], its number of `rows` with a known
    label, their `mean`, and whether they are `held_out`. A period ends at the cut.

    Args:
        train: Rows of training.
        held_out: The case's rows.
        cut: End of the training data [seconds since 1970, UTC].
    """
    times = np.concatenate([train.timestamp, held_out.timestamp])
    length = max(1, -(-int(times.max() - times.min() + 1) // _PERIODS))
    found: dict[str, list[dict[str, Any]]] = {}
    for name in held_out.labels:
        found[name] = []
        for part in (train, held_out):
            is_known = ~np.isnan(part.labels[name]) & ~part.is_drawn
            own = part.weight_of(name)
            weight = np.ones(len(part)) if own is None else own
            period = (part.timestamp[is_known] - cut) // length
            periods, place, counts = np.unique(period, return_inverse=True, return_counts=True)
            of_labels = (weight * part.labels[name])[is_known]
            weights, sums = (np.bincount(place, x) for x in (weight[is_known], of_labels))
            columns = (cut + periods * length, counts, sums / weights)
            found[name] += [
                {"from": start, "rows": n, "mean": mean, "held_out": part is held_out}
                for start, n, mean in zip(*(x.tolist() for x in columns), strict=True)
            ]
    return found


def coverage(train: LabelledRows, held_out: LabelledRows) -> list[dict[str, Any]]:
    """Returns the share of rows that have a value of each input, in both parts.

    An id has a value if training knows it, tokens if one isn't padding, numbers if one isn't 0.
    """
    shares = [_shares(part) for part in (train, held_out)]
    return [
        {"name": name, "train": shares[0][name], "held_out": shares[1][name]} for name in shares[0]
    ]


def _shares(rows: LabelledRows) -> dict[str, float]:
    if len(rows) > _MOST_ROWS:
        rows = rows.select(np.linspace(0, len(rows) - 1, _MOST_ROWS).astype(np.int64))
    inputs = rows.inputs()
    return {
        _IDS.get(name, name): float((x.reshape(len(x), -1) != 0).any(axis=1).mean())
        for name, x in inputs.items()
    }
