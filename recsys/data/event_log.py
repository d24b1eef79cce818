"""Events of many users, sorted by user and time; a history is the slice before an event."""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from recsys.data.event_order import event_order
from recsys.data.sharded_column import ShardedColumn

COLUMNS = {
    "user_row": np.int32,
    "item_row": np.int32,
    "timestamp": np.int64,
    "weight": np.float32,
    "tied": np.int32,
}
"""Columns of a log with a value for each event; `weight` only where the data have one."""

Column = np.ndarray | ShardedColumn


@dataclasses.dataclass(frozen=True)
class EventShard:
    """All events of some users, sorted by (user, time, item row).

    Attributes:
        user_row: Row of the user of each event `[n]` int32.
        item_row: Row of the item of each event `[n]` int32.
        timestamp: Time of each event `[n]` int64 [seconds since 1970, UTC].
        weight: Weight of each event in the loss `[n]` float32; None: all are 1.
        tied: Events of the same user and the same second directly before each
            event `[n]` int32; they are no history of it.
        offsets: First event of each user, and the end `[users + 1]` int64.
    """

    user_row: np.ndarray
    item_row: np.ndarray
    timestamp: np.ndarray
    weight: np.ndarray | None
    tied: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.item_row)

    @classmethod
    def sort(
        cls,
        user: np.ndarray,
        user_row: np.ndarray,
        item_row: np.ndarray,
        timestamp: np.ndarray,
        n_users: int,
        weight: np.ndarray | None = None,
    ) -> EventShard:
        """Sorts events.

        Args:
            user: User of each event `[n]`, in 0 … `n_users` - 1.
            user_row: Row of the user of each event `[n]`.
            item_row: Row of the item of each event `[n]`.
            timestamp: Time of each event `[n]` [seconds since 1970, UTC].
            n_users: Users of the shard.
            weight: Weight of each event `[n]`, if the data have one.
        """
        order = event_order(user, timestamp, item_row, weight)
        offsets = np.zeros(n_users + 1, np.int64)
        np.cumsum(np.bincount(user, minlength=n_users), out=offsets[1:])
        time = timestamp[order].astype(np.int64, copy=False)
        return cls(
            user_row=user_row[order].astype(np.int32, copy=False),
            item_row=item_row[order].astype(np.int32, copy=False),
            timestamp=time,
            weight=None if weight is None else weight[order].astype(np.float32, copy=False),
            tied=count_tied(user[order], time),
            offsets=offsets,
        )

    def histories(self, events: np.ndarray, length: int) -> np.ndarray:
        """Returns what each event's user did before it, as `EventLog.histories` does."""
        user = np.searchsorted(self.offsets, events, side="right") - 1
        return newest_first(self.item_row, self.offsets[user], events - self.tied[events], length)


@dataclasses.dataclass(frozen=True)
class EventLog:
    """Shards of events, laid end to end, as one log.

    Attributes:
        shards: The shards. No user is in two of them.
    """

    shards: tuple[EventShard, ...]

    def __len__(self) -> int:
        return len(self.item_row)

    @functools.cached_property
    def user_row(self) -> ShardedColumn:
        """Row of the user of each event `[n]` int32."""
        return self._column("user_row")

    @functools.cached_property
    def item_row(self) -> ShardedColumn:
        """Row of the item of each event `[n]` int32."""
        return self._column("item_row")

    @functools.cached_property
    def timestamp(self) -> ShardedColumn:
        """Time of each event `[n]` int64 [seconds since 1970, UTC]."""
        return self._column("timestamp")

    @functools.cached_property
    def tied(self) -> ShardedColumn:
        """Events of the same user and second directly before each event `[n]` int32."""
        return self._column("tied")

    @functools.cached_property
    def weight(self) -> ShardedColumn | None:
        """Weight of each event in the loss `[n]` float32; None: all are 1."""
        if not self.shards or self.shards[0].weight is None:
            return None
        return self._column("weight")

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """First event of each user, and the end `[users + 1]` int64; held in memory."""
        starts = self.item_row.starts
        parts = [s.offsets[:-1] + start for s, start in zip(self.shards, starts, strict=False)]
        return np.concatenate([*parts, starts[-1:]])

    def user_index(self, events: np.ndarray) -> np.ndarray:
        """Returns which user of the log `[b]` int64 each of `events` `[b]` belongs to."""
        return np.searchsorted(self.offsets, events, side="right") - 1

    def histories(self, events: np.ndarray, length: int) -> np.ndarray:
        """Returns what each event's user did before it.

        Args:
            events: Indices of events `[b]` int64.
            length: Items of a history at the most.

        Returns:
            Item rows `[b, length]` int32, the newest first, padded with 0.
            Events of the same second are left out.
        """
        order = np.argsort(events)
        out = np.empty((len(events), length), np.int32)
        for shard, start, part in self.split_sorted(events[order]):
            out[order[part]] = shard.histories(events[order[part]] - start, length)
        return out

    def split_sorted(self, events: np.ndarray) -> list[tuple[EventShard, int, slice]]:
        """Returns each shard that ascending `events` meet, its first event, and which of them."""
        starts = self.item_row.starts
        borders = np.searchsorted(events, starts).tolist()
        return [
            (shard, int(starts[number]), slice(borders[number], borders[number + 1]))
            for number, shard in enumerate(self.shards)
            if borders[number] < borders[number + 1]
        ]

    def _column(self, name: str) -> ShardedColumn:
        return ShardedColumn([getattr(shard, name) for shard in self.shards], COLUMNS[name])


def newest_first(
    item_row: np.ndarray, start: np.ndarray, end: np.ndarray, length: int
) -> np.ndarray:
    """Returns the last items of slices of a column, the newest first.

    Args:
        item_row: A column of item rows `[n]`.
        start: First event of each slice `[b]`.
        end: End of each slice `[b]`, exclusive.
        length: Items of a slice at the most.

    Returns:
        Item rows `[b, length]` int32, padded with 0.
    """
    if length == 0 or len(item_row) == 0:
        return np.zeros((len(end), length), np.int32)
    if len(item_row) < length:
        item_row = np.concatenate([item_row, np.zeros(length, np.int32)])
    # Every window of the column, without a copy; a row of it is read in one go.
    windows = np.lib.stride_tricks.sliding_window_view(item_row, length)
    first = end - length
    rows = windows[np.maximum(first, 0)][:, ::-1].astype(np.int32, order="C")
    for early in np.flatnonzero(first < 0):
        rows[early, : end[early]] = item_row[: end[early]][::-1]
    rows *= np.arange(length) < (end - start)[:, None]
    return rows


def count_tied(user: np.ndarray, timestamp: np.ndarray) -> np.ndarray:
    """Returns for each sorted event `[n]` int32 how many before it share its user and second."""
    is_first = np.ones(len(timestamp), bool)
    is_first[1:] = (user[1:] != user[:-1]) | (timestamp[1:] != timestamp[:-1])
    position = np.arange(len(timestamp), dtype=np.int32)
    first = np.where(is_first, position, np.int32(0))
    np.maximum.accumulate(first, out=first)
    position -= first
    return position
