"""Popularity baselines: the most frequent items, of all time or of the last days."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import numpy as np
from pydantic import PositiveInt

from recsys.registry import register_baseline
from recsys.tasks.judging_side import Baseline, LeftOutError
from recsys.tasks.retrieval.baselines.baseline import BaselineData, popularity_ranks
from recsys.tasks.retrieval.judging.scores import DotProducts

if TYPE_CHECKING:
    from recsys.data.event_log import EventLog
    from recsys.tasks.retrieval.judging.queries import Queries

_DAY_S = 86_400


@dataclasses.dataclass(frozen=True)
class SameForAll:
    """A baseline whose item scores are the same for all queries.

    Attributes:
        scores: Score of each item row `[item rows]` float32.
    """

    scores: np.ndarray

    def scorer(self, queries: Queries) -> DotProducts:
        """Returns the scorer of the items for `queries`."""
        return DotProducts(np.ones((len(queries), 1), np.float32), self.scores[:, None])


@register_baseline("popularity")
class Popularity(Baseline):
    """Orders items by their number of training positives; ties go to the lower row."""

    title = "popularity"

    def fit(self, data: BaselineData) -> SameForAll:
        """Learns from training events.

        Raises:
            LeftOutError: No item has a training positive.
        """
        if not data.counts[data.is_item].any():
            raise LeftOutError("No item has a training positive.")
        return SameForAll(data.ranks)


@register_baseline("recent_popularity")
class RecentPopularity(Baseline):
    """Orders items by their positives of the last days, then by all their positives.

    These are the days before the cut. If they have no events, they are the days before the
    newest training event.
    """

    title = "recent popularity"

    days: PositiveInt | None = None
    """Days that are counted; `null`: evaluate.recent_days."""

    def fit(self, data: BaselineData) -> SameForAll:
        """Learns from training events.

        Raises:
            LeftOutError: No training event has a known item, or events have no times.
        """
        if not data.has_times:
            raise LeftOutError("The events have no times, so nothing is recent.")
        n_rows = len(data.is_item)
        length_s = (self.days or data.recent_days) * _DAY_S
        recent = _counts_since(data.train, data.cut - length_s, n_rows)
        if not recent[data.is_item].any():
            newest = _newest_of_items(data)
            recent = _counts_since(data.train, newest - length_s + 1, n_rows)
        return SameForAll(popularity_ranks(data.is_item, recent, data.counts))


def _counts_since(train: EventLog, since: int, n_rows: int) -> np.ndarray:
    """Returns the number of events of each item row since a time `[n_rows]` int64."""
    recent = (shard.item_row[shard.timestamp >= since] for shard in train.shards)
    counts = (np.bincount(rows, minlength=n_rows) for rows in recent)
    return sum(counts, start=np.zeros(n_rows, np.int64))


def _newest_of_items(data: BaselineData) -> int:
    """Returns the time of the newest event of a known item [seconds since 1970, UTC]."""
    times = (shard.timestamp[data.is_item[shard.item_row]] for shard in data.train.shards)
    newest = [int(of_shard.max()) for of_shard in times if len(of_shard)]
    if not newest:
        raise LeftOutError("There is no training event of an item that the vocabulary knows.")
    return max(newest)
