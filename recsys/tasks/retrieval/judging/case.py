"""The case on which systems are measured: ranks, lists, metrics of each query, and slices.

A slice of queries consists of whole queries. A slice of positives consists of held-out events:
their ranks are those in the whole list, and other events don't count as labels.
"""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.formats import counted
from recsys.kernels.rank_jobs import RankResults
from recsys.metrics import (
    Items,
    Metric,
    RankedLists,
    Values,
    per_query,
    pooled,
    popularity_before,
    totals,
)
from recsys.ragged import RaggedRows
from recsys.tasks import judging_side
from recsys.tasks.judging_side import Progress, Slice, slices_of_feature
from recsys.tasks.retrieval.judging.queries import Queries, Repeats
from recsys.tasks.retrieval.judging.ranking import rank, rank_sampled
from recsys.tasks.retrieval.judging.scores import Scorer


@dataclasses.dataclass(frozen=True)
class Case:
    """The inputs that all measured systems share.

    Attributes:
        queries: The queries with their positives.
        items: Popularity and features of the items.
        ks: Cut-offs, ascending.
        metrics: The metrics to compute.
        mask_seen: Whether items of the user's history are left out of the list.
        sampled_negatives: Number of random items to rank the positives among; None: all items.
        seed: Seed of this sample.
        repeats: Counts of the positives that repeat an item; None if unknown.
        counts: Fields of `evaluation.json`.
    """

    queries: Queries
    items: Items
    ks: tuple[int, ...]
    metrics: tuple[Metric, ...]
    mask_seen: bool = True
    sampled_negatives: int | None = None
    seed: int = 0
    repeats: Repeats | None = None
    counts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def user(self) -> np.ndarray:
        """Index of each query's user `[n]`."""
        return self.queries.user

    @functools.cached_property
    def masked(self) -> RaggedRows:
        """Item rows that each query's list leaves out."""
        seen = self.queries.seen
        return seen if self.mask_seen else RaggedRows.empty(len(seen))

    @functools.cached_property
    def popularity_before(self) -> np.ndarray:
        """Mean popularity of the items in each query's history `[queries]`."""
        return popularity_before(self.queries.seen, self.items)

    @property
    def computed(self) -> tuple[Metric, ...]:
        """The metrics that can be computed: sampled negatives give no whole lists."""
        if self.sampled_negatives is None:
            return self.metrics
        return tuple(metric for metric in self.metrics if not metric.needs_lists)

    def rank(
        self,
        scorer: Scorer,
        is_candidate: np.ndarray | None = None,
        progress: Progress | None = None,
    ) -> RankResults:
        """Ranks the positives by the scores of a system; see `measure`."""
        positives, is_item = self.queries.positives, self.items.is_candidate
        own, negatives = is_item if is_candidate is None else is_candidate, self.sampled_negatives
        if negatives is None:
            return rank(scorer, positives, self.masked, own, max(self.ks), progress)
        return rank_sampled(scorer, positives, self.masked, own, is_item, negatives, self.seed)

    def measure(
        self,
        scorer: Scorer,
        is_candidate: np.ndarray | None = None,
        progress: Progress | None = None,
    ) -> Measured:
        """Measures a system.

        Args:
            scorer: Scorer of the system.
            is_candidate: Item rows that it can recommend `[item rows]` bool; None: all items.
            progress: Called with the number of finished queries and the total.

        Raises:
            RecsysError: A score is NaN (R405).
        """
        started = time.monotonic()
        ranking = self.rank(scorer, is_candidate, progress)
        return self.measured(ranking, time.monotonic() - started)

    def measured(self, ranking: RankResults, seconds: float) -> Measured:
        """Returns the metrics of a system whose ranking took `seconds`."""
        started, lists = time.monotonic(), self.lists(ranking)
        values = self.values(lists, self.computed)
        overall = totals(self.computed, lists, self.ks)
        return Measured(values, overall, seconds + time.monotonic() - started, ranking)

    def values(self, lists: RankedLists, metrics: Collection[Metric]) -> Values:
        """Returns the values of some metrics by key."""
        return {**per_query(metrics, lists, self.ks), **pooled(metrics, lists)}

    def lists(self, ranking: RankResults, which: np.ndarray | None = None) -> RankedLists:
        """Returns the inputs of the metrics.

        Args:
            ranking: The ranks and lists of a system.
            which: Mask of the positives to count `[positives]` bool; None: all.
        """
        positives = self.queries.positives
        chosen = slice(None) if which is None else which
        is_whole = self.sampled_negatives is None
        return RankedLists(
            ranks=ranking.ranks[chosen],
            query=positives.owner()[chosen],
            n_queries=len(self.queries),
            n_ranked=ranking.n_ranked,
            top=ranking.top if is_whole else None,
            items=self.items,
            rows=positives.rows[chosen],
            user=self.queries.user,
            popularity_before=self.popularity_before if is_whole else None,
        )


