"""What losses share: the weights of queries, and where items are among a batch's candidates.

Items are found among the candidates by a sort and a binary search, in memory that grows
with the numbers of candidates and of items, not with their product.
"""

from __future__ import annotations

from typing import Any, NamedTuple

import keras
from keras import ops

from recsys.errors import RecsysError

NO_ITEM = 0
"""The row that pads lists of known items."""
_FLOATS = ("float32", "bfloat16", "float16", "float64")


class Form(NamedTuple):
    """The form of a query's loss, as a function of its scores.

    Attributes:
        is_decoupled: Whether the sum of a softmax leaves the positive out.
        margin: Scores of negatives cost what is above it, in a mean over them; None: they
            cost a softmax.
    """

    is_decoupled: bool = False
    margin: float | None = None


def check_vectors(vectors: Any, name: str, rows: int | None = None) -> None:
    """Checks that something is vectors `[rows, width]` of a float type.

    Args:
        vectors: What is checked.
        name: Its name in the error.
        rows: How many there must be; None: any number.

    Raises:
        RecsysError: It is something else (R334).
    """
    shape = getattr(vectors, "shape", None)
    kind = "" if shape is None else keras.backend.standardize_dtype(vectors.dtype)
    is_right = kind in _FLOATS and len(shape or ()) == 2
    if is_right and (rows is None or shape[0] in (rows, None)):  # type: ignore[index]
        return
    n = "rows" if rows is None else rows
    raise RecsysError(
        "R334",
        f"{name} must be vectors [{n}, width] of type float32.",
        "Return one vector for each row of the features: reshape what has more axes, cast what"
        " has another type.",
        described(vectors),
    )


def check_pair(query: Any, candidate: Any, of: str = "") -> None:
    """Checks that queries and candidates are vectors of one width.

    Args:
        query: Query embeddings.
        candidate: Candidate embeddings.
        of: The class that they are of, for the error.

    Raises:
        RecsysError: They aren't (R334).
    """
    check_vectors(query, f"The result of {of}.query()" if of else "query")
    check_vectors(candidate, f"The result of {of}.candidate()" if of else "candidate")
    widths = {query.shape[1], candidate.shape[1]} - {None}  # TensorFlow may not know one yet.
    if len(widths) > 1:
        raise RecsysError(
            "R334",
            f"Queries and candidates{f' of {of}' if of else ''} must have the same width: their"
            " score is a dot product.",
            "End both with a layer of the same width, such as config.dim.",
            f"query {described(query)}, candidate {described(candidate)}",
        )


def check_scalar(value: Any, name: str) -> None:
    """Checks that something is a scalar of a float type.

    Raises:
        RecsysError: It is something else (R334).
    """
    shape = getattr(value, "shape", None)
    kind = "" if shape is None else keras.backend.standardize_dtype(value.dtype)
    if shape is None or len(shape) or kind not in _FLOATS:
        raise RecsysError(
            "R334",
            f"{name} must be a scalar of type float32.",
            "Return the mean over the batch, keras.ops.mean(…).",
            described(value),
        )


def check_entries(n: int, of: str, **arrays: Any) -> None:
    """Checks that arrays have one entry for each of `n` queries or candidates.

    Raises:
        RecsysError: One doesn't (R334).
    """
    for name, array in arrays.items():
        axes = 2 if name == "known" else 1
        if array is not None and (len(array.shape) != axes or array.shape[0] != n):
            raise RecsysError(
                "R334",
                f"{name} must have one entry for each of the {n} {of}.",
                "Give the loss the arrays of one batch, in the same order.",
                described(array),
            )


def described(x: Any) -> str:
    """Returns the type and shape of a tensor, or the class of anything else."""
    if not hasattr(x, "shape"):
        return type(x).__name__
    return f"{keras.backend.standardize_dtype(x.dtype)}{list(x.shape)}"


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
