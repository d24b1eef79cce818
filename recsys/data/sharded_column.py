"""One column that lies in several arrays, end to end."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np


class ShardedColumn:
    """Arrays laid end to end without a copy; reads like one array of one dimension.

    Args:
        shards: The arrays, all of one dtype.
        dtype: Their dtype, for a column without a shard.
    """

    def __init__(self, shards: Sequence[np.ndarray], dtype: Any = None) -> None:
        self.shards = tuple(shards)
        self.dtype = np.dtype(dtype or self.shards[0].dtype)
        lengths = [len(shard) for shard in self.shards]
        self.starts = np.concatenate([[0], np.cumsum(lengths, dtype=np.int64)]).astype(np.int64)
        """First entry of each shard, and the end `[shards + 1]` int64."""

    def __len__(self) -> int:
        return int(self.starts[-1])

    @functools.cached_property
    def shape(self) -> tuple[int]:
        """Entries of the column, as NumPy says it."""
        return (len(self),)

    def __iter__(self) -> Iterator[Any]:
        for shard in self.shards:
            yield from shard

    def __getitem__(self, key: Any) -> Any:
        """Returns an entry, a slice, or the entries at an array of places `[...]`."""
        if isinstance(key, slice):
            return self._slice(key)
        places = np.asarray(key)
        if places.dtype == bool:
            places = np.flatnonzero(places)
        if places.ndim == 0:
            return self._gather(places[None])[0]
        return self._gather(places.ravel()).reshape(places.shape)

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
        return np.concatenate(parts) if parts else np.zeros(0, self.dtype)

    def _gather(self, places: np.ndarray) -> np.ndarray:
        if len(self.shards) == 1:
            return self.shards[0][places]
        places = np.where(places < 0, places + len(self), places)
        if len(places) and not (places.min() >= 0 and places.max() < len(self)):
            raise IndexError(f"places must be below {len(self)}; received {places.max()}")
        order = np.argsort(places)
        out = np.empty(len(places), self.dtype)
        out[order] = self.gather_sorted(places[order])
        return out

    def gather_sorted(self, places: np.ndarray) -> np.ndarray:
        """Returns the entries `[n]` at ascending `places` `[n]`."""
        out = np.empty(len(places), self.dtype)
        for shard, first, part in self.split_sorted(places):
            out[part] = shard[places[part] - first]
        return out

    def split_sorted(self, places: np.ndarray) -> Iterator[tuple[np.ndarray, int, slice]]:
        """Yields each shard that ascending `places` meet, its first entry, and which of them."""
        borders = np.searchsorted(places, self.starts)
        for number, shard in enumerate(self.shards):
            if borders[number] < borders[number + 1]:
                part = slice(int(borders[number]), int(borders[number + 1]))
                yield shard, int(self.starts[number]), part
