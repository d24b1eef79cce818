"""Transitions: how often an item soon follows another one in the events of a user."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np

from recsys.data.hold_out import KeptEvents
from recsys.data.neighbours import as_arrays, strongest
from recsys.ragged import RaggedRows, slices

_BLOCK_EVENTS = 2**22
"""Number of events whose pairs are in memory at a time."""
_MOST_EVENTS = 2**24
"""Maximum number of events to count; if there are more, only a sample of users is counted."""


def transition_weights(lists: RaggedRows, n_rows: int, n: int, reach: int, shrinkage: float) -> Any:
    """Returns the `n` greatest weights of the items that follow each item.

    The weight of a pair is its count (see `count_transitions`) divided by
    `√(events × events) + shrinkage`.

    Args:
        lists: Item rows of each user's events, the oldest first.
        n_rows: Number of item rows, row 0 included.
        n: Maximum number of following items per item.
        reach: Highest distance of a pair [places].
        shrinkage: Summand in the denominator, which lowers the weights of items with few events.

    Returns:
        A matrix `[item rows, item rows]` float32 in CSR: a row for the first item of the pairs.
    """
    counts = count_transitions(lists, n_rows, reach)
    size = np.sqrt(np.bincount(lists.rows, minlength=n_rows))
    row = np.repeat(np.arange(n_rows), np.diff(counts.indptr))
    counts.data /= size[row] * size[counts.indices] + shrinkage
    return strongest(counts, n)


def following_items(
    events: KeptEvents, is_item: np.ndarray, n: int, reach: int, shrinkage: float
) -> tuple[np.ndarray, np.ndarray]:
    """Returns the items that most often follow each item in the events that training sees.

    Args:
        events: The events that training sees.
        is_item: Whether each item row is an item `[item rows]` bool; others are left out.
        n: See `transition_weights`.
        reach: See `transition_weights`.
        shrinkage: See `transition_weights`.

    Returns:
        Item rows `[item rows, n]` int32, the greatest weight first, padded with 0; and their
        weights `[item rows, n]` float32.
    """
    known = known_lists(events, is_item)
    return as_arrays(transition_weights(known, len(is_item), n, reach, shrinkage), n)


def known_lists(events: KeptEvents, is_item: np.ndarray) -> RaggedRows:
    """Returns the item rows of each user's events, without rows that are no items.

    If there are more than 17 million events, they are those of an even sample of users.

    Args:
        events: The events that training sees.
        is_item: Whether each item row is an item `[item rows]` bool.
    """
    stride = -(-len(events) // _MOST_EVENTS) or 1
    lists = [
        RaggedRows(part.item_row, part.offsets).select(np.arange(0, len(part.offsets) - 1, stride))
        for part in events.shards
    ]
    rows = np.concatenate([np.zeros(0, np.int32), *(part.rows for part in lists)])
    ends = np.cumsum([0, *np.concatenate([np.diff(part.offsets) for part in lists])])
    return of_items(RaggedRows(rows, ends.astype(np.int64)), is_item)


def of_items(lists: RaggedRows, is_item: np.ndarray) -> RaggedRows:
    """Returns lists of item rows without the rows that are no items."""
    known = is_item[lists.rows]
    before = np.concatenate([[0], np.cumsum(known)])
    return RaggedRows(lists.rows[known], before[lists.offsets])


def count_transitions(lists: RaggedRows, n_rows: int, reach: int) -> Any:
    """Returns the weighted number of times that an item follows another one.

    A pair of entries of a list, the second 1 to `reach` places after the first, counts
    1 / distance. An item doesn't follow itself.

    Args:
        lists: Item rows of each user's events, the oldest first.
        n_rows: Number of item rows, row 0 included.
        reach: Highest distance of a pair [places].

    Returns:
        A matrix `[item rows, item rows]` float32 in CSR: a row for the first item of the pairs.
    """
    from scipy import sparse

    counts = sparse.csr_array((n_rows, n_rows), dtype=np.float32)
    for block in lists.blocks(_BLOCK_EVENTS):
        part = lists.part(block)
        owner, parts = part.owner(), []
        for distance in range(1, reach + 1):
            first, second = part.rows[:-distance], part.rows[distance:]
            is_pair = (owner[:-distance] == owner[distance:]) & (first != second)
            weight = np.full(is_pair.sum(), 1 / distance, np.float32)
            parts.append((weight, first[is_pair], second[is_pair]))
        weight, first, second = map(np.concatenate, zip(*parts, strict=True))
        counts = counts + sparse.csr_array((weight, (first, second)), shape=counts.shape)
    counts.sum_duplicates()
    return counts


FILE = "transitions.npz"
_BLOCK_QUERIES = 2**13


@dataclasses.dataclass(frozen=True)
class TransitionScores:
    """Scores of the items that follow the newest items of a history.

    Attributes:
        following: Item rows `[item rows, n]` int32, padded with 0.
        weights: Their weights `[item rows, n]` float32.
        factors: Factor of each of the newest entries of a history, the newest first `[newest]`
            float32.
    """

    following: np.ndarray
    weights: np.ndarray
    factors: np.ndarray

    def of_histories(self, history: np.ndarray) -> Any:
        """Returns the scores of all items: a matrix `[queries, item rows]` float32 in CSR.

        Args:
            history: Item rows `[queries, length]`, the newest first, padded with 0.
        """
        from scipy import sparse

        blocks = slices(len(history), _BLOCK_QUERIES) or [slice(0, 0)]
        return sparse.vstack([self._of_block(history[block]) for block in blocks], format="csr")

    def _of_block(self, history: np.ndarray) -> Any:
        from scipy import sparse

        n_rows, n = self.following.shape
        newest = history[:, : len(self.factors)]
        scores = self.weights[newest] * self.factors[: newest.shape[1], None]
        owner = np.repeat(np.arange(len(newest), dtype=np.int32), newest.shape[1] * n)
        places = owner, self.following[newest].ravel()
        sums = sparse.csr_array((scores.ravel(), places), shape=(len(newest), n_rows))
        sums.eliminate_zeros()
        return sums

    def scaled(self, weight: float) -> TransitionScores:
        """Returns the same with all scores times `weight`."""
        return dataclasses.replace(self, factors=self.factors * np.float32(weight))

    def save(self, folder: Path) -> None:
        """Writes them to a file in `folder`."""
        np.savez(folder / FILE, **dataclasses.asdict(self))

    @classmethod
    def load(cls, folder: Path) -> TransitionScores | None:
        """Reads what `save` wrote; None if it isn't there."""
        if not (folder / FILE).is_file():
            return None
        with np.load(folder / FILE, allow_pickle=False) as arrays:
            return cls(**{name: arrays[name] for name in ("following", "weights", "factors")})
