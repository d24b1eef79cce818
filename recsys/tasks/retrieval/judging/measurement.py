"""Measures systems: ranks, top lists, and the metrics of each query."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Collection, Mapping
from typing import Any

import numpy as np

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
from recsys.tasks.judging_side import Progress
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


def measure(
    scorer: Scorer,
    case: Case,
    is_candidate: np.ndarray | None = None,
    progress: Progress | None = None,
) -> Measured:
    """Measures a system.

    Args:
        scorer: Scorer of the system.
        case: The shared inputs.
        is_candidate: Item rows that it can recommend `[item rows]` bool; None: all items.
        progress: Called with the number of finished queries and the total.

    Raises:
        RecsysError: A score is NaN (R405).
    """
    started = time.monotonic()
    ranking = case.rank(scorer, is_candidate, progress)
    return case.measured(ranking, time.monotonic() - started)
