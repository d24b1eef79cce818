"""Examples at any places of an event log, read in the order that they lie in."""

from __future__ import annotations

import dataclasses

import numpy as np

from recsys.data.event_log import EventLog


@dataclasses.dataclass(frozen=True)
class Examples:
    """What events say of themselves.

    Attributes:
        user_row: Row of each event's user `[n]` int32.
        item_row: Row of each event's item `[n]` int32.
        history: What the user did before `[n, history]` int32, the newest first,
            padded with 0.
        weight: Weight of each event `[n]` float32; None: all are 1.
    """

    user_row: np.ndarray
    item_row: np.ndarray
    history: np.ndarray
    weight: np.ndarray | None

    def part(self, which: slice) -> Examples:
        """Returns some of the examples, without a copy."""
        weight = None if self.weight is None else self.weight[which]
        return Examples(self.user_row[which], self.item_row[which], self.history[which], weight)


def read_examples(log: EventLog, events: np.ndarray, history: int) -> Examples:
    """Reads events at any places.

    Sorted, they meet each shard once and its pages in order, which is several times
    faster for many events than as they come.

    Args:
        log: The log.
        events: Places in it `[n]` int64.
        history: Items of a history at the most.
    """
    n = len(events)
    order = np.argsort(events)
    ordered = events[order]
    weight = np.empty(n, np.float32) if log.weight is not None else None
    read = Examples(
        np.empty(n, np.int32), np.empty(n, np.int32), np.empty((n, history), np.int32), weight
    )
    for shard, start, part in log.split_sorted(ordered):
        places, to = ordered[part] - start, order[part]
        read.user_row[to] = shard.user_row[places]
        read.item_row[to] = shard.item_row[places]
        if history:
            read.history[to] = shard.histories(places, history)
        if read.weight is not None and shard.weight is not None:
            read.weight[to] = shard.weight[places]
    return read
