"""Measures systems: ranks, top lists, the metrics of each query; and the figures of them all."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from recsys.evaluation.config import EvaluateStage
from recsys.evaluation.significance import BLESSED, MODEL, Interval, Key, UserMeans
from recsys.kernels.rank_jobs import RankResults
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
from recsys.tasks.retrieval.judging.queries import Queries, Repeats
from recsys.tasks.retrieval.judging.ranking import rank, rank_sampled
from recsys.tasks.retrieval.judging.scores import Progress, Scorer
from recsys.tasks.retrieval.judging.slices import AGAIN, REPEATS, Slice


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

    def rank(
        self,
        scorer: Scorer,
        is_candidate: np.ndarray | None = None,
        progress: Progress | None = None,
    ) -> RankResults:
        """Ranks the positives, by the scores of a system; see `measure`."""
        positives, is_item = self.queries.positives, self.items.is_candidate
        own, negatives = is_item if is_candidate is None else is_candidate, self.sampled_negatives
        if negatives is None:
            return rank(scorer, positives, self.masked, own, max(self.ks), progress)
        return rank_sampled(scorer, positives, self.masked, own, is_item, negatives, self.seed)

    def measured(self, ranking: RankResults, seconds: float) -> Measured:
        """Returns the metrics of a system that took so long [s] to rank."""
        started, lists = time.monotonic(), self.lists(ranking)
        values = per_query(self.computed, lists, self.ks)
        overall = totals(self.computed, lists, self.ks)
        return Measured(ranking, values, overall, seconds + time.monotonic() - started)

    def lists(self, ranking: RankResults, which: np.ndarray | None = None) -> RankedLists:
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

    ranking: RankResults
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
    ranking = case.rank(scorer, is_candidate, progress)
    return case.measured(ranking, time.monotonic() - started)


# --- the figures of `evaluation.json`

_SLICED = ("recall", "ndcg", "mrr")
"""Metrics that slices have, beside those that the blessing rests on."""
_NEVER = "left out of all figures: what a user has seen is never recommended"


class Figures:
    """All means, intervals and comparisons of one evaluation.

    Args:
        stage: The cut-offs, the thresholds and how intervals are made.
        case: The shared inputs of the measurements.
        measured: The model, each baseline and, under `blessed_model`, the last blessed
            model, as they were measured.
        slices: The slices of queries and positives.
    """

    def __init__(
        self,
        stage: EvaluateStage,
        case: Case,
        measured: Mapping[str, Measured],
        slices: Iterable[Slice] = (),
    ) -> None:
        config = stage.evaluate
        self._stage, self._case, self._measured = stage, case, measured
        self._slices = list(slices)
        self._others = [name for name in measured if name != MODEL]
        self._accuracy = [
            key for metric in case.computed if metric.decides for key in metric.keys(case.ks)
        ]
        rules = {rule.metric for rule in stage.bless.all_rules()}
        self._deciding = [key for key in self._accuracy if key in rules]
        usual = {key for m in case.computed if m.name in _SLICED for key in m.keys(case.ks)}
        self._sliced = [key for key in self._accuracy if key in usual | rules]
        self._of_slices = [m for m in case.computed if {*m.keys(case.ks)} & {*self._sliced}]
        self.means = UserMeans(case.queries.user, config.resamples, config.confidence, config.seed)
        for name, system in measured.items():
            for metric, values in system.per_query.items():
                self.means.add(Key(name, metric), values)
            for part in self._slices:
                self._add_slice(name, system, part)
        self.means.resample(self._resampled())

    def metrics(self, system: str) -> dict[str, float]:
        """Returns every metric of a system over all queries."""
        measured = self._measured[system]
        means = {name: self.means.mean(Key(system, name)) for name in measured.per_query}
        known = {name: value for name, value in means.items() if value is not None}
        return known | measured.totals

    def intervals(self) -> dict[str, list[float]]:
        """Returns the intervals of the model's metrics."""
        intervals = {name: self.means.interval(Key(MODEL, name)) for name in self._accuracy}
        return {name: list(ends) for name, ends in intervals.items() if ends is not None}

    def comparisons(self) -> dict[str, dict[str, Any]]:
        """Returns how the model differs from each other system, by metric."""
        return {
            other: {
                metric: difference
                for metric in self._accuracy
                if (difference := self._difference(Key(MODEL, metric), other)) is not None
            }
            for other in self._others
        }

    def slices(self) -> list[dict[str, Any]]:
        """Returns the figures of each slice."""
        return [self._slice(part) for part in self._slices]

    def never_found(self, repeats: Repeats) -> dict[str, Any]:
        """Returns the slice of the positives that no list can contain: all its figures are 0."""
        part = Slice(REPEATS, AGAIN, "positives", np.zeros(0, bool), _NEVER)
        sizes = (repeats.users, repeats.queries, repeats.positives)
        nothing = dict.fromkeys(self._sliced, 0.0)
        figures = dict.fromkeys(self._measured, nothing)
        return self._described(part, sizes, figures, None, dict.fromkeys(self._others))

    def _resampled(self) -> list[Key]:
        keys = [Key(system, name) for system in self._measured for name in self._accuracy]
        for part in self._slices:
            systems = self._measured
            keys += [Key(system, name, part.name) for system in systems for name in self._deciding]
        return keys

    def _add_slice(self, name: str, system: Measured, part: Slice) -> None:
        values, which = system.per_query, None
        if part.of == "queries":
            which = part.which
        else:
            lists = self._case.lists(system.ranking, part.which)
            values = per_query(self._of_slices, lists, self._case.ks)
        for metric in self._sliced:
            self.means.add(Key(name, metric, part.name), values[metric], which)

    def _slice(self, part: Slice) -> dict[str, Any]:
        owner = self._case.queries.positives.owner()
        if part.of == "queries":
            queries = np.flatnonzero(part.which)
            n_positives = int(part.which[owner].sum())
        else:
            queries = np.unique(owner[part.which])
            n_positives = int(part.which.sum())
        n_users = len(np.unique(self._case.queries.user[queries]))
        key = Key(MODEL, self._stage.bless.metric, part.name)
        return self._described(
            part,
            (n_users, len(queries), n_positives),
            {name: self._of_slice(name, part) for name in self._measured},
            self.means.interval(key),
            {other: self._difference(key, other) for other in self._others},
        )

    def _described(
        self,
        part: Slice,
        sizes: tuple[int, int, int],
        figures: Mapping[str, Any],
        interval: Interval | None,
        comparisons: Mapping[str, Any],
    ) -> dict[str, Any]:
        """Returns what `evaluation.json` holds of a slice of so many users, queries, positives."""
        users, queries, positives = sizes
        return {
            "kind": part.kind,
            "name": part.name,
            "of": part.of,
            "note": part.note,
            "users": users,
            "queries": queries,
            "positives": positives,
            "is_small": users < self._stage.evaluate.small_slice,
            "metrics": figures[MODEL],
            "interval": None if interval is None else list(interval),
            "baselines": {name: figures[name] for name in self._others if name != BLESSED},
            "blessed_model": figures.get(BLESSED),
            "comparisons": comparisons,
        }

    def _of_slice(self, system: str, part: Slice) -> dict[str, float]:
        values = {name: self.means.mean(Key(system, name, part.name)) for name in self._sliced}
        return {name: value for name, value in values.items() if value is not None}

    def _difference(self, key: Key, other: str) -> dict[str, Any] | None:
        difference = self.means.difference(key, other)
        return None if difference is None else dataclasses.asdict(difference)
