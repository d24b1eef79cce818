"""Events of many users, sorted by user and time; a history is the slice before an event.

Models can read features of events (`recsys.data.event_features`).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Generic, TypeVar

import numpy as np

ITEM, PLACE = "history_item", "history_place"
"""The unique items of a batch's histories, and the index of each history entry in them; see
`recsys.tasks.retrieval.training.batches.unique_items`."""


class ShardedColumn:
    """Concatenated arrays without a copy; reads like a one-dimensional array.

    Args:
        shards: The arrays, all of one dtype.
        dtype: Their dtype, for a column without shards.

    An entry may have several values: then the shards are `[n, width]`.
    """

    def __init__(self, shards: Sequence[np.ndarray], dtype: Any = None) -> None:
        self.shards = tuple(shards)
        self.dtype = np.dtype(dtype or self.shards[0].dtype)
        self._entry = self.shards[0].shape[1:] if self.shards else ()
        lengths = [len(shard) for shard in self.shards]
        self.starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        """Index of the first entry of each shard, and the end `[shards + 1]` int64."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    @functools.cached_property
    def shape(self) -> tuple[int, ...]:
        """Shape of the column, as in NumPy."""
        return (len(self), *self._entry)

    def __iter__(self) -> Iterator[Any]:
        for shard in self.shards:
            yield from shard

    def __getitem__(self, key: Any) -> Any:
        """Returns an entry, a slice, or the entries at an array of indices `[...]`."""
        if isinstance(key, slice):
            return self._slice(key)
        places = np.asarray(key)
        if places.dtype == bool:
            places = np.flatnonzero(places)
        if places.ndim == 0:
            return self._gather(places[None])[0]
        return self._gather(places.ravel()).reshape(*places.shape, *self._entry)

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        return np.asarray(self._slice(slice(None)), dtype)

    def _slice(self, key: slice) -> np.ndarray:
        start, stop, step = key.indices(len(self))
        if step != 1:
            return self._gather(np.arange(start, stop, step))
        first, last = np.searchsorted(self.starts, [start, stop]).tolist()
        parts = [
            self.shards[number][max(start - begin, 0) : stop - begin]
            for number in range(max(first - 1, 0), min(last, len(self.shards)))
            if (begin := int(self.starts[number])) < stop and start < self.starts[number + 1]
        ]
        if len(parts) == 1:
            return parts[0]
        return np.concatenate(parts) if parts else np.zeros((0, *self._entry), self.dtype)

    def _gather(self, places: np.ndarray) -> np.ndarray:
        if len(self.shards) == 1:
            return self.shards[0][places]
        places = np.where(places < 0, places + len(self), places)
        if len(places) and not (places.min() >= 0 and places.max() < len(self)):
            raise IndexError(f"places must be below {len(self)}; received {places.max()}")
        order = np.argsort(places)
        out = np.empty((len(places), *self._entry), self.dtype)
        out[order] = self.gather_sorted(places[order])
        return out

    def counts(self, n_rows: int = 0) -> np.ndarray:
        """Returns the frequency of each row `[max(n_rows, highest + 1)]` int64."""
        highest = (int(shard.max()) + 1 for shard in self.shards if len(shard))
        n_rows = max(n_rows, *highest, 0)
        counted = (np.bincount(shard, minlength=n_rows) for shard in self.shards)
        return sum(counted, start=np.zeros(n_rows, np.int64))

    def gather_sorted(self, places: np.ndarray) -> np.ndarray:
        """Returns the entries `[n]` at ascending indices `[n]`."""
        out = np.empty((len(places), *self._entry), self.dtype)
        for number, part in split_sorted(places, self.starts):
            out[part] = self.shards[number][places[part] - self.starts[number]]
        return out


def split_sorted(places: np.ndarray, starts: np.ndarray) -> Iterator[tuple[int, slice]]:
    """Yields the shards that contain ascending indices, each with its slice of the indices.

    Args:
        places: Ascending indices into the concatenated shards `[n]`.
        starts: Index of the first entry of each shard, and the end `[shards + 1]`.
    """
    borders = np.searchsorted(places, starts).tolist()
    for number, (first, end) in enumerate(itertools.pairwise(borders)):
        if first < end:
            yield number, slice(first, end)


COLUMNS = {
    "user_row": np.int32,
    "item_row": np.int32,
    "timestamp": np.int64,
    "weight": np.float32,
    "tied": np.int32,
    "valid": np.bool_,
}
"""Columns of a log with a value per event."""
OPTIONAL = ("weight", "valid")
"""Columns that exist only if the data have them."""

Column = np.ndarray | ShardedColumn

HISTORY_COLUMNS = {
    "item_row": np.int32,
    "timestamp": np.int64,
    "tied": np.int32,
    "place": np.int64,
}
"""Columns of the events of histories; `tied` and `place` have a value per event of the log."""


