"""Transitions: how often an item soon follows another one in the events of a user."""

from __future__ import annotations

from typing import Any

import numpy as np

from recsys.ragged import RaggedRows

_BLOCK_EVENTS = 2**22
"""Number of events whose pairs are in memory at a time."""


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


def newest_first_weights(lists: RaggedRows, n_rows: int, newest: int, decay: float) -> Any:
    """Returns the weights of the newest entries of lists, `decay` to the power of their age.

    Args:
        lists: Item rows, the oldest first.
        n_rows: Number of item rows, row 0 included.
        newest: Number of newest entries that have a weight.
        decay: Factor per newer entry.

    Returns:
        A matrix `[lists, item rows]` float32 in CSR; an item has the sum of its entries' weights.
    """
    from scipy import sparse

    owner = lists.owner()
    age = lists.offsets[1:][owner] - 1 - np.arange(len(owner))
    kept = age < newest
    weight = np.power(np.float32(decay), age[kept], dtype=np.float32)
    shape = (len(lists), n_rows)
    weights = sparse.csr_array((weight, (owner[kept], lists.rows[kept])), shape=shape)
    weights.sum_duplicates()
    return weights
