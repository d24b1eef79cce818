"""The training data of the retrieval baselines."""

from __future__ import annotations

import dataclasses
import functools
from typing import TYPE_CHECKING, Any, Protocol

import numpy as np

from recsys.data.hold_out import newest_events
from recsys.data.neighbours import as_sets
from recsys.ragged import RaggedRows
from recsys.tasks.judging_side import LeftOutError

if TYPE_CHECKING:
    from recsys.data.event_log import EventLog
    from recsys.tasks.retrieval.judging.queries import Queries
    from recsys.tasks.retrieval.judging.scores import Scorer


class FittedBaseline(Protocol):
    """A baseline that was fitted to the training events."""

    def scorer(self, queries: Queries) -> Scorer:
        """Returns a scorer of the items for `queries`; it only reads the queries' `seen`."""


@dataclasses.dataclass(frozen=True)
class BaselineData:
    """The training data of baselines.

    Attributes:
        train: Training events.
        counts: Number of training positives of each item row `[item rows]`.
        is_item: Whether each item row is an item `[item rows]` bool. Other rows (unknown items
            and shared rows) are neither recommended nor used as evidence.
        cut: End of the training data [seconds since 1970, UTC].
        recent_days: Number of days for `recent_popularity`.
        max_events: Maximum number of newest events that `item_knn` and `ials` learn from.
        has_times: Whether the events have times; otherwise other numbers order them.
    """

    train: EventLog
    counts: np.ndarray
    is_item: np.ndarray
    cut: int
    recent_days: int
    max_events: int
    has_times: bool = True

    @functools.cached_property
    def ranks(self) -> np.ndarray:
        """Rank of each item row by popularity `[item rows]` float32, see `popularity_ranks`."""
        return popularity_ranks(self.is_item, self.counts)


def popularity_ranks(is_item: np.ndarray, *counts: np.ndarray) -> np.ndarray:
    """Returns the rank of each item row in an order `[item rows]` float32, the best the highest.

    Equal counts have equal ranks. Ranks are small integers, which float32 represents exactly,
    unlike large counts.

    Args:
        is_item: Whether each item row is an item `[item rows]` bool; others have rank 0.
        *counts: Counts of each item row `[item rows]`, the most significant first.
    """
    keys = np.where(is_item, np.stack(counts), -1)
    _, place = np.unique(keys, axis=1, return_inverse=True)
    return place.ravel().astype(np.float32)


def item_sets(data: BaselineData, max_user_events: int | None = None) -> Any:
    """Returns the user-item matrix of the newest training events.

    Args:
        data: The training data.
        max_user_events: Maximum number of newest events per user; None: all.

    Returns:
        A matrix `[users, item rows]` float32 in CSR, 1 if the user has an event with the item.
        Users without events are left out.

    Raises:
        LeftOutError: No training event has a known item.
    """
    events = newest_events(data.train, data.max_events)
    item = data.train.item_row.gather_sorted(events)
    is_known = data.is_item[item]
    events, item = events[is_known], item[is_known]
    if not len(item):
        raise LeftOutError("There is no training event of an item that the vocabulary knows.")
    n_of_users = np.unique(data.train.user_index(events), return_counts=True)[1]
    if max_user_events is not None:
        ends = np.cumsum(n_of_users)
        item = item[np.repeat(ends, n_of_users) - np.arange(len(item)) <= max_user_events]
        n_of_users = np.minimum(n_of_users, max_user_events)
    offsets = np.concatenate([[0], np.cumsum(n_of_users)])
    return as_sets(RaggedRows(item, offsets), len(data.is_item))