@dataclasses.dataclass(frozen=True)
class Measured(judging_side.Measured):
    """The values of one system.

    Attributes:
        ranking: Ranks of the positives, and the lists.
    """

    ranking: RankResults


# --- slices

_REPEATS, _AGAIN = "repeats", "again"
_NEVER = "left out of all figures: what a user has seen is never recommended"
_HOUR_S = 3600
_DAY_S = 24 * _HOUR_S
_ACTIVITY = {
    0: "no history",
    1: "1 to 5 events before",
    6: "6 to 20 events before",
    21: "21 to 100 events before",
    101: "more than 100 events before",
}
"""Names of slices by the lowest number of events before the query."""
_RECENCY = {
    0: "back within an hour",
    _HOUR_S: "back within a day",
    _DAY_S: "back within a week",
    7 * _DAY_S: "back within 30 days",
    30 * _DAY_S: "back after more than 30 days",
}
"""Names of slices by the shortest time since the user's last event [s]."""


def make_slices(
    queries: Queries,
    is_trained: np.ndarray,
    is_repeated: np.ndarray,
    counts: np.ndarray,
    catalogue: Catalogue,
    user_features: Sequence[FeatureBags] = (),
    names: Sequence[str] = (),
) -> list[Slice]:
    """Returns the slices that are not empty, grouped by kind.

    Args:
        queries: The queries.
        is_trained: Whether each query's user has training events `[queries]` bool.
        is_repeated: Whether each positive has an item that its user has seen
            `[positives]` bool.
        counts: Number of training positives of each item row `[item rows]`.
        catalogue: The items.
        user_features: Features of the users, by user row.
        names: Features with a slice for each value.
    """
    rows = queries.positives.rows
    parts = [
        Slice("users", "users known to training", "queries", is_trained),
        Slice("users", "cold users", "queries", ~is_trained, "no event that training saw"),
        *_between("user activity", np.diff(queries.seen.offsets), _ACTIVITY),
        *([] if queries.idle_s is None else _between("recency", queries.idle_s, _RECENCY)),
        *_popularity(rows, counts, catalogue.is_item),
    ]
    if is_repeated.any():
        first_time, again = "new to their user", "their user had seen the item before"
        parts.append(Slice(_REPEATS, "first time", "positives", ~is_repeated, first_time))
        parts.append(Slice(_REPEATS, _AGAIN, "positives", is_repeated, again))
    for name in names:
        for feature in catalogue.features:
            if feature.name == name and not feature.floats:
                parts += slices_of_feature(feature, rows, "positives")
        for feature in user_features:
            if feature.name == name and not feature.floats:
                parts += slices_of_feature(feature, queries.user_row, "queries")
    return [part for part in parts if part.which.any()]


def with_sizes(part: Slice, queries: Queries) -> Slice:
    """Returns a slice with its numbers of users, queries and positives."""
    owner, which = queries.positives.owner(), part.which
    if part.of == "queries":
        chosen, n_positives = np.flatnonzero(which), int(which[owner].sum())
    else:
        chosen, n_positives = np.unique(owner[which]), int(which.sum())
    sizes = {"users": len(np.unique(queries.user[chosen])), "queries": len(chosen)}
    return dataclasses.replace(part, sizes={**sizes, "positives": n_positives})


def never_found(repeats: Repeats) -> Slice:
    """Returns the slice of the positives that no list can contain."""
    sizes = {name: getattr(repeats, name) for name in ("users", "queries", "positives")}
    return Slice(_REPEATS, _AGAIN, "positives", np.zeros(0, bool), _NEVER, sizes)


def _between(kind: str, values: np.ndarray, names: Mapping[int, str]) -> Iterator[Slice]:
    """Yields slices of queries whose values are from each key of `names` up to the next."""
    for (low, name), high in zip(names.items(), [*list(names)[1:], np.inf], strict=True):
        yield Slice(kind, name, "queries", (values >= low) & (values < high))


def _popularity(rows: np.ndarray, counts: np.ndarray, is_item: np.ndarray) -> Iterator[Slice]:
    """Yields thirds of the training positives, the most popular items first, and new items."""
    counts = np.where(is_item, counts, 0)
    order = np.argsort(-counts, kind="stable")
    before = np.cumsum(counts[order]) - counts[order]
    third = np.empty(len(counts), np.int64)
    third[order] = np.minimum(3 * before // max(1, counts.sum()), 2)
    for place, name in enumerate(("head", "torso", "tail")):
        items = (third == place) & (counts > 0)
        yield Slice("item popularity", name, "positives", items[rows], _range(counts[items]))
    cold = is_item & (counts == 0)
    yield Slice("item popularity", "cold items", "positives", cold[rows], "no training event")


def _range(counts: np.ndarray) -> str:
    if not len(counts):
        return ""
    items = counted(len(counts), "item", "items")
    return f"{items} with {counts.min():,} to {counts.max():,} training events"
