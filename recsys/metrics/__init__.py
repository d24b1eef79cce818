"""The base classes of metrics, and the ranked lists that they are computed from.

A query has one or more positives. The rank of a positive is its position (1 is best) in the list
of all candidates without those that the user has seen. Items with equal scores are ordered by
row, so no two items share a rank. A metric is averaged over the queries of each user, then over
users, so a user with a thousand events counts as much as one with a single event.

The built-in metrics of retrieval are in `recsys.metrics.rankings`: recall, precision, hit_rate,
ndcg, map, mrr, auc; novelty, diversity, popularity_lift, coverage, gini. Those of ranking are in
`recsys.metrics.scores`: roc_auc, gauc, log_loss, normalized_entropy, calibration_error, list_ndcg;
squared_error, absolute_error. Another class is registered with
`recsys.register_metric`, see `examples/custom_metric.py`.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, ClassVar, Literal, NamedTuple

import numpy as np

from recsys import registry
from recsys.errors import RecsysError
from recsys.ragged import RaggedRows
from recsys.strict import Strict

_BLOCK_ROWS = 2**22


@dataclasses.dataclass(frozen=True)
class Items:
    """Facts about items that metrics use.

    Attributes:
        counts: Training positives of each item row `[item rows]`.
        is_candidate: Whether each item row is an item `[item rows]` bool.
        embeddings: Embeddings that measure the similarity of items `[item rows, dim]` float32,
            equal for all systems that are compared. If several processes evaluate, they are on
            devices: `embeddings[rows]` reads some rows into memory, `np.asarray` all.
    """

    counts: np.ndarray
    is_candidate: np.ndarray
    embeddings: Any

    @functools.cached_property
    def information(self) -> np.ndarray:
        """Self-information of each item row `[item rows]` float64 [bits].

        -log2 of its share of the training positives, with 1 added to each count so that no
        share is 0.
        """
        n_items = int(self.is_candidate.sum())
        total = float(self.counts[self.is_candidate].sum()) + n_items
        return np.asarray(-np.log2((self.counts + 1.0) / total))


@dataclasses.dataclass(frozen=True)
class RankedLists:
    """Ranks of the positives of some queries, and the recommended lists.

    Attributes:
        ranks: Rank of each positive `[positives]`, from 1; above `n_ranked`, and then
            infinite, if the positive is not a candidate.
        query: Query of each positive `[positives]`, in 0 … `n_queries` - 1, ascending.
        n_queries: Number of queries.
        n_ranked: Number of ranked items of each query `[n_queries]`, or None if unknown.
        top: Item rows of each list `[n_queries, largest k]`, best first, padded with 0; None if
            only ranks are available.
        items: The items; None without `top`.
        rows: Item row of each positive `[positives]`, or None if unknown.
        user: User of each query `[n_queries]`; None if each query has its own user.
        popularity_before: Mean training positives of the items in the history of each query's
            user `[n_queries]`, NaN for an empty history; None if unknown. See
            `popularity_before`.
    """

    ranks: np.ndarray
    query: np.ndarray
    n_queries: int
    n_ranked: np.ndarray | None = None
    top: np.ndarray | None = None
    items: Items | None = None
    rows: np.ndarray | None = None
    user: np.ndarray | None = None
    popularity_before: np.ndarray | None = None

    def __post_init__(self) -> None:
        """Sets the rank of positives that are not candidates to infinity."""
        if self.n_ranked is not None:
            ranks = np.where(self.ranks > self.n_ranked[self.query], np.inf, self.ranks)
            object.__setattr__(self, "ranks", ranks)

    @functools.cached_property
    def n_positives(self) -> np.ndarray:
        """Positives of each query `[n_queries]` int64."""
        return np.bincount(self.query, minlength=self.n_queries)

    @functools.cached_property
    def nth(self) -> np.ndarray:
        """Rank of each positive among the positives of its query `[positives]`, from 1."""
        order = np.lexsort((self.ranks, self.query))
        first = np.concatenate([[0], np.cumsum(self.n_positives)])
        nth = np.empty(len(self.ranks), np.int64)
        nth[order] = np.arange(1, len(self.ranks) + 1) - first[self.query[order]]
        return nth

    def sum_by_query(self, values: np.ndarray) -> np.ndarray:
        """Returns the sums `[n_queries]` float64 of `values` `[positives]` over each query."""
        return np.bincount(self.query, values, self.n_queries)

    def times_shown(self, k: int) -> np.ndarray:
        """Returns the number of lists with each catalogue item in their first k `[items]`."""
        top, items = self.lists()
        return times_shown(top, len(items.is_candidate), k)[items.is_candidate]

    def lists(self) -> tuple[np.ndarray, Items]:
        """Returns the lists and items. Raises ValueError if only ranks are available."""
        if self.top is None or self.items is None:
            raise ValueError("this metric needs whole lists, but only ranks are available")
        return self.top, self.items

    def user_mean(self, values: np.ndarray) -> float | None:
        """Returns the mean over users of their mean `values` `[n_queries]`; None if all NaN."""
        user = np.arange(self.n_queries) if self.user is None else self.user
        users, index = np.unique(user, return_inverse=True)
        means = per_user(values, index, len(users))
        return None if np.isnan(means).all() else float(np.nanmean(means))


class Metric(Strict):
    """A metric with a value for each query; register a subclass with `recsys.register_metric`.

    Its fields are its options in a config. The blessing can use it if `decides` is True and
    `better` isn't None.
    """

    title: ClassVar[str]
    """Display name in the report."""
    meaning: ClassVar[str]
    """Meaning of a value, in one line of the report."""
    task: ClassVar[str] = "retrieval"
    """Name of the task whose answers it measures."""
    better: ClassVar[Literal["higher", "lower"] | None] = "higher"
    """Which values are better; None for neither."""
    decides: ClassVar[bool] = True
    """Whether the blessing can use it; it then has an interval and slices."""
    has_cut_off: ClassVar[bool] = True
    """Whether it is computed at each `evaluate.k`, as `name@k`."""
    needs_lists: ClassVar[bool] = False
    """Whether it needs the recommended lists as well as the ranks of the positives."""

    @property
    def name(self) -> str:
        """Registered name of the class."""
        return registry.name_of("metric", self)

    def per_query(self, lists: RankedLists, k: int) -> np.ndarray:
        """Returns the value of each query `[n_queries]` float64; NaN if it has none.

        Args:
            lists: Ranks of the positives and recommended lists.
            k: Cut-off [items]; 0 for a metric without cut-offs.
        """
        raise NotImplementedError

    def at_cut_offs(self, lists: RankedLists, ks: Sequence[int]) -> list[np.ndarray]:
        """Returns `per_query` for each cut-off; override it to share work between them."""
        return [self.per_query(lists, k) for k in ks]

    def keys(self, ks: Iterable[int]) -> list[str]:
        """Returns the names of its values: `recall@10`, or `mrr`."""
        return [f"{self.name}@{k}" for k in ks] if self.has_cut_off else [self.name]

    def values(self, lists: RankedLists, ks: Sequence[int]) -> dict[str, np.ndarray]:
        """Returns the values of each query `[n_queries]` by key.

        Raises:
            RecsysError: `per_query` returned another shape or type (R334).
        """
        keys, cut_offs = self.keys(ks), list(ks) if self.has_cut_off else [0]
        found = [np.asarray(values) for values in self.at_cut_offs(lists, cut_offs)]
        wanted = [(lists.n_queries,)] * len(keys)
        if [x.shape for x in found] != wanted or any(x.dtype.kind not in "fiub" for x in found):
            raise RecsysError(
                "R334",
                f"per_query() of the metric {self.name!r} must return a number for each of the"
                f" {lists.n_queries:,} queries.",
                "Return an array [n_queries], NaN for a query without a value:"
                " lists.sum_by_query(…) sums over positives.",
                [f"{x.dtype}{list(x.shape)}" for x in found],
            )
        return dict(zip(keys, found, strict=True))

    def describe(self) -> dict[str, Any]:
        """Returns the metric's fields in the report."""
        return {"title": self.title, "meaning": self.meaning, "better": self.better}


