"""What losses share: the weights of queries, and where items are among a batch's candidates.

Items are found among the candidates by a sort and a binary search, in memory that grows
with the numbers of candidates and of items, not with their product.
"""

from __future__ import annotations

from typing import NamedTuple

import keras
from keras import ops

NO_ITEM = 0
"""The row that pads lists of known items."""


class Form(NamedTuple):
    """The form of a query's loss, as a function of its scores.

    Attributes:
        is_decoupled: Whether the sum of a softmax leaves the positive out.
        margin: Scores of negatives cost what is above it, in a mean over them; None: they
            cost a softmax.
    """

    is_decoupled: bool = False
    margin: float | None = None


def first_positions(item_row: keras.KerasTensor, wanted: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the first position of each wanted item among the candidates, in `wanted`'s shape.

    Args:
        item_row: Item row of each candidate `[candidates]` int32.
        wanted: Item rows int32, of any shape.

    Returns:
        Positions in 0 … candidates - 1, and `candidates` for items that are no candidates; int32.
    """
    n_candidates = item_row.shape[0]
    order = ops.cast(ops.argsort(item_row), "int32")  # Stable: equal rows stay in order.
    in_order = ops.take(item_row, order)
    flat = ops.reshape(wanted, (-1,))
    at = ops.minimum(ops.cast(_places(in_order, flat), "int32"), n_candidates - 1)
    is_found = ops.equal(ops.take(in_order, at), flat)
    return ops.reshape(ops.where(is_found, ops.take(order, at), n_candidates), wanted.shape)


def _places(in_order: keras.KerasTensor, wanted: keras.KerasTensor) -> keras.KerasTensor:
    if keras.backend.backend() != "jax":
        return ops.searchsorted(in_order, wanted)
    import jax.numpy as jnp

    # In a loop a GPU would start kernels, and copy, for each halving.
    return jnp.searchsorted(in_order, wanted, method="scan_unrolled")


def is_first(item_row: keras.KerasTensor) -> keras.KerasTensor:
    """Returns whether each candidate is the first one of its item `[candidates]` bool."""
    order = ops.argsort(item_row)  # Stable: equal rows stay in order.
    in_order = ops.take(item_row, order)
    starts = ops.concatenate([ops.ones((1,), "bool"), in_order[1:] != in_order[:-1]])
    return ops.cast(ops.scatter(order[:, None], ops.cast(starts, "int32"), starts.shape), "bool")


def known_positions(
    item_row: keras.KerasTensor, known: keras.KerasTensor, positive: keras.KerasTensor
) -> keras.KerasTensor:
    """Returns the positions of each query's known items, its own positive left out.

    Args:
        item_row: Item row of each candidate `[candidates]` int32.
        known: Item rows of each query `[batch, known]` int32; 0 is none.
        positive: Position of each query's positive `[batch]` int32.

    Returns:
        First positions `[batch, known]` int32; `candidates` for what isn't among them.
    """
    positions = first_positions(item_row, known)
    is_none = ops.logical_or(ops.equal(known, NO_ITEM), ops.equal(positions, positive[:, None]))
    return ops.where(is_none, item_row.shape[0], positions)


def mean_weights(weight: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the share of each query in the weighted mean `[batch]` float32.

    Args:
        weight: Weight of each query `[batch]`; all shares are 0 if they sum to 0.
    """
    weight = ops.cast(weight, "float32")
    total = ops.sum(weight)
    is_zero = ops.equal(total, 0.0)
    # Divided by 1 where it isn't used, so that no gradient is NaN.
    return ops.where(is_zero, 0.0, weight / ops.where(is_zero, 1.0, total))


def nan_unless_finite(loss: keras.KerasTensor, *arrays: keras.KerasTensor) -> keras.KerasTensor:
    """Returns `loss`, or NaN if a number in `arrays` is infinite or NaN.

    A query whose scores are infinite could hide among the losses of the others.
    """
    is_finite = [ops.all(ops.isfinite(x)) for x in arrays]
    return ops.where(ops.all(ops.stack(is_finite)), loss, float("nan"))
