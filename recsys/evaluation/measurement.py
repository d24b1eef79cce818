"""Measures one system: ranks, top lists, and the metrics of each query."""

from __future__ import annotations

import dataclasses
import functools
import time

import numpy as np

from recsys.evaluation.queries import Queries
from recsys.evaluation.ranking import Ranking, rank, rank_sampled
from recsys.evaluation.scores import Progress, Scorer
from recsys.metrics.metric import (
    Items,
    Metric,
    Metrics,
    RankedLists,
    per_query,
    popularity_before,
    totals,
)
from recsys.ragged import RaggedRows


@dataclasses.dataclass(frozen=True)
class Case:
    """The inputs that all measured systems share.

    Attributes:
        queries: The queries with their positives.
        items: Popularity and features of the items.
        ks: Cut-offs, ascending.
        metrics: The metrics to compute.
        mask_seen: Whether items of the user's history are left out of the list.
        sampled_negatives: Items that a list is drawn from; None: all.
        seed: Seed of that draw.
    """

    queries: Queries
    items: Items
    ks: tuple[int, ...]
    metrics: tuple[Metric, ...]
    mask_seen: bool = True
    sampled_negatives: int | None = None
    seed: int = 0

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
        """The metrics that can be computed: among sampled items there are no whole lists."""
        if self.sampled_negatives is None:
            return self.metrics
        return tuple(metric for metric in self.metrics if not metric.needs_lists)

    def lists(self, ranking: Ranking, which: np.ndarray | None = None) -> RankedLists:
        """Returns the inputs of the metrics.

        Args:
            ranking: The ranks and lists of a system.
            which: The positives that count `[positives]` bool; None: all.
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
class Measured:
    """The measurements of one system.

    Attributes:
        ranking: Ranks of the positives, and the lists.
        per_query: Metrics of each query, by key.
        totals: Metrics of all lists together, by key.
        seconds: Time that it took.
    """

    ranking: Ranking
    per_query: Metrics
    totals: dict[str, float]
    seconds: float


def measure(
    scorer: Scorer,
    case: Case,
    is_candidate: np.ndarray | None = None,
    progress: Progress | None = None,
) -> Measured:
    """Measures a system.

    Args:
        scorer: Its scores.
        case: The shared inputs.
        is_candidate: Which item rows it can recommend `[item rows]` bool; None: all items.
        progress: Is called with the number of queries done, and with that of all.

    Raises:
        RecsysError: A score is no number (R405).
    """
    started = time.monotonic()
    positives, is_item = case.queries.positives, case.items.is_candidate
    own = is_item if is_candidate is None else is_candidate
    if case.sampled_negatives is None:
        ranking = rank(scorer, positives, case.masked, own, max(case.ks), progress)
    else:
        ranking = rank_sampled(
            scorer, positives, case.masked, own, is_item, case.sampled_negatives, case.seed
        )
    lists = case.lists(ranking)
    values = per_query(case.computed, lists, case.ks)
    overall = totals(case.computed, lists, case.ks)
    return Measured(ranking, values, overall, time.monotonic() - started)
