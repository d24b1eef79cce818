"""One subject measured: its ranks, its lists, and the metrics of each query."""

from __future__ import annotations

import dataclasses
import functools
import time

import numpy as np

from recsys.evaluation import lists
from recsys.evaluation.metrics import Metrics, per_query
from recsys.evaluation.queries import Queries
from recsys.evaluation.ranking import Ranking, rank, rank_sampled
from recsys.evaluation.scores import Progress, Scorer
from recsys.ragged import Ragged


@dataclasses.dataclass(frozen=True)
class Case:
    """What is the same for all that is measured.

    Attributes:
        queries: Who asks what, and what was right.
        items: What is known of the items.
        ks: Cut-offs, ascending.
        mask_seen: Whether what a user did before is left out of the list.
        sampled_negatives: Items that a list is drawn from; None: all.
        seed: Seed of that draw.
    """

    queries: Queries
    items: lists.Items
    ks: tuple[int, ...]
    mask_seen: bool = True
    sampled_negatives: int | None = None
    seed: int = 0

    @functools.cached_property
    def masked(self) -> Ragged:
        """Item rows that each query's list leaves out."""
        seen = self.queries.seen
        return seen if self.mask_seen else Ragged.empty(len(seen))

    @functools.cached_property
    def popularity_before(self) -> np.ndarray:
        """How popular is what each query's user did before `[queries]`."""
        return lists.popularity_before(self.queries.seen, self.items)


@dataclasses.dataclass(frozen=True)
class Measured:
    """What was found of one subject.

    Attributes:
        ranking: Ranks of the positives, and the lists.
        per_query: Metrics of each query.
        totals: Metrics of all lists together.
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
    """Measures a subject.

    Args:
        scorer: Its scores.
        case: What it is measured on.
        is_candidate: Which item rows it can recommend `[item rows]` bool; None: all items.
        progress: Is told of the queries done, and of all.

    Raises:
        RecsysError: A score is no number (R405).
    """
    started = time.monotonic()
    queries = case.queries
    own = case.items.is_candidate if is_candidate is None else is_candidate
    if case.sampled_negatives is not None:
        ranking = rank_sampled(
            scorer,
            queries.positives,
            case.masked,
            own,
            case.items.is_candidate,
            case.sampled_negatives,
            case.seed,
        )
    else:
        ranking = rank(scorer, queries.positives, case.masked, own, max(case.ks), progress)
    metrics = per_query(
        ranking.ranks, queries.positives.owner(), len(queries), case.ks, ranking.n_ranked
    )
    totals: dict[str, float] = {}
    if case.sampled_negatives is None:
        metrics |= lists.of_each_list(ranking.top, case.popularity_before, case.items, case.ks)
        totals = _totals(ranking.top, case)
    return Measured(ranking, metrics, totals, time.monotonic() - started)


def _totals(top: np.ndarray, case: Case) -> dict[str, float]:
    is_item = case.items.is_candidate
    totals = {}
    for k in case.ks:
        times = lists.shown(top, len(is_item), k)[is_item]
        totals[f"coverage@{k}"] = lists.coverage(times)
        totals[f"gini@{k}"] = lists.gini(times)
    return totals
