"""The events that training sees: the events of a log except the ones held back for validation.

A kept event has a number, 0 … n - 1, and an index in the log. Without a hold-out the two are the
same, and nothing is copied. With one, each held-back event takes 8 bytes, and the
kept items, if they are read at all, 4 bytes per event.
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from recsys.data.event_log import (
    EventLog,
    EventShard,
    ShardedColumn,
    newest_first,
)
from recsys.data.hold_out import Draw

_MOST_TIMES = 1 << 22
"""Maximum number of times to sort."""


class _Kept:
    """Events except the held-back ones, whose indices are `held`."""

    held: np.ndarray

    def log_indices(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the indices in the log of the kept events `numbers` `[b]`, as int64 `[b]`."""
        if not len(self.held):
            return numbers
        return numbers + np.searchsorted(self._kept_before, numbers, side="right")

    @functools.cached_property
    def _kept_before(self) -> np.ndarray:
        return self.held - np.arange(len(self.held))


@dataclasses.dataclass(frozen=True, eq=False)
class KeptShard(_Kept):
    """The kept events of a shard.

    Attributes:
        shard: All events of the shard.
        held: Indices of the held-back events `[h]` int64, ascending.
    """

    shard: EventShard
    held: np.ndarray

    def __len__(self) -> int:
        return len(self.shard) - len(self.held)

    def newest(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Returns the newest kept items of the events' users, before or after the events.

        Args:
            numbers: Kept events of the shard `[b]`.
            length: Maximum number of items per user.

        Returns:
            Item rows `[b, length]` int32, the newest first, padded with 0; they include the
            event's own item.
        """
        user = self._user(numbers)
        return newest_first(self.item_row, self.offsets[user], self.offsets[user + 1], length)

    def past(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Returns the newest kept items before events; events of the same second are left out.

        Args:
            numbers: Kept events of the shard `[b]`.
            length: Maximum number of items per user.

        Returns:
            Item rows `[b, length]` int32, the newest first, padded with 0.
        """
        indices = self.log_indices(numbers)
        if self._is_past_whole:
            return self.shard.histories(indices, length)
        ends = indices - self.shard.tied[indices]
        ends = ends - np.searchsorted(self.held, ends)
        return newest_first(self.item_row, self.offsets[self._user(numbers)], ends, length)

    def others(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Returns the items of `newest` without the events' own (leave one out)."""
        end = self.offsets[self._user(numbers) + 1]
        rows = self.newest(numbers, length + 1)
        # Columns count back from the user's last event.
        is_before = np.arange(length) < (end - 1 - numbers)[:, None]
        others = np.where(is_before, rows[:, :-1], rows[:, 1:])
        # If the user has several events with the item, its other occurrences are masked, too.
        own = self.item_row[numbers]
        return np.where(others == own[:, None], 0, others)

    def of_user(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the number of kept events of the events' users `[b]` int64."""
        user = self._user(numbers)
        return self.offsets[user + 1] - self.offsets[user]

    @functools.cached_property
    def item_row(self) -> np.ndarray:
        """Items of the kept events `[kept]` int32."""
        return np.delete(self.shard.item_row, self.held) if len(self.held) else self.shard.item_row

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """Index of each user's first kept event, and the end `[users + 1]` int64."""
        return self.shard.offsets - np.searchsorted(self.held, self.shard.offsets)

    @functools.cached_property
    def _is_past_whole(self) -> bool:
        """Whether all events before any kept event of the same user are kept.

        This is so for a hold-out of the newest events. Then the column is read without a copy.
        """
        user = np.searchsorted(self.shard.offsets, self.held, side="right") - 1
        is_first = np.append(True, user[1:] != user[:-1])[: len(user)]
        user, first_held = user[is_first], self.held[is_first]
        last_kept = self.offsets[user + 1] - 1
        has_kept = last_kept >= self.offsets[user]
        newest, time = self.log_indices(last_kept[has_kept]), self.shard.timestamp
        return bool((time[newest] <= time[first_held[has_kept]]).all())

    def _user(self, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.offsets, numbers, side="right") - 1


@dataclasses.dataclass(frozen=True, eq=False)
class KeptEvents(_Kept):
    """The kept events of a log.

    Attributes:
        log: All events.
        held: Indices of the held-back events `[h]` int64, ascending.
        draw: How they were chosen.
    """

    log: EventLog
    held: np.ndarray = dataclasses.field(default_factory=lambda: np.zeros(0, np.int64))
    draw: Draw = "newest"

    def __len__(self) -> int:
        return len(self.log) - len(self.held)

    @functools.cached_property
    def shards(self) -> tuple[KeptShard, ...]:
        """The kept events of each shard."""
        starts = self.log.item_row.starts
        borders = np.searchsorted(self.held, starts)
        return tuple(
            KeptShard(shard, self.held[borders[i] : borders[i + 1]] - starts[i])
            for i, shard in enumerate(self.log.shards)
        )

    def items(self, numbers: np.ndarray) -> np.ndarray:
        """Returns the items `[n]` int32 of the kept events `numbers` `[n]`, in any order."""
        order, items = np.argsort(numbers), np.empty(len(numbers), np.int32)
        items[order] = self.log.item_row.gather_sorted(self.log_indices(numbers[order]))
        return items

    def item_counts(self, n_rows: int) -> np.ndarray:
        """Returns the number of kept events of each item row `[n_rows]` int64."""
        return np.pad(self._item_counts, (0, n_rows - len(self._item_counts)))

    def user_counts(self, n_rows: int) -> np.ndarray:
        """Returns the number of kept events of each user row `[n_rows]` int64."""
        return self._counts(self.log.user_row, n_rows)

    @functools.cached_property
    def n_users(self) -> int:
        """Number of users with a kept event."""
        return sum(int((np.diff(part.offsets) > 0).sum()) for part in self.shards)

    @functools.cached_property
    def starts(self) -> np.ndarray:
        """Number of the first kept event of each shard, and the end `[shards + 1]` int64."""
        return np.cumsum([0, *(len(shard) for shard in self.shards)])

    @functools.cached_property
    def times(self) -> np.ndarray:
        """Times of kept events, int64 [seconds since 1970, UTC], ascending.

        With more than `_MOST_TIMES` events, a systematic sample.
        """
        stride = -(-len(self) // _MOST_TIMES)
        parts = [np.delete(part.shard.timestamp, part.held)[::stride] for part in self.shards]
        return np.sort(np.concatenate(parts))

    def newer_share(self, times: np.ndarray) -> np.ndarray:
        """Returns the share of kept events after each of `times` `[n]`, float64 [0..1]."""
        return 1.0 - np.searchsorted(self.times, times, side="right") / len(self.times)

    @functools.cached_property
    def _item_counts(self) -> np.ndarray:
        return self._counts(self.log.item_row)

    def _counts(self, rows: ShardedColumn, n_rows: int = 0) -> np.ndarray:
        """Returns the number of kept events of each row `[max(n_rows, highest + 1)]`."""
        counts = rows.counts(n_rows)
        return counts - np.bincount(rows.gather_sorted(self.held), minlength=len(counts))
