"""Intervals and differences of means over users, by the paired bootstrap.

Each resample draws as many users as there are, with replacement, and computes all means from the
same users. So the figures of two models are paired, and the effect of easy or hard users cancels
out (Efron and Tibshirani, 1993, ch. 13; Sakai, 2006, for retrieval). Intervals are percentile
intervals.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator
from typing import NamedTuple

import numpy as np

from recsys.metrics.metric import Statistics, per_user
from recsys.tasks.judging_side import BLESSED, MODEL

Interval = tuple[float, float]
_BLOCK_DRAWS = 2**24
_FEWEST_USERS = 10
"""Minimum number of users: with fewer, a percentile interval is far too narrow."""


def resampled_means(columns: np.ndarray, resamples: int, seed: int = 0) -> np.ndarray:
    """Returns the means of resampled users.

    Args:
        columns: Values of each user `[users, columns]`; NaN values are left out of the mean of
            their column.
        resamples: Number of resamples.
        seed: Seed of the draws.

    Returns:
        Means `[resamples, columns]` float64; NaN if no user with a value was drawn.
    """
    present = ~np.isnan(columns)
    values = np.where(present, columns, 0.0)
    with np.errstate(invalid="ignore"):
        means = [(n @ values) / (n @ present) for n in _draws(len(columns), resamples, seed)]
    return np.concatenate(means)


def resampled_values(statistics: Statistics, resamples: int, seed: int = 0) -> np.ndarray:
    """Returns the values `[resamples]` of a pooled metric for the same resampled users."""
    of_users, of_sums = statistics
    draws = _draws(len(of_users), resamples, seed)
    return np.concatenate([np.asarray(of_sums(n @ of_users), np.float64) for n in draws])


def _draws(n_users: int, resamples: int, seed: int) -> Iterator[np.ndarray]:
    """Yields the number of times each user is drawn `[draws, n_users]` float64, in blocks."""
    rng = np.random.default_rng(seed)
    size = max(1, _BLOCK_DRAWS // n_users)
    for start in range(0, resamples, size):
        n = min(size, resamples - start)
        yield np.stack(
            [np.bincount(rng.integers(0, n_users, n_users), minlength=n_users) for _ in range(n)]
        ).astype(np.float64)


def interval(samples: np.ndarray, confidence: float) -> Interval | None:
    """Returns the percentile interval of `samples` `[n]` at a confidence.

    None if an end is infinite, or if a tenth or more of the samples are NaN, because too few users
    have a value.
    """
    known = samples[~np.isnan(samples)]
    if np.isinf(known).any() or len(known) <= 0.9 * len(samples):
        return None
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(known, [tail, 100.0 - tail])
    return float(low), float(high)


class Key(NamedTuple):
    """Identifies a mean: system, metric, and slice (None: all queries)."""

    system: str
    metric: str
    slice: str | None = None


@dataclasses.dataclass(frozen=True)
class Difference:
    """The difference of the model from another system.

    Attributes:
        relative: Ratio of the two means minus 1; None if the other's mean is 0.
        interval: Its interval; None if too few users have a value, or if the other's mean is 0 in a
            resample, so that an end is infinite.
        difference: Difference of the two means.
        difference_interval: Its interval.
    """

    relative: float | None
    interval: Interval | None
    difference: float
    difference_interval: Interval | None


class UserMeans:
    """Means over users, with the values from which they are resampled.

    Args:
        user: User of each query `[queries]`.
        resamples: Number of bootstrap samples.
        confidence: Confidence of the intervals (0.5..1).
        seed: Seed of the samples.
    """

    def __init__(self, user: np.ndarray, resamples: int, confidence: float, seed: int = 0) -> None:
        users, self._user = np.unique(user, return_inverse=True)
        self.n_users = len(users)
        self._draws, self._confidence, self._seed = resamples, confidence, seed
        self._columns: dict[Key, np.ndarray | Statistics] = {}
        self._samples: dict[Key, np.ndarray] = {}

    def add(self, key: Key, values: np.ndarray | Statistics) -> None:
        """Adds a metric.

        Args:
            key: Key of the mean.
            values: Value of each query `[queries]`, or NaN; or the statistics of each user, in
                ascending order of the users.
        """
        if isinstance(values, np.ndarray):
            values = per_user(values, self._user, self.n_users)
        self._columns[key] = values

    @property
    def baselines(self) -> list[str]:
        """Names of the systems other than the model and the last blessed model."""
        systems = dict.fromkeys(key.system for key in self._columns)
        return [system for system in systems if system not in (MODEL, BLESSED)]

    def mean(self, key: Key) -> float | None:
        """Returns the mean over the users with a value; None if there are none.

        For a pooled metric it is the value of all users.
        """
        if not self.users_of(key):
            return None
        column = self._columns[key]
        if isinstance(column, np.ndarray):
            return float(np.nanmean(column))
        value = float(column.of_sums(column.of_users.sum(axis=0)))
        return None if np.isnan(value) else value

    def users_of(self, key: Key) -> int:
        """Returns the number of users with a value."""
        column = self._columns.get(key)
        if column is None:
            return 0
        if isinstance(column, np.ndarray):
            return int((~np.isnan(column)).sum())
        return int(column.of_users.any(axis=1).sum())

    def resample(self, keys: Iterable[Key]) -> None:
        """Resamples the means of `keys`, all with the same draws of users."""
        means: dict[Key, np.ndarray] = {}
        for key in dict.fromkeys(keys):
            column = self._columns.get(key)
            if isinstance(column, np.ndarray):
                means[key] = column
            elif column is not None:
                self._samples[key] = resampled_values(column, self._draws, self._seed)
        if means:
            columns = np.stack([*means.values()], axis=1)
            samples = resampled_means(columns, self._draws, self._seed)
            self._samples.update(zip(means, samples.T, strict=True))

    def interval(self, key: Key) -> Interval | None:
        """Returns the interval of a mean; None if too few users have a value."""
        if key not in self._samples or not self._has_enough(key):
            return None
        return interval(self._samples[key], self._confidence)

    def difference(self, key: Key, other: str) -> Difference | None:
        """Returns the difference of `key` from the mean of system `other`; None without values."""
        theirs = key._replace(system=other)
        ours, base = self.mean(key), self.mean(theirs)
        if ours is None or base is None:
            return None
        relative, relative_interval = None, None
        if base > 0:
            relative = ours / base - 1.0
            if key in self._samples and self._has_enough(key):
                with np.errstate(invalid="ignore", divide="ignore"):
                    ratios = self._samples[key] / self._samples[theirs] - 1.0
                relative_interval = interval(ratios, self._confidence)
        return Difference(relative, relative_interval, ours - base, self.margin(key, other, 1.0))

    def margin(self, key: Key, other: str, ratio: float) -> Interval | None:
        """Returns the interval of the mean minus `ratio` times the other's.

        None if too few users have a value.
        """
        theirs = key._replace(system=other)
        if key not in self._samples or theirs not in self._samples:
            return None
        if not self._has_enough(key):
            return None
        return interval(self._samples[key] - ratio * self._samples[theirs], self._confidence)

    def _has_enough(self, key: Key) -> bool:
        return self.users_of(key) >= _FEWEST_USERS
