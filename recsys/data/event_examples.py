"""Example values of features of events, for probes of models and for comparing features."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recsys.data.event_features import LearnedFeature

_N = 64
_UNKNOWN = "never seen"


def example_values(one: LearnedFeature) -> pa.Array:
    """Returns typed values, without nulls, that have most token rows of a feature.

    Of several values with one row, the last is the most typical.
    """
    value, learned = one.feature.value, one.learned
    if value == "text":
        names = one.feature.token_names(learned) or [f"text {n}" for n in range(_N)]
        return pa.array([_UNKNOWN, *filter(None, names)], pa.string())
    if value == "time":  # Each hour, weekday and month within 400 days.
        return pa.array(1_600_000_000 + 90_000 * np.arange(400), pa.int64())
    if value == "gap":
        return pa.array(np.append(0, 2.0 ** np.linspace(0, 34, 400)).astype(np.int64))
    if value == "vector":
        length = getattr(one.feature, "length", one.feature.floats)
        numbers = np.random.default_rng(0).normal(size=(_N, length))
        return pa.array([*numbers.astype(np.float32)], pa.list_(pa.float32()))
    return pa.array(_numbers(learned), pa.float32())


def _numbers(learned: pa.Table) -> np.ndarray:
    """Returns numbers on a logarithmic scale, and those at and between the learned ones."""
    scale = 2.0 ** np.linspace(-10, 26, 300)
    columns = [c.to_numpy() for c in learned.columns if pa.types.is_floating(c.type)]
    bounds = np.unique(np.concatenate([np.zeros(1), *columns]).astype(np.float32))
    bounds = bounds[np.isfinite(bounds)]
    below = np.nextafter(bounds, np.float32(-np.inf))
    outer = np.array([bounds[0] - 1, bounds[-1] + 1])
    middle = (bounds[1:].astype(np.float64) + bounds[:-1]) / 2
    return np.concatenate([-scale, scale, below, outer, bounds, middle]).astype(np.float32)
