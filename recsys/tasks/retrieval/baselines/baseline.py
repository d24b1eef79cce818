"""The training data that the baselines of retrieval learn from."""

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
    """A baseline that has learned from the training events."""

    def scorer(self, queries: Queries) -> Scorer:
        """Returns a scorer of the items for `queries`; it reads only the `seen` of each."""


@dataclasses.dataclass(frozen=True)
class BaselineData:
    """The training data of baselines.

    Attributes:
        train: Training events.
        counts: Training positives of each item row `[item rows]`.
        is_item: Which item rows are items `[item rows]` bool. Other rows (unknown items,
            and rows that several items share) are neither recommended nor evidence.
        cut: The moment that the training data end [seconds since 1970, UTC].
        recent_days: Days that `recent_popularity` looks back.
        max_events: Events that `item_knn` and `ials` learn from, at the most; the newest.
        has_times: Whether the events have times; else what takes their place orders them.
    """

    train: EventLog
    counts: np.ndarray
    is_item: np.ndarray
    cut: int
    recent_days: int
    max_events: int
    has_times: bool = True

    @functools.cached_property
    def places(self) -> np.ndarray:
        """Place of each item row by popularity `[item rows]` float32, see `places`."""
        return places(self.is_item, self.counts)


def places(is_item: np.ndarray, *counts: np.ndarray) -> np.ndarray:
    """Returns the place of each item row in an order `[item rows]` float32, the best highest.

    Equal counts have one place. Places are small whole numbers, which float32 tells
    apart where it couldn't tell the counts.

    Args:
        is_item: Which item rows are items `[item rows]` bool; others have place 0.
        *counts: Counts of each item row `[item rows]`; the first decides, among equals
            the next.
    """
    keys = np.where(is_item, np.stack(counts), -1)
    _, place = np.unique(keys, axis=1, return_inverse=True)
    return place.ravel().astype(np.float32)


def item_sets(data: BaselineData, most_of_a_user: int | None = None) -> Any:
    """Returns the user-item matrix of the newest training events.

    Args:
        data: The training data.
        most_of_a_user: Events of a user at the most, the newest; None: all.

    Returns:
        A matrix `[users, item rows]` float32 in CSR, 1 where the user took the item. Users
        without any are left out.

    Raises:
        LeftOutError: There is no training event of a known item.
    """
    events = newest_events(data.train, data.max_events)
    item = data.train.item_row.gather_sorted(events)
    is_known = data.is_item[item]
    events, item = events[is_known], item[is_known]
    if not len(item):
        raise LeftOutError("There is no training event of an item that the vocabulary knows.")
    n_of_users = np.unique(data.train.user_index(events), return_counts=True)[1]
    if most_of_a_user is not None:
        ends = np.cumsum(n_of_users)
        item = item[np.repeat(ends, n_of_users) - np.arange(len(item)) <= most_of_a_user]
        n_of_users = np.minimum(n_of_users, most_of_a_user)
    offsets = np.concatenate([[0], np.cumsum(n_of_users)])
    return as_sets(RaggedRows(item, offsets), len(data.is_item))
