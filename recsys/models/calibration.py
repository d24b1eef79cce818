"""Calibration: from a model's log odds to probabilities, fitted on held-back rows.

Both maps are fitted and applied in numpy, and their JSON is their state. They never decrease, so
that they keep the order of rows; `Isotonic` maps many log odds to one probability, so rank by the
log odds. Rows that the source thinned are weighted by 1 / rate, and the map's probabilities are
then those among all rows; with `recsys.losses.thinned_logits` in the loss or not.
"""

from __future__ import annotations

from typing import Literal, NamedTuple, Self

import numpy as np
from numpy.typing import ArrayLike, NDArray
from pydantic import PositiveFloat, model_validator

from recsys.strict import Strict

_LEAST_SCALE = 1e-3
_MOST_STEPS = 100

Floats = NDArray[np.float64]


class Temperature(Strict):
    """The logistic function of `scale * logit + bias`; 1 / scale is the temperature.

    Guo et al., "On Calibration of Modern Neural Networks", ICML 2017, with the bias of Platt,
    "Probabilistic Outputs for Support Vector Machines", 1999.
    """

    kind: Literal["temperature"] = "temperature"
    """Kind of the map."""
    scale: PositiveFloat = 1.0
    """Factor of the log odds."""
    bias: float = 0.0
    """What is added to them."""

    @classmethod
    def fit(cls, logit: ArrayLike, label: ArrayLike, weight: ArrayLike | None = None) -> Self:
        """Returns the map of least log loss.

        The labels are smoothed as Platt does: with the weights P of the positives and N of the
        negatives, 1 becomes (P + 1) / (P + 2), and 0 becomes 1 / (N + 2). So scale and bias are
        finite even if the rows are separable or have one label only. If the log odds would have
        to change their sign, the scale is 0.001.

        Args:
            logit: Log odds of each row `[rows]`.
            label: Labels 0 or 1 `[rows]`; rows with NaN are left out.
            weight: Weight of each row `[rows]`; None for ones.
        """
        rows = _known(logit, label, weight)
        if not len(rows.weight):
            return cls()
        target = _smoothed(rows)
        # Standard units: Newton's method solves for two numbers of the same size.
        mean, spread = float(rows.logit.mean()), float(rows.logit.std()) or 1.0
        units = np.stack([(rows.logit - mean) / spread, np.ones_like(target)], axis=1)
        slope, level = _logistic(units, target, rows.weight, np.zeros(len(target)))
        scale = slope / spread
        if scale < _LEAST_SCALE:
            scale = _LEAST_SCALE
            (level,) = _logistic(units[:, 1:], target, rows.weight, scale * (rows.logit - mean))
        return cls(scale=float(scale), bias=float(level - scale * mean))

    def apply(self, logit: ArrayLike) -> Floats:
        """Returns the probability of each row `[rows]` float64."""
        return _sigmoid(self.scale * np.asarray(logit, np.float64) + self.bias)

    def halved(self) -> Self:
        """Returns the map that changes log odds by half as much."""
        return type(self)(scale=(1 + self.scale) / 2, bias=self.bias / 2)


class Isotonic(Strict):
    """The non-decreasing function of the log odds with the least squared error.

    It is constant in blocks of rows, and linear between two blocks.
    """

    kind: Literal["isotonic"] = "isotonic"
    """Kind of the map."""
    logit: tuple[float, ...]
    """Lowest and highest log odds of each block, ascending."""
    probability: tuple[float, ...]
    """Probability at each of them [0..1]."""

    @model_validator(mode="after")
    def _is_non_decreasing(self) -> Self:
        logit, probability = list(self.logit), list(self.probability)
        if not logit or len(logit) != len(probability) or logit != sorted({*logit}):
            raise ValueError("logit must be ascending, with a probability each")
        if probability != sorted(probability) or min(probability) < 0 or max(probability) > 1:
            raise ValueError("probability must be non-decreasing, from 0 to 1")
        return self

    @classmethod
    def fit(cls, logit: ArrayLike, label: ArrayLike, weight: ArrayLike | None = None) -> Self:
        """Returns the map of the least squared error, by pooling adjacent violators.

        Ayer et al., Annals of Mathematical Statistics 1955. Probabilities are at least
        1 / (W + 2) and at most (W + 1) / (W + 2), with the weight W of all rows: no row of the
        future has an infinite log loss.

        Args:
            logit: Log odds of each row `[rows]`.
            label: Labels 0 or 1 `[rows]`; rows with NaN are left out.
            weight: Weight of each row `[rows]`; None for ones.
        """
        rows = _known(logit, label, weight)
        values, row = np.unique(rows.logit, return_inverse=True)
        if not len(values):
            return cls(logit=(0.0,), probability=(0.5,))
        positive, mass = (
            np.bincount(row, x).astype(np.float64) for x in (rows.weight * rows.label, rows.weight)
        )
        starts, means = _pooled(positive, mass)
        ends = np.append(starts[1:], len(values)) - 1
        least = 1 / (float(mass.sum()) + 2)
        # A block of one value has one point.
        points, block = np.unique(np.concatenate([starts, ends]), return_index=True)
        probability = np.clip(np.tile(means, 2)[block], least, 1 - least)
        return cls(logit=tuple(values[points].tolist()), probability=tuple(probability.tolist()))

    def apply(self, logit: ArrayLike) -> Floats:
        """Returns the probability of each row `[rows]` float64."""
        return np.interp(np.asarray(logit, np.float64), self.logit, self.probability)

    def halved(self) -> Self:
        """Returns the map that changes the log odds of its points by half as much."""
        own, p = np.asarray(self.logit), np.asarray(self.probability)
        halved = _sigmoid((own + np.log(p) - np.log1p(-p)) / 2)
        return type(self)(logit=self.logit, probability=tuple(halved.tolist()))