class CatalogueMetric(Metric):
    """A metric of all lists together, without values for single queries."""

    better: ClassVar[Literal["higher", "lower"] | None] = None
    decides: ClassVar[bool] = False
    needs_lists: ClassVar[bool] = True

    def total(self, lists: RankedLists, k: int) -> float | None:
        """Returns the value of all lists; None if there is none.

        Args:
            lists: Ranks of the positives and recommended lists.
            k: Cut-off [items].
        """
        raise NotImplementedError


class Statistics(NamedTuple):
    """A `PooledMetric` as a function of how often each user counts.

    Attributes:
        counts: How often each user counts `[n_users]`: 1, or 0 without anything measured.
        of_counts: Computes values `[...]` from counts `[..., n_users]` float64.
        is_biased: Whether noise moves resamples to one side, such as above the value. The bootstrap
            then moves them back, so that their median is the value.
    """

    counts: np.ndarray
    of_counts: Callable[[np.ndarray], np.ndarray]
    is_biased: bool = False

    @classmethod
    def of_sums(
        cls, of_users: np.ndarray, of_sums: Callable[[np.ndarray], np.ndarray]
    ) -> Statistics:
        """Returns the function that sums over users.

        Args:
            of_users: Statistics of each user `[n_users, n_statistics]` float64.
            of_sums: Computes values `[...]` from sums over users `[..., n_statistics]`.
        """
        has_any = np.asarray(of_users.any(axis=1))
        return cls(has_any, lambda counts: of_sums(counts @ of_users))

    @property
    def value(self) -> float:
        """Value of all users; NaN if there is none."""
        return float(self.of_counts(self.counts.astype(np.float64)))