@dataclasses.dataclass(frozen=True)
class HistoryShard:
    """The events that the histories of some users hold, sorted by (user, time, item row).

    They are the events of an `EventShard` and, with `data.interactions.history_events`, others.

    Attributes:
        item_row: Row of the item of each event `[m]` int32.
        timestamp: Time of each event `[m]` int64 [seconds since 1970, UTC].
        offsets: Index of each user's first event, and the end `[users + 1]` int64.
        tied: Number of events of the same user and second before each event of the log `[n]` int32.
        place: Index of each event of the log `[n]` int64; None: the log has the same events.
        features: Features of each event by name, as in `EventShard`.
    """

    item_row: np.ndarray
    timestamp: np.ndarray
    offsets: np.ndarray
    tied: np.ndarray
    place: np.ndarray | None = None
    features: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.item_row)

    def column(self, feature: str | None = None) -> np.ndarray:
        """Returns a feature of each event `[m, …]`; None: its item row `[m]`."""
        return self.item_row if feature is None else self.features[feature]

    def places(self, events: np.ndarray) -> np.ndarray:
        """Returns the indices of events of the log `[b]` int64."""
        return events if self.place is None else self.place[events]

    def ends(self, events: np.ndarray) -> np.ndarray:
        """Returns the end of the history of each event of the log `[b]` int64, exclusive."""
        return self.places(events) - self.tied[events]


@dataclasses.dataclass(frozen=True)
class EventShard:
    """All events of some users, sorted by (user, time, item row).

    Attributes:
        user_row: Row of the user of each event `[n]` int32.
        item_row: Row of the item of each event `[n]` int32.
        timestamp: Time of each event `[n]` int64 [seconds since 1970, UTC].
        tied: Number of events of the same user and second directly before each event `[n]`
            int32; they are not part of its history.
        offsets: Index of each user's first event, and the end `[users + 1]` int64.
        weight: Weight of each event in the loss `[n]` float32; None: all are 1.
        valid: Whether the data mark an event for validation `[n]` bool; None: no marks.
        features: Features of each event by name: token rows `[n, width]` of an integer type, 0 is
            missing; or numbers `[n, floats]` float32. See `recsys.data.event_features`.
        longer_history: The events that histories hold, if they are more than these; None: these.
    """

    user_row: np.ndarray
    item_row: np.ndarray
    timestamp: np.ndarray
    tied: np.ndarray
    offsets: np.ndarray
    weight: np.ndarray | None = None
    valid: np.ndarray | None = None
    features: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)
    longer_history: HistoryShard | None = None

    def __len__(self) -> int:
        return len(self.item_row)

    @property
    def history(self) -> HistoryShard:
        """The events that histories hold."""
        if self.longer_history is not None:
            return self.longer_history
        columns = self.item_row, self.timestamp, self.offsets, self.tied
        return HistoryShard(*columns, features=self.features)

    def histories(self, events: np.ndarray, length: int, feature: str | None = None) -> np.ndarray:
        """Returns the items of each event's user before it, or a feature of these events.

        Args:
            events: Indices of events `[b]` int64.
            length: Maximum length of a history.
            feature: Name of the feature; None: the items.

        Returns:
            As `EventLog.histories`, or the feature `[b, length, …]` int32 or float32.
        """
        user, past = np.searchsorted(self.offsets, events, side="right") - 1, self.history
        end = past.ends(events)
        return newest_first(past.column(feature), past.offsets[user], end, length)


ShardT = TypeVar("ShardT")