Calibration = Temperature | Isotonic


class _Rows(NamedTuple):
    logit: Floats
    label: Floats
    weight: Floats


def _known(logit: ArrayLike, label: ArrayLike, weight: ArrayLike | None) -> _Rows:
    """Returns the rows that have a label and a weight."""
    logit, label = np.asarray(logit, np.float64), np.asarray(label, np.float64)
    weight = np.ones_like(label) if weight is None else np.asarray(weight, np.float64)
    is_known = ~np.isnan(label) & (weight > 0)
    return _Rows(logit[is_known], label[is_known], weight[is_known])


def _sigmoid(logit: Floats) -> Floats:
    return np.exp(-np.logaddexp(0.0, -logit))


def _smoothed(rows: _Rows) -> Floats:
    """Returns the labels smoothed by Platt; see `Temperature.fit`."""
    positive = float(rows.weight @ rows.label)
    negative = float(rows.weight.sum()) - positive
    high, low = (positive + 1) / (positive + 2), 1 / (negative + 2)
    return low + (high - low) * rows.label


def logistic(columns: ArrayLike, label: ArrayLike, offset: ArrayLike) -> Floats:
    """Returns the coefficients of a logistic regression, with labels smoothed as by Platt.

    Args:
        columns: Features of each row `[rows, n]`.
        label: Labels 0 or 1 `[rows]`; rows with NaN are left out.
        offset: What is added to the log odds of each row `[rows]`.
    """
    rows, is_known = _known(offset, label, None), ~np.isnan(np.asarray(label))
    known = np.asarray(columns, np.float64)[is_known]
    return _logistic(known, _smoothed(rows), rows.weight, rows.logit)


def _logistic(columns: Floats, target: Floats, weight: Floats, offset: Floats) -> Floats:
    """Returns the coefficients of least log loss, by Newton's method with halved steps."""

    def loss(coefficients: Floats) -> float:
        logit = columns @ coefficients + offset
        return float(weight @ (np.logaddexp(0.0, logit) - target * logit))

    found = np.zeros(columns.shape[1])
    for _ in range(_MOST_STEPS):
        p = _sigmoid(columns @ found + offset)
        slope = columns.T @ (weight * (p - target))
        curvature = (columns.T * (weight * p * (1 - p))) @ columns
        # A column that is constant 0 has no curvature; its coefficient stays 0.
        step = np.linalg.lstsq(curvature, slope, rcond=None)[0]
        while loss(found - step) > loss(found) and np.abs(step).max() > 1e-12:
            step = step / 2
        found = found - step
        if np.abs(step).max() <= 1e-12 * (1 + np.abs(found).max()):
            break
    return found


def _pooled(positive: Floats, mass: Floats) -> tuple[NDArray[np.int64], Floats]:
    """Returns the first position and the mean of each block of `positive / mass`."""
    starts: list[int] = []
    sums: list[tuple[float, float]] = []
    for position, (p, m) in enumerate(zip(positive.tolist(), mass.tolist(), strict=True)):
        start = position
        while sums and sums[-1][0] * m >= p * sums[-1][1]:  # The means don't increase.
            before = sums.pop()
            start, p, m = starts.pop(), p + before[0], m + before[1]
        starts.append(start)
        sums.append((p, m))
    return np.array(starts), np.array([p / m for p, m in sums])
