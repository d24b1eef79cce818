"""Lists of different lengths, concatenated in one array."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator

import numpy as np


@dataclasses.dataclass(frozen=True)
class RaggedRows:
    """Concatenated lists of item rows.

    Attributes:
        rows: Item rows `[n]`.
        offsets: Index of each list's first entry, and the end `[lists + 1]`.
    """

    rows: np.ndarray
    offsets: np.ndarray

    @classmethod
    def of(cls, lists: Iterable[np.ndarray]) -> RaggedRows:
        """Concatenates lists of item rows."""
        none = np.zeros(0, np.int32)
        parts = [none, *lists]
        offsets = np.cumsum([len(part) for part in parts], dtype=np.int64)
        return cls(np.concatenate(parts).astype(np.int32), offsets)

    @classmethod
    def empty(cls, n_lists: int) -> RaggedRows:
        """Returns lists without entries."""
        return cls(np.zeros(0, np.int32), np.zeros(n_lists + 1, np.int64))

    def __len__(self) -> int:
        return len(self.offsets) - 1

    def owner(self) -> np.ndarray:
        """Returns the index of each entry's list `[n]`."""
        return np.repeat(np.arange(len(self)), np.diff(self.offsets))

    def part(self, block: slice) -> RaggedRows:
        """Returns the lists in `block`."""
        offsets = self.offsets[block.start : block.stop + 1]
        return RaggedRows(self.rows[offsets[0] : offsets[-1]], offsets - offsets[0])

    def blocks(self, most: int) -> Iterator[slice]:
        """Yields slices of lists with about `most` entries each, or with one longer list."""
        start = 0
        while start < len(self):
            end = int(np.searchsorted(self.offsets, self.offsets[start] + most, side="right")) - 1
            end = min(max(end, start + 1), len(self))
            yield slice(start, end)
            start = end

    def select(self, chosen: np.ndarray) -> RaggedRows:
        """Returns the lists that `chosen` `[n]` selects: a mask, or indices."""
        places = np.arange(len(self))[chosen]
        counts = np.diff(self.offsets)[places]
        rows = self.rows[ranges(self.offsets[places], counts)]
        return RaggedRows(rows, np.concatenate([[0], np.cumsum(counts)]))


def slices(stop: int, size: int, start: int = 0) -> list[slice]:
    """Returns the slices of `size` numbers each, the last maybe shorter, from `start` to `stop`."""
    return [slice(first, min(first + size, stop)) for first in range(start, stop, size)]


def run_starts(*keys: np.ndarray) -> np.ndarray:
    """Returns which entries are the first of a run with equal keys `[n]` bool.

    Args:
        keys: Keys of each entry `[n]`, at least one.
    """
    is_first = np.ones(len(keys[0]), bool)
    is_first[1:] = np.logical_or.reduce([key[1:] != key[:-1] for key in keys])
    return is_first


def ranges(starts: np.ndarray, counts: np.ndarray) -> np.ndarray:
    """Returns the concatenated ranges `start`, `start + 1`, … of `counts` numbers each.

    Args:
        starts: First number of each range `[n]`.
        counts: Length of each range `[n]`.
    """
    before = np.cumsum(counts) - counts
    return np.arange(counts.sum()) + np.repeat(starts - before, counts)
