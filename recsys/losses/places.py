"""Where items are among the candidates: the first place of each.

By a sort of the candidates and a binary search, in memory that grows with the numbers of
candidates and of items that are looked for, not with their product.
"""

from __future__ import annotations

import keras
from keras import ops

NO_ITEM = 0
"""The row that fills lists of known items up."""


def first_places(item_row: keras.KerasTensor, wanted: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the first place of each wanted item among the candidates, in `wanted`'s shape.

    Args:
        item_row: Item row of each candidate `[candidates]` int32.
        wanted: Item rows int32, of any shape.

    Returns:
        Places in 0 … candidates - 1, and `candidates` for items that are none; int32.
    """
    n_candidates = item_row.shape[0]
    order = ops.cast(ops.argsort(item_row), "int32")  # Stable: equal rows stay in order.
    in_order = ops.take(item_row, order)
    flat = ops.reshape(wanted, (-1,))
    at = ops.minimum(ops.cast(ops.searchsorted(in_order, flat), "int32"), n_candidates - 1)
    is_found = ops.equal(ops.take(in_order, at), flat)
    return ops.reshape(ops.where(is_found, ops.take(order, at), n_candidates), wanted.shape)


def is_first(item_row: keras.KerasTensor) -> keras.KerasTensor:
    """Returns whether each candidate is the first one of its item `[candidates]` bool."""
    return ops.equal(first_places(item_row, item_row), ops.arange(item_row.shape[0], dtype="int32"))


def known_places(
    item_row: keras.KerasTensor, known: keras.KerasTensor, positive: keras.KerasTensor
) -> keras.KerasTensor:
    """Returns the places of each query's known items, its own positive left out.

    Args:
        item_row: Item row of each candidate `[candidates]` int32.
        known: Item rows of each query `[batch, known]` int32; 0 is none.
        positive: Place of each query's positive `[batch]` int32.

    Returns:
        First places `[batch, known]` int32; `candidates` for what isn't among them.
    """
    places = first_places(item_row, known)
    is_none = ops.logical_or(ops.equal(known, NO_ITEM), ops.equal(places, positive[:, None]))
    return ops.where(is_none, item_row.shape[0], places)