class UserLog(Generic[ShardT]):
    """Concatenated shards, each with all entries of some users.

    Args:
        shards: The shards. No user is in two of them.

    Attributes:
        shards: The shards.
        item_row: Row of the item of each entry `[n]` int32.
        timestamp: Time of each entry `[n]` int64 [seconds since 1970, UTC].
        features: Features of each entry by name, `[n, width]`; see `EventShard`.
    """

    def __init__(self, shards: Sequence[ShardT]) -> None:
        self.shards = tuple(shards)
        self.item_row = self._column("item_row", np.int32)
        self.timestamp = self._column("timestamp", np.int64)
        self.features = self._columns("features")

    def __len__(self) -> int:
        return len(self.item_row)

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """Index of each user's first entry, and the end `[users + 1]` int64; held in memory."""
        shards: Sequence[Any] = self.shards
        starts = self.item_row.starts
        parts = [shard.offsets[:-1] + start for shard, start in zip(shards, starts, strict=False)]
        return np.concatenate([*parts, starts[-1:]])

    def user_index(self, entries: np.ndarray) -> np.ndarray:
        """Returns the index in the log of each entry's user `[b]` int64."""
        return np.searchsorted(self.offsets, entries, side="right") - 1

    def slices(self, users: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns the start and end of the entries of `users` `[b]` int64.

        Args:
            users: Users of the log `[b]`; -1 without entries, which gives an empty slice.
        """
        known, offsets = users >= 0, self.offsets
        start, end = np.zeros((2, len(users)), np.int64)
        start[known], end[known] = offsets[users[known]], offsets[users[known] + 1]
        return start, end

    def _column(self, name: str, dtype: Any = None) -> ShardedColumn:
        return ShardedColumn([getattr(shard, name) for shard in self.shards], dtype)

    def _optional(self, name: str) -> ShardedColumn | None:
        """Returns a column, or None if the shards don't have it."""
        is_there = bool(self.shards) and getattr(self.shards[0], name) is not None
        return self._column(name) if is_there else None

    def _columns(self, name: str) -> dict[str, ShardedColumn]:
        """Returns the columns that the shards hold by name in an attribute."""
        keys = getattr(self.shards[0], name) if self.shards else ()
        return {
            key: ShardedColumn([getattr(shard, name)[key] for shard in self.shards]) for key in keys
        }


class HistoryLog(UserLog[HistoryShard]):
    """The events that the histories of a log hold."""

    def __init__(self, shards: Sequence[HistoryShard]) -> None:
        super().__init__(shards)
        self._tied = self._column("tied", HISTORY_COLUMNS["tied"])

    def places(self, events: np.ndarray) -> np.ndarray:
        """Returns the indices of events of the log `[b]` int64."""
        if self._place is None:
            return events
        shard = np.searchsorted(self._tied.starts, events, side="right") - 1
        return self._place[events] + self.item_row.starts[shard]

    def ends(self, events: np.ndarray) -> np.ndarray:
        """Returns the end of the history of each event of the log `[b]` int64, exclusive."""
        return self.places(events) - self._tied[events]

    @property
    def is_positive(self) -> np.ndarray:
        """Which events are events of the log `[m]` bool."""
        flags = np.zeros(len(self), bool)
        flags[self.places(np.arange(len(self._tied)))] = True
        return flags

    @functools.cached_property
    def _place(self) -> ShardedColumn | None:
        return self._optional("place")


class EventLog(UserLog[EventShard]):
    """The events of many users.

    Attributes:
        user_row: Row of the user of each event `[n]` int32.
        tied: Events of the same user and second directly before each event `[n]` int32.
        weight: Weight of each event in the loss `[n]` float32; None: all are 1.
        valid: Whether the data mark an event for validation `[n]` bool; None: no marks.
    """

    def __init__(self, shards: Sequence[EventShard]) -> None:
        super().__init__(shards)
        self.user_row, self.tied = (self._column(n, COLUMNS[n]) for n in ("user_row", "tied"))
        self.weight, self.valid = map(self._optional, OPTIONAL)

    @property
    def has_others(self) -> bool:
        """Whether histories hold other events, too."""
        return any(shard.longer_history is not None for shard in self.shards)

    @functools.cached_property
    def history(self) -> HistoryLog:
        """The events that histories hold, of the same users."""
        return HistoryLog([shard.history for shard in self.shards])

    def histories(self, events: np.ndarray, length: int) -> np.ndarray:
        """Returns the items of each event's user before it.

        Args:
            events: Indices of events `[b]` int64.
            length: Maximum length of a history.

        Returns:
            Item rows `[b, length]` int32, the newest first, padded with 0.
            Events of the same second are left out.
        """
        order, starts = np.argsort(events), self.item_row.starts
        out = np.empty((len(events), length), np.int32)
        for number, part in split_sorted(events[order], starts):
            to = order[part]
            out[to] = self.shards[number].histories(events[to] - starts[number], length)
        return out


def input_dtype(dtype: Any) -> np.dtype:
    """Returns the dtype in which a model reads a column: float32 of numbers, int32 of rows."""
    return np.dtype(np.float32 if np.dtype(dtype).kind == "f" else np.int32)


def newest_first(column: np.ndarray, start: np.ndarray, end: np.ndarray, length: int) -> np.ndarray:
    """Returns the last entries of slices of a column, the newest first.

    Args:
        column: Item rows `[n]`, or a feature `[n, …]`.
        start: Start of each slice `[b]`.
        end: End of each slice `[b]`, exclusive.
        length: Maximum number of entries per slice.

    Returns:
        Entries `[b, length, …]` int32, of numbers float32, padded with 0.
    """
    dtype, entry = input_dtype(column.dtype), column.shape[1:]
    if length == 0 or len(column) == 0:
        return np.zeros((len(end), length, *entry), dtype)
    if len(column) < length:
        column = np.concatenate([column, np.zeros((length, *entry), column.dtype)])
    # Views every window of the column, without a copy, so a row is read in one go.
    windows = np.lib.stride_tricks.sliding_window_view(column, length, axis=0)
    first = end - length
    rows = np.moveaxis(windows[np.maximum(first, 0)], -1, 1)[:, ::-1].astype(dtype, order="C")
    for early in np.flatnonzero(first < 0):
        rows[early, : end[early]] = column[: end[early]][::-1]
    is_there = np.arange(length) < (end - start)[:, None]
    rows *= is_there.reshape(*is_there.shape, *[1] * len(entry))
    return rows