class PooledMetric(Metric):
    """A metric of all users together: AUC, calibration error.

    The bootstrap recomputes it for the drawn users, from sums over them. One that is not computed
    from sums overrides `statistics` instead of `of_users` and `of_sums`.
    """

    has_cut_off: ClassVar[bool] = False

    def of_users(self, answers: Any) -> np.ndarray:
        """Returns the statistics of each user `[n_users, n_statistics]` float64, which add up.

        Args:
            answers: Measured answers, as the task's judging side returns them; `RankedLists` for
                retrieval, `ScoredRows` for ranking. Users are in the order of `np.unique`.
        """
        raise NotImplementedError

    def of_sums(self, sums: np.ndarray) -> np.ndarray:
        """Returns the values `[...]` of sums over users `[..., n_statistics]`; NaN for none."""
        raise NotImplementedError

    def statistics(self, answers: Any) -> Statistics:
        """Returns the metric as a function of how often each user counts."""
        return Statistics.of_sums(self.of_users(answers), self.of_sums)


def without_label(key: str) -> str:
    """Returns the key of a metric without its label: `roc_auc` of `roc_auc.buy`."""
    return key.partition(".")[0]


def metric_name(key: str) -> str:
    """Returns the metric's name in a key: `recall` of `recall@10`, `roc_auc` of `roc_auc.buy`."""
    return without_label(key).partition("@")[0]


Metrics = dict[str, np.ndarray]
Values = Mapping[str, "np.ndarray | Statistics"]
"""Value of each query `[n_queries]` float64, or of all users, by key."""


def per_query(metrics: Iterable[Metric], lists: RankedLists, ks: Sequence[int]) -> Metrics:
    """Returns the values of each query `[n_queries]` float64 by key, cut-offs in order of `ks`."""
    computed: Metrics = {}
    for metric in metrics:
        if not isinstance(metric, CatalogueMetric | PooledMetric):
            computed |= metric.values(lists, ks)
    return computed


def totals(metrics: Iterable[Metric], lists: RankedLists, ks: Sequence[int]) -> dict[str, float]:
    """Returns the values of catalogue metrics by key, without metrics that have no value."""
    computed = {
        key: metric.total(lists, k)
        for metric in metrics
        if isinstance(metric, CatalogueMetric)
        for key, k in zip(metric.keys(ks), ks if metric.has_cut_off else [0], strict=False)
    }
    return {key: value for key, value in computed.items() if value is not None}


def pooled(metrics: Iterable[Metric], answers: Any) -> dict[str, Statistics]:
    """Returns the statistics of the pooled metrics by key."""
    own = (metric for metric in metrics if isinstance(metric, PooledMetric))
    return {metric.name: metric.statistics(answers) for metric in own}


def per_user(values: np.ndarray, user: np.ndarray, n_users: int) -> np.ndarray:
    """Returns the mean of `values` `[n]` over each user's queries `[n_users]`.

    Queries with value NaN are left out; users without other queries get NaN.
    """
    is_known = ~np.isnan(values)
    counts = np.bincount(user[is_known], minlength=n_users)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(user[is_known], values[is_known], n_users) / counts)


def times_shown(top: np.ndarray, n_rows: int, k: int) -> np.ndarray:
    """Returns the number of lists `[queries, largest k]` with each item row in their first k."""
    rows = top[:, :k]
    return np.bincount(rows[rows > 0], minlength=n_rows)


def popularity_before(seen: RaggedRows, items: Items) -> np.ndarray:
    """Returns the mean training positives of the items in each query's history `[queries]`.

    Rows that are not items are left out; a history without items gives NaN.

    Args:
        seen: Item rows in the history of each query's user.
        items: The items.
    """
    means = np.full(len(seen), np.nan)
    for block in seen.blocks(_BLOCK_ROWS):
        part = seen.part(block)
        is_item = items.is_candidate[part.rows]
        owner, counts = part.owner()[is_item], items.counts[part.rows[is_item]]
        with np.errstate(invalid="ignore"):
            sums = np.bincount(owner, counts, len(part))
            means[block] = sums / np.bincount(owner, minlength=len(part))
    return means
