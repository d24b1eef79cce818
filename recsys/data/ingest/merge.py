"""One log of the segments' events: users in their order, each one's events by time.

No two segments share a second, so a user's events are those of the first segment, then
those of the next: they are laid end to end, and nothing is sorted but the events of one
user and second, whose order is that of the items' rows.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from recsys.data.event_log import EventShard, count_tied
from recsys.data.shards import EVENTS_OF_A_SHARD, n_shards
from recsys.ragged import ranges


import os
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_BYTES_OF_AN_EVENT = 24


@dataclasses.dataclass(frozen=True)
class Source:
    """The events of a bucket of a segment.

    Attributes:
        place: Place of each of its users among the users of the log `[users]` int32.
        offsets: First event of each of its users, and the end `[users + 1]` int64.
        item: Which of its items each event is of `[n]` int32.
        item_row: Row of each of its items `[items]` int32.
        timestamp: Time of each event `[n]` int64 [seconds since 1970, UTC].
        weight: Weight of each event `[n]` float32; None: all are 1.
    """

    place: np.ndarray
    offsets: np.ndarray
    item: np.ndarray
    item_row: np.ndarray
    timestamp: np.ndarray
    weight: np.ndarray | None


def merge(
    sources: Sequence[Source], user_rows: np.ndarray, scratch: Path, most: int = EVENTS_OF_A_SHARD
) -> tuple[EventShard, ...]:
    """Returns the events of all users, in shards of whole users.

    Args:
        sources: Buckets of segments, those of older segments first; each user of a
            segment is in one of its buckets.
        user_rows: Row of each user of the log `[users]` int32.
        scratch: Folder for what doesn't fit into memory.
        most: Events of a shard, about, unless a user has more.
    """
    n_events = np.zeros(len(user_rows), np.int64)
    for source in sources:
        n_events[source.place] += np.diff(source.offsets)
    borders = _borders(n_events, most)
    if len(borders) < 2:
        return ()
    merger = _Merger(sources, user_rows, n_events, scratch)
    try:
        return tuple(merger.shard(first, end) for first, end in itertools.pairwise(borders))
    finally:
        merger.close()


def _borders(n_events: np.ndarray, most: int) -> list[int]:
    """Returns the first user of each shard, and the end."""
    if not len(n_events):
        return []
    ends = np.cumsum(n_events)
    n = n_shards(int(ends[-1]), most)
    shares = np.arange(1, n) * (ends[-1] / n)
    inside = np.unique(np.searchsorted(ends, shares, side="left") + 1)
    return [0, *inside[inside < len(ends)].tolist(), len(ends)]


class _Merger:
    """Lays events of users end to end."""

    def __init__(
        self,
        sources: Sequence[Source],
        user_rows: np.ndarray,
        n_events: np.ndarray,
        scratch: Path,
    ) -> None:
        self._sources, self._rows, self._n_events = sources, user_rows, n_events
        # The users of each source in the order of the log.
        self._orders = [np.argsort(source.place, kind="stable") for source in sources]
        self._has_weight = any(source.weight is not None for source in sources)
        self._scratch = Scratch(scratch, int(n_events.sum()) * _BYTES_OF_AN_EVENT)

    def close(self) -> None:
        """Gives back what only the merging needed."""
        self._scratch.close()

    def shard(self, first: int, end: int) -> EventShard:
        """Returns the events of the users `first` … `end` - 1."""
        counts = self._n_events[first:end]
        offsets = np.concatenate([[0], np.cumsum(counts)])
        n = int(offsets[-1])
        item_row = self._scratch.empty(n, np.int32)
        time = self._scratch.empty(n, np.int64)
        weight = self._scratch.empty(n, np.float32) if self._has_weight else None
        free = offsets[:-1].copy()
        for source, order in zip(self._sources, self._orders, strict=True):
            users = _within(source.place, order, first, end)
            to, start = source.place[users] - first, source.offsets[users]
            length = source.offsets[users + 1] - start
            here, there = ranges(free[to], length), ranges(start, length)
            item_row[here] = source.item_row[source.item[there]]
            time[here] = source.timestamp[there]
            if weight is not None and source.weight is not None:
                weight[here] = source.weight[there]
            free[to] += length
        user = np.repeat(np.arange(end - first, dtype=np.int32), counts)
        tied = self._scratch.empty(n, np.int32)
        tied[:] = count_tied(user, time)
        _settle(tied, item_row, weight)
        user_row = self._scratch.empty(n, np.int32)
        user_row[:] = self._rows[first:end][user]
        return EventShard(user_row, item_row, time, weight, tied, offsets)


def _within(place: np.ndarray, order: np.ndarray, first: int, end: int) -> np.ndarray:
    """Returns the users of a source whose place lies in `first` … `end` - 1, in that order."""
    low, high = np.searchsorted(place, [first, end], sorter=order)
    return order[low:high]


def _settle(tied: np.ndarray, item_row: np.ndarray, weight: np.ndarray | None) -> None:
    """Puts events of one user and second into the order of their items' rows, then weights."""
    behind = np.flatnonzero(tied)
    if not len(behind):
        return
    first = np.unique(behind - tied[behind])
    run = np.unique(np.concatenate([first, behind]))
    group = np.cumsum(tied[run] == 0)
    keys = (item_row[run], group) if weight is None else (weight[run], item_row[run], group)
    order = run[np.lexsort(keys)]
    item_row[run] = item_row[order]
    if weight is not None:
        weight[run] = weight[order]


# --- scratch


_IN_MEMORY_BYTES = 64 << 20
_ALIGNMENT = 64


class Scratch:
    """Gives out arrays; in memory where all of them are small, else in a file.

    Args:
        folder: Folder of the file; the system's own where it can't be written.
        n_bytes: Bytes of all arrays that will be asked for, about.
    """

    def __init__(self, folder: Path, n_bytes: int) -> None:
        self._at = 0
        self._file = None if n_bytes <= _IN_MEMORY_BYTES else _nameless(folder)

    def empty(self, length: int, dtype: Any) -> np.ndarray:
        """Returns an array `[length]` without values.

        Raises:
            OSError: The disk has no room for it.
        """
        if self._file is None or not length:
            return np.empty(length, dtype)
        n_bytes = length * np.dtype(dtype).itemsize
        # Room that is found missing while a map is written would end the process.
        os.posix_fallocate(self._file.fileno(), self._at, n_bytes)
        mapped = np.memmap(self._file, dtype, "r+", self._at, (length,))
        self._at += -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
        # A plain view: indexing a `np.memmap` takes longer. It keeps the map alive.
        return np.asarray(mapped)

    def close(self) -> None:
        """Closes the file; the arrays stay."""
        if self._file is not None:
            self._file.close()


def _nameless(folder: Path) -> BinaryIO:
    where = folder if os.access(folder, os.W_OK) else None
    return tempfile.TemporaryFile(dir=where)
