"""The means, intervals, comparisons and slices of `evaluation.json`.

Intervals and differences of means over users are computed by the paired bootstrap. Each resample
draws as many users as there are, with replacement, and computes all means from the same users. So
the figures of two models are paired, and the effect of easy or hard users cancels out (Efron and
Tibshirani, 1993, ch. 13; Sakai, 2006, for retrieval). Intervals are percentile intervals. Those of
metrics that noise raises, such as a calibration error, are first moved to have their median at the
value.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from typing import Any, NamedTuple

import numpy as np

from recsys.evaluation.config import EvaluateStage
from recsys.metrics import Statistics, metric_name, per_user, without_label
from recsys.tasks.judging_side import (
    BLESSED,
    MODEL,
    STAGES,
    Case,
    JudgingSide,
    Measured,
    Slice,
)

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


def resampled_values(
    statistics: Iterable[Statistics], resamples: int, seed: int = 0
) -> list[np.ndarray]:
    """Returns the values `[resamples]` of pooled metrics for the same resampled users."""
    pooled = list(statistics)
    values: list[list[np.ndarray]] = [[] for _ in pooled]
    for n in _draws(len(pooled[0].counts), resamples, seed):
        for own, one in zip(values, pooled, strict=True):
            counts = n if one.counts.all() else n * one.counts
            own.append(np.asarray(one.of_counts(counts), np.float64))
    return [_centred(np.concatenate(own), one) for own, one in zip(values, pooled, strict=True)]


def _centred(samples: np.ndarray, statistics: Statistics) -> np.ndarray:
    """Returns the samples `[resamples]` of a biased metric around its value, and others as is."""
    known = samples[~np.isnan(samples)]
    if not statistics.is_biased or not len(known):
        return samples
    return samples + (statistics.value - np.median(known))


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
            values: Value of each query `[queries]`, or NaN; or a pooled metric, whose users are in
                ascending order.
        """
        if isinstance(values, np.ndarray):
            values = per_user(values, self._user, self.n_users)
        self._columns[key] = values

    @property
    def baselines(self) -> list[str]:
        """Names of the systems other than the model, its stages and the last blessed model."""
        systems = dict.fromkeys(key.system for key in self._columns)
        return [system for system in systems if system not in (MODEL, BLESSED, *STAGES)]

    def mean(self, key: Key) -> float | None:
        """Returns the mean over the users with a value; None if there are none.

        For a pooled metric it is the value of all users.
        """
        if not self.users_of(key):
            return None
        column = self._columns[key]
        if isinstance(column, np.ndarray):
            return float(np.nanmean(column))
        value = column.value
        return None if np.isnan(value) else value

    def users_of(self, key: Key) -> int:
        """Returns the number of users with a value."""
        column = self._columns.get(key)
        if column is None:
            return 0
        if isinstance(column, np.ndarray):
            return int((~np.isnan(column)).sum())
        return int((column.counts > 0).sum())

    def resample(self, keys: Iterable[Key]) -> None:
        """Resamples the means of `keys`, all with the same draws of users."""
        means: dict[Key, np.ndarray] = {}
        pooled: dict[Key, Statistics] = {}
        for key in dict.fromkeys(keys):
            column = self._columns.get(key)
            if isinstance(column, np.ndarray):
                means[key] = column
            elif column is not None:
                pooled[key] = column
        if means:
            columns = np.stack([*means.values()], axis=1)
            samples = resampled_means(columns, self._draws, self._seed)
            self._samples.update(zip(means, samples.T, strict=True))
        if pooled:
            values = resampled_values(pooled.values(), self._draws, self._seed)
            self._samples.update(zip(pooled, values, strict=True))

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


# --- of one case


