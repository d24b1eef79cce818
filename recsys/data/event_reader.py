"""Reads training examples at any indices, in the order of the storage."""

from __future__ import annotations

import dataclasses

import numpy as np

from recsys.config import RetrievalConfig
from recsys.data.training_events import KeptEvents, KeptShard


@dataclasses.dataclass(frozen=True)
class EventBlock:
    """A block of events with the histories of their users.

    Attributes:
        user_row: Row of each event's user `[n]` int32.
        item_row: Row of each event's item `[n]` int32.
        history: What the user did before, or did else `[n, history]` int32, the newest
            first, padded with 0.
        known: The newest items of the user, its own among them or not `[n, known]`
            int32, the newest first, padded with 0.
        weight: Weight of each event `[n]` float32; None: all are 1.
    """

    user_row: np.ndarray
    item_row: np.ndarray
    history: np.ndarray
    known: np.ndarray
    weight: np.ndarray | None

    @classmethod
    def empty(cls, n: int, history: int, known: int, has_weight: bool) -> EventBlock:
        """Returns uninitialized arrays for `n` examples."""
        return cls(
            np.empty(n, np.int32),
            np.empty(n, np.int32),
            np.empty((n, history), np.int32),
            np.empty((n, known), np.int32),
            np.empty(n, np.float32) if has_weight else None,
        )

    def part(self, which: slice) -> EventBlock:
        """Returns some of the examples, without a copy."""
        weight = None if self.weight is None else self.weight[which]
        return EventBlock(
            self.user_row[which],
            self.item_row[which],
            self.history[which],
            self.known[which],
            weight,
        )


def read_events(
    events: KeptEvents,
    numbers: np.ndarray,
    model: RetrievalConfig,
    known: int,
    user_balance: float = 0.0,
) -> EventBlock:
    """Reads events at any places.

    Sorted, they meet each shard once and its pages in order, which is several times
    faster for many events than as they come.

    Args:
        events: The events that training sees.
        numbers: Which of them `[n]` int64.
        model: What a history is, and how long.
        known: Newest items of each event's user.
        user_balance: Power of its user's events that an event's weight is divided by:
            at 1 all users weigh the same, whatever they did (Covington et al., "Deep
            Neural Networks for YouTube Recommendations", RecSys 2016, section 3.3,
            takes equally many examples of each).
    """
    order = np.argsort(numbers)
    has_weight = events.log.weight is not None or user_balance > 0
    read = EventBlock.empty(len(numbers), model.history, known, has_weight)
    for kept, ordered, part in events.split_sorted(numbers[order]):
        to, places, shard = order[part], kept.places(ordered), kept.shard
        read.user_row[to] = shard.user_row[places]
        read.item_row[to] = shard.item_row[places]
        if model.history:
            read.history[to] = _histories(kept, ordered, places, model)
        if known:
            read.known[to] = kept.newest(ordered, known)
        if read.weight is not None:
            own = 1.0 if shard.weight is None else shard.weight[places]
            read.weight[to] = own * kept.of_user(ordered) ** -user_balance
    return read


def _histories(
    kept: KeptShard, numbers: np.ndarray, places: np.ndarray, model: RetrievalConfig
) -> np.ndarray:
    if model.history_of == "others":
        return kept.others(numbers, model.history)
    # What lies before a kept event in time is kept, too: the newest are held back.
    return kept.shard.histories(places, model.history)
