"""Metrics of the scores of rows: probabilities of a label, or predicted amounts.

All are `PooledMetric`s of `ScoredRows`, so the bootstrap draws whole users. They equal those of
scikit-learn where it has them, with weights and ties.
"""

from __future__ import annotations

import dataclasses
import functools
from typing import ClassVar, Literal

import numpy as np
from pydantic import PositiveInt

from recsys.errors import RecsysError
from recsys.metrics import PooledMetric, Statistics
from recsys.ragged import run_starts

LabelKind = Literal["yes_no", "amount"]


@dataclasses.dataclass(frozen=True)
class ScoredRows:
    """Rows with a known label, and their scores.

    Attributes:
        score: Probability of the label, or predicted amount `[n]` float64.
        label: Label: 0 or 1, or an amount `[n]`.
        weight: Weight of each row `[n]`; None: 1.
        user: User of each row `[n]`, in 0 … `n_users` - 1.
        n_users: Number of users; a slice keeps those without rows.
        impression: Impression of each row `[n]`, 0 for none; None if there are none.
    """

    score: np.ndarray
    label: np.ndarray
    weight: np.ndarray | None
    user: np.ndarray
    n_users: int
    impression: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Checks that every score is finite (R405)."""
        bad = np.flatnonzero(~np.isfinite(self.score))
        if len(bad):
            raise RecsysError(
                "R405",
                "Every score must be finite, otherwise metrics are undefined.",
                "Correct the model, or train again with lower learning rates.",
                f"{self.score[bad[0]]} for row {bad[0]}, {len(bad):,} of {len(self.score):,} rows",
            )

    @functools.cached_property
    def weights(self) -> np.ndarray:
        """Weight of each row `[n]` float64."""
        if self.weight is None:
            return np.ones(len(self.score))
        return np.asarray(self.weight, np.float64)

    def select(self, which: np.ndarray) -> ScoredRows:
        """Returns the rows of a mask `[n]` bool, or of an index, with all users."""
        return ScoredRows(
            self.score[which],
            self.label[which],
            None if self.weight is None else self.weight[which],
            self.user[which],
            self.n_users,
            None if self.impression is None else self.impression[which],
        )

    def sum_by_user(self, values: np.ndarray) -> np.ndarray:
        """Returns the sums `[n_users]` float64 of `values` `[n]` over each user."""
        return np.bincount(self.user, values, self.n_users)


class ScoreMetric(PooledMetric):
    """A metric of `ScoredRows`."""

    task: ClassVar[str] = "ranking"
    label_kinds: ClassVar[tuple[LabelKind, ...]] = ("yes_no",)
    """Kinds of label that it is computed for."""


class _Ratio(ScoreMetric):
    """A ratio of two sums over users: a weighted mean."""

    def of_sums(self, sums: np.ndarray) -> np.ndarray:
        """Returns the ratios `[...]` float64."""
        return _ratio(sums[..., 0], sums[..., 1])


class _MeanOfRows(_Ratio):
    """A weighted mean over rows; lower values are better."""

    better: ClassVar[Literal["higher", "lower"] | None] = "lower"

    def of_rows(self, rows: ScoredRows) -> np.ndarray:
        """Returns the value of each row `[n]` float64."""
        raise NotImplementedError

    def of_users(self, answers: ScoredRows) -> np.ndarray:
        """Returns the sums of values and weights `[n_users, 2]` float64."""
        sums = [answers.weights * self.of_rows(answers), answers.weights]
        return np.stack([answers.sum_by_user(values) for values in sums], axis=1)


# --- order


class RocAuc(ScoreMetric):
    """Area under the receiver operating characteristic.

    A resample weighs each row by how often its user is drawn. The rows are sorted only once, so it
    takes a time that is linear in the rows.
    """

    title = "ROC AUC"
    meaning = "probability that a row with label 1 has a higher score than one with label 0"

    def statistics(self, answers: ScoredRows) -> Statistics:
        """Returns the area as a function of how often each user counts."""
        order = np.argsort(answers.score, kind="stable")
        is_positive = answers.label[order] > 0
        positive, negative = order[is_positive], order[~is_positive]
        # Negatives with lower scores, and with lower or equal ones, for each positive.
        ends = [
            np.searchsorted(answers.score[negative], answers.score[positive], side).astype(np.int32)
            for side in ("left", "right")
        ]
        has_ties = bool((ends[0] != ends[1]).any())
        users = [answers.user[which].astype(np.int32) for which in (positive, negative)]
        weight = answers.weight
        weights = [None if weight is None else weight[which] for which in (positive, negative)]

        def area(counts: np.ndarray) -> float:
            above, other = (
                counts[user] if w is None else counts[user] * w
                for user, w in zip(users, weights, strict=True)
            )
            below = np.zeros(len(other) + 1)
            np.cumsum(other, out=below[1:])
            n_below = below[ends[0]]
            if has_ties:
                n_below = (n_below + below[ends[1]]) / 2
            return float(_ratio(above @ n_below, above.sum() * below[-1]))

        def of_counts(counts: np.ndarray) -> np.ndarray:
            areas = [area(drawn) for drawn in counts.reshape(-1, answers.n_users)]
            return np.array(areas).reshape(counts.shape[:-1])

        return Statistics(answers.sum_by_user(answers.weights) > 0, of_counts)


class GroupedAuc(_Ratio):
    """Mean of the users' ROC AUC, each weighted by its rows.

    Users whose rows all have one label are left out. Source: Zhou et al., Deep Interest Network,
    KDD 2018.
    """

    title = "GAUC"
    meaning = "ROC AUC within each user, averaged over users by their rows"

    def of_users(self, answers: ScoredRows) -> np.ndarray:
        """Returns areas times weights, and weights `[n_users, 2]` float64."""
        order = np.lexsort((answers.score, answers.user))
        user, score, weight = answers.user[order], answers.score[order], answers.weights[order]
        is_positive = answers.label[order] > 0
        first = np.flatnonzero(run_starts(user, score))
        owner = user[first]
        positive = np.add.reduceat(np.where(is_positive, weight, 0.0), first)
        negative = np.add.reduceat(np.where(is_positive, 0.0, weight), first)
        n_positive, n_negative = (
            np.bincount(owner, values, answers.n_users) for values in (positive, negative)
        )
        # The sum over one user's few rows, of millions, is a difference of large sums.
        total = np.cumsum(negative, dtype=np.longdouble)
        start = np.cumsum(n_negative, dtype=np.longdouble) - n_negative
        below = (total - start[owner]).astype(np.float64) - negative / 2
        pairs = np.bincount(owner, positive * below, answers.n_users)
        areas = _ratio(pairs, n_positive * n_negative)
        weights = np.where(np.isnan(areas), 0.0, n_positive + n_negative)
        return np.stack([np.nan_to_num(areas) * weights, weights], axis=1)


class ListNdcg(_Ratio):
    """Normalised discounted cumulative gain of the rows of an impression, sorted by score.

    The gain is the label, and the discount log2(1 + rank). Rows with equal scores share the mean of
    their discounts: the expected value over their orders (McSherry and Najork, ECIR 2008). Lists
    whose labels are all equal are left out. The weights of rows are not used.
    """

    title = "list NDCG"
    meaning = "how early the list of an impression has the rows with high labels"
    label_kinds: ClassVar[tuple[LabelKind, ...]] = ("yes_no", "amount")

    def of_users(self, answers: ScoredRows) -> np.ndarray:
        """Returns sums over lists, and numbers of lists `[n_users, 2]` float64."""
        if answers.impression is None:
            return np.zeros((answers.n_users, 2))
        in_list = answers.impression > 0
        rows, impression = answers.select(in_list), answers.impression[in_list]
        label, lists = np.asarray(rows.label, np.float64), (impression, rows.user)
        order = np.lexsort((-rows.score, *lists))
        first = np.flatnonzero(run_starts(rows.user[order], impression[order]))
        sizes = np.diff(np.append(first, len(order)))
        rank = np.arange(len(order)) - np.repeat(first, sizes) + 1
        discount = 1.0 / np.log2(1.0 + rank)
        ties = np.flatnonzero(run_starts(np.repeat(first, sizes), rows.score[order]))
        n_tied = np.diff(np.append(ties, len(order)))
        shared = np.repeat(np.add.reduceat(discount, ties) / n_tied, n_tied)
        ideal = label[np.lexsort((-label, *lists))]
        differs = np.maximum.reduceat(ideal, first) > np.minimum.reduceat(ideal, first)
        gain, best = (
            np.add.reduceat(values, first)[differs]
            for values in (label[order] * shared, ideal * discount)
        )
        owner = rows.user[order][first][differs]
        n_lists = np.bincount(owner, minlength=rows.n_users)
        return np.stack([np.bincount(owner, _ratio(gain, best), rows.n_users), n_lists], axis=1)


# --- probabilities


class LogLoss(_MeanOfRows):
    """Mean negative log likelihood of labels."""

    title = "log loss"
    meaning = "mean negative log likelihood of the labels"

    def of_rows(self, rows: ScoredRows) -> np.ndarray:
        """Returns the loss of each row `[n]` float64."""
        return _log_losses(rows)


class NormalizedEntropy(ScoreMetric):
    """Log loss divided by the log loss of a constant, the rows' mean label.

    Source: He et al., Practical Lessons from Predicting Clicks on Ads at Facebook, ADKDD 2014.
    """

    title = "normalized entropy"
    meaning = "log loss over that of the mean label; 1 is no better than this constant"
    better: ClassVar[Literal["higher", "lower"] | None] = "lower"

    def of_users(self, answers: ScoredRows) -> np.ndarray:
        """Returns the sums of losses, labels and weights `[n_users, 3]` float64."""
        values = (_log_losses(answers), answers.label, 1.0)
        sums = [answers.sum_by_user(answers.weights * x) for x in values]
        return np.stack(sums, axis=1)

    def of_sums(self, sums: np.ndarray) -> np.ndarray:
        """Returns the ratios `[...]` float64; NaN if all labels are equal."""
        loss, mean = (_ratio(sums[..., i], sums[..., 2]) for i in (0, 1))
        with np.errstate(divide="ignore", invalid="ignore"):
            entropy = -(mean * np.log(mean) + (1.0 - mean) * np.log1p(-mean))
        return _ratio(loss, entropy)


class CalibrationError(ScoreMetric):
    """Expected calibration error: mean over bins of |mean label - mean probability|.

    Bins have equal weights; every resample has the bins of all rows. Equal probabilities are in
    one bin. Sources: Naeini et al., AAAI 2015; equal-mass bins: Roelofs et al., AISTATS 2022.
    """

    title = "calibration error"
    meaning = "how far probabilities are from the shares of label 1, in bins of equal size"
    better: ClassVar[Literal["higher", "lower"] | None] = "lower"

    bins: PositiveInt = 20
    """Number of bins."""

    def statistics(self, answers: ScoredRows) -> Statistics:
        """Returns the metric as a function of how often each user counts."""
        return super().statistics(answers)._replace(is_biased=True)

    def of_users(self, answers: ScoredRows) -> np.ndarray:
        """Returns excesses of labels by bin, and weights `[n_users, bins + 1]` float64."""
        place = answers.user * self.bins + equal_mass_bins(answers, self.bins)
        excess = answers.weights * (answers.label - answers.score)
        by_bin = np.bincount(place, excess, answers.n_users * self.bins)
        weights = answers.sum_by_user(answers.weights)[:, None]
        return np.concatenate([by_bin.reshape(-1, self.bins), weights], axis=1)

    def of_sums(self, sums: np.ndarray) -> np.ndarray:
        """Returns the errors `[...]` float64."""
        return _ratio(np.abs(sums[..., :-1]).sum(axis=-1), sums[..., -1])


def equal_mass_bins(rows: ScoredRows, n_bins: int) -> np.ndarray:
    """Returns the bin of each row `[n]` int64, in 0 … `n_bins` - 1, by ascending score.

    Bins have equal weights, except that rows with equal scores are in one bin.
    """
    order = np.argsort(rows.score, kind="stable")
    first = np.flatnonzero(run_starts(rows.score[order]))
    mass = np.add.reduceat(rows.weights[order], first)
    middle = np.cumsum(mass) - mass / 2
    found = np.nan_to_num(_ratio(middle * n_bins, mass.sum()))
    bins = np.empty(len(order), np.int64)
    bins[order] = np.repeat(found.astype(np.int64), np.diff(np.append(first, len(order))))
    return bins


# --- amounts


class SquaredError(_MeanOfRows):
    """Mean squared error."""

    title = "squared error"
    meaning = "mean squared difference of amounts from those predicted"
    label_kinds: ClassVar[tuple[LabelKind, ...]] = ("amount",)

    def of_rows(self, rows: ScoredRows) -> np.ndarray:
        """Returns the error of each row `[n]` float64."""
        return np.square(rows.score - rows.label)


class AbsoluteError(_MeanOfRows):
    """Mean absolute error."""

    title = "absolute error"
    meaning = "mean absolute difference of amounts from those predicted"
    label_kinds: ClassVar[tuple[LabelKind, ...]] = ("amount",)

    def of_rows(self, rows: ScoredRows) -> np.ndarray:
        """Returns the error of each row `[n]` float64."""
        return np.abs(rows.score - rows.label)


def _log_losses(rows: ScoredRows) -> np.ndarray:
    """Returns the log loss of each row `[n]`; probabilities are clipped as by scikit-learn."""
    smallest = np.finfo(np.float64).eps
    p = np.clip(np.asarray(rows.score, np.float64), smallest, 1.0 - smallest)
    return -(rows.label * np.log(p) + (1.0 - rows.label) * np.log1p(-p))


def _ratio(above: np.ndarray, below: np.ndarray) -> np.ndarray:
    """Returns the ratios `[...]` float64; NaN where `below` is 0."""
    return np.asarray(above / np.where(below > 0, below, np.nan))
