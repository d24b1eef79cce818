"""The events that training sees: those of a log, without what is held back.

Numbers count the kept events, 0 … n - 1; places are where they lie in the log. Without
a hold-out the two are the same, and nothing is copied. With one, the places held back
take 8 bytes each, and the kept items, where they are read at all, 4 bytes an event.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator

import numpy as np

from recsys.data.event_log import EventLog, EventShard, newest_first

_NONE = np.zeros(0, np.int64)


@dataclasses.dataclass(frozen=True, eq=False)
class KeptShard:
    """The kept events of a shard.

    Attributes:
        shard: All of its events.
        held: Places of those held back `[h]` int64, ascending.
    """

    shard: EventShard
    held: np.ndarray

    def __len__(self) -> int:
        return len(self.shard) - len(self.held)

    def places(self, numbers: np.ndarray) -> np.ndarray:
        """Returns where the kept events `numbers` `[b]` lie in the shard `[b]` int64."""
        if not len(self.held):
            return numbers
        return numbers + np.searchsorted(self._kept_before, numbers, side="right")

    def newest(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Returns the newest kept items of the users of events, before or after them.

        Args:
            numbers: Kept events of the shard `[b]`.
            length: Items of a user at the most.

        Returns:
            Item rows `[b, length]` int32, the newest first, padded with 0; the event's
            own item is among them.
        """
        user = self._user(numbers)
        return newest_first(self.item_row, self.offsets[user], self.offsets[user + 1], length)

    def others(self, numbers: np.ndarray, length: int) -> np.ndarray:
        """Returns what `newest` does, without the events themselves (leave one out)."""
        end = self.offsets[self._user(numbers) + 1]
        rows = self.newest(numbers, length + 1)
        # Places of a row count back from the user's last event.
        is_before = np.arange(length) < (end - 1 - numbers)[:, None]
        others = np.where(is_before, rows[:, :-1], rows[:, 1:])
        # Where the user took the same item twice, the answer must not stand in the question.
        own = self.item_row[numbers]
        return np.where(others == own[:, None], 0, others)

    def of_user(self, numbers: np.ndarray) -> np.ndarray:
        """Returns how many kept events the users of events `[b]` have `[b]` int64."""
        user = self._user(numbers)
        return self.offsets[user + 1] - self.offsets[user]

    @functools.cached_property
    def item_row(self) -> np.ndarray:
        """Items of the kept events `[kept]` int32."""
        return np.delete(self.shard.item_row, self.held) if len(self.held) else self.shard.item_row

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """First kept event of each user, and the end `[users + 1]` int64."""
        return self.shard.offsets - np.searchsorted(self.held, self.shard.offsets)

    @functools.cached_property
    def _kept_before(self) -> np.ndarray:
        return self.held - np.arange(len(self.held))

    def _user(self, numbers: np.ndarray) -> np.ndarray:
        return np.searchsorted(self.offsets, numbers, side="right") - 1


@dataclasses.dataclass(frozen=True, eq=False)
class KeptEvents:
    """The kept events of a log.

    Attributes:
        log: All events.
        held: Places of those held back `[h]` int64, ascending.
    """

    log: EventLog
    held: np.ndarray = dataclasses.field(default_factory=lambda: _NONE)

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

    def split_sorted(self, numbers: np.ndarray) -> Iterator[tuple[KeptShard, np.ndarray, slice]]:
        """Yields each shard that ascending `numbers` meet, their numbers in it, and which."""
        borders = np.searchsorted(numbers, self._starts).tolist()
        for i, shard in enumerate(self.shards):
            if borders[i] < borders[i + 1]:
                part = slice(borders[i], borders[i + 1])
                yield shard, numbers[part] - self._starts[i], part

    def item_counts(self, n_rows: int) -> np.ndarray:
        """Returns the kept events of each item row `[n_rows]` int64."""
        return np.pad(self._item_counts, (0, n_rows - len(self._item_counts)))

    def user_counts(self, n_rows: int) -> np.ndarray:
        """Returns the kept events of each user row `[n_rows]` int64."""
        counts = np.zeros(n_rows, np.int64)
        for part in self.shards:
            counts += np.bincount(part.shard.user_row, minlength=n_rows)
            counts -= np.bincount(part.shard.user_row[part.held], minlength=n_rows)
        return counts

    @functools.cached_property
    def n_users(self) -> int:
        """Users with a kept event."""
        return sum(int((np.diff(part.offsets) > 0).sum()) for part in self.shards)

    @functools.cached_property
    def _starts(self) -> np.ndarray:
        return np.cumsum([0, *(len(shard) for shard in self.shards)])

    @functools.cached_property
    def _item_counts(self) -> np.ndarray:
        counts = np.zeros(0, np.int64)
        for part in self.shards:
            of_shard = np.bincount(part.shard.item_row)
            of_shard -= np.bincount(part.shard.item_row[part.held], minlength=len(of_shard))
            longest = max(len(counts), len(of_shard))
            counts, of_shard = (np.pad(x, (0, longest - len(x))) for x in (counts, of_shard))
            counts += of_shard
        return counts