class Figures:
    """All means, intervals and comparisons of one case.

    Args:
        stage: Cut-offs, thresholds, and options of the intervals.
        side: Judging side of the task.
        case: Case on which the systems were measured.
        measured: The model, each baseline and, under `blessed_model`, the last blessed model.
        slices: Slices to compute figures for.

    Attributes:
        means: Means over users, with their intervals.
        lower: Keys of the metrics of which lower values are better.
    """

    def __init__(
        self,
        stage: EvaluateStage,
        side: JudgingSide[Any, Any, Any],
        case: Case,
        measured: Mapping[str, Measured],
        slices: Iterable[Slice] = (),
    ) -> None:
        config = stage.evaluate
        self._stage, self._measured, self._slices = stage, measured, list(slices)
        self._others = [name for name in measured if name != MODEL]
        values, rules = measured[MODEL].values, {rule.metric for rule in stage.bless.all_rules()}
        deciding = [metric.name for metric in config.metrics if metric.decides]
        keys = {name: [key for key in values if metric_name(key) == name] for name in deciding}
        self.lower = frozenset(key for key in values if without_label(key) in config.lower_keys)
        self._accuracy = [key for own in keys.values() for key in own]
        usual = {key for name in side.sliced for key in keys.get(name, ())}
        self._sliced = [key for key in self._accuracy if key in usual | rules]
        self.means = UserMeans(case.user, config.resamples, config.confidence, config.seed)
        for name, system in measured.items():
            for key, x in system.values.items():
                self.means.add(Key(name, key), x)
            for part in self._slices:
                if part.which.any():
                    of_part = side.slice_values(part, case, system, self._sliced)
                    for key in self._sliced:
                        if key in of_part:
                            self.means.add(Key(name, key, part.name), of_part[key])
        names = [None, *(part.name for part in self._slices)]
        self.means.resample(
            Key(system, key, name)
            for name in names
            for system in measured
            for key in self._accuracy
            if name is None or key in rules
        )

    def metrics(self, system: str) -> dict[str, float]:
        """Returns every metric of a system over all queries."""
        measured = self._measured[system]
        means = {key: self.means.mean(Key(system, key)) for key in measured.values}
        known = {key: value for key, value in means.items() if value is not None}
        return {**known, **measured.totals}

    def intervals(self, system: str = MODEL) -> dict[str, list[float]]:
        """Returns the intervals of a system's metrics."""
        intervals = {key: self.means.interval(Key(system, key)) for key in self._accuracy}
        return {key: list(ends) for key, ends in intervals.items() if ends is not None}

    def comparisons(self) -> dict[str, dict[str, Any]]:
        """Returns the differences of the model from each other system, by metric."""
        return {
            other: {
                key: difference
                for key in self._accuracy
                if (difference := self._difference(Key(MODEL, key), other)) is not None
            }
            for other in self._others
        }

    def slices(self) -> list[dict[str, Any]]:
        """Returns the figures of each slice."""
        return [self._slice(part) for part in self._slices]

    def _slice(self, part: Slice) -> dict[str, Any]:
        key = Key(MODEL, self._stage.bless.metric, part.name)
        interval = self.means.interval(key)
        figures = {name: self._of_slice(name, part) for name in self._measured}
        return {
            "kind": part.kind,
            "name": part.name,
            "of": part.of,
            "note": part.note,
            **part.sizes,
            "is_small": part.sizes["users"] < self._stage.evaluate.small_slice,
            "metrics": figures[MODEL],
            "interval": None if interval is None else list(interval),
            "baselines": {name: figures[name] for name in self.means.baselines},
            "blessed_model": figures.get(BLESSED),
            **{stage: {"metrics": figures[stage]} for stage in STAGES if stage in figures},
            "comparisons": {other: self._difference(key, other) for other in self._others},
        }

    def _of_slice(self, system: str, part: Slice) -> dict[str, float]:
        if not part.which.any():
            return dict.fromkeys(self._sliced, 0.0)
        values = {key: self.means.mean(Key(system, key, part.name)) for key in self._sliced}
        return {key: value for key, value in values.items() if value is not None}

    def _difference(self, key: Key, other: str) -> dict[str, Any] | None:
        difference = self.means.difference(key, other)
        return None if difference is None else dataclasses.asdict(difference)
