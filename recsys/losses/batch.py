"""Losses over the candidates of a batch, and the checks, weights and positions that they share.

Items are found among the candidates by a sort and a binary search, in memory that grows
with the numbers of candidates and of items, not with their product.

`plain_loss` is the definition of the losses, for every backend; on JAX
`recsys.losses.softmax_jax` computes the same.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.errors import RecsysError
from recsys.losses.loss import SHARED_BY_ALL, CandidateSharing

NO_ITEM = 0
"""Row that pads lists of known items."""
_FLOATS = ("float32", "bfloat16", "float16", "float64")


def plain_loss(
    query: keras.KerasTensor,
    candidate: keras.KerasTensor,
    item_row: keras.KerasTensor,
    log_q: keras.KerasTensor,
    temperature: float | keras.KerasTensor,
    weight: keras.KerasTensor,
    known: keras.KerasTensor,
    sharing: CandidateSharing = SHARED_BY_ALL,
) -> keras.KerasTensor:
    """Returns the weighted sum of the queries' losses, with the matrix of logits in memory.

    A query's loss is the log of the summed exponentials of its logits, minus that of its positive.

    For every backend, and for shapes that don't divide among the devices. Takes the arguments
    of `recsys.losses.softmax_jax.sweep_loss`.
    """
    if sharing.groups > 1:
        arrays = (query, candidate, item_row, log_q, weight, known)
        parts = zip(*(ops.split(x, sharing.groups) for x in arrays), strict=True)
        losses = [plain_loss(q, c, row, z, temperature, w, k) for q, c, row, z, w, k in parts]
        return ops.sum(ops.stack(losses))
    n_queries, n_candidates = query.shape[0], candidate.shape[0]
    query, candidate, log_q = (ops.cast(x, "float32") for x in (query, candidate, log_q))
    item_row = ops.cast(item_row, "int32")
    logits = ops.matmul(query, ops.transpose(candidate)) / temperature - log_q[None, :]
    is_positive = ops.eye(n_queries, n_candidates, dtype="bool")
    positive = ops.sum(ops.where(is_positive, logits, 0.0), axis=-1)
    # The positive is never masked, so every row has a finite logit.
    is_summed = ops.logical_or(ops.logical_not(_is_excluded(item_row, known)), is_positive)
    logits = ops.where(is_summed, logits, float("-inf"))
    return ops.sum(weight * (ops.logsumexp(logits, axis=-1) - positive))


def _is_excluded(item_row: keras.KerasTensor, known: keras.KerasTensor) -> keras.KerasTensor:
    """Returns which candidates are no negatives of a query `[batch, candidates]` bool."""
    n_queries, n_candidates = known.shape[0], item_row.shape[0]
    own = ops.equal(item_row[:n_queries, None], item_row[None, :])
    masked = ops.logical_or(own, ops.logical_not(is_first(item_row))[None, :])
    if known.shape[1] == 0:
        return masked
    positive = ops.arange(n_queries, dtype="int32")
    # One more column collects the items that are no candidates.
    positions = known_positions(item_row, ops.cast(known, "int32"), positive)
    indices = ops.reshape(positive[:, None] * (n_candidates + 1) + positions, (-1, 1))
    hits = ops.scatter(indices, ops.ones(indices.shape[0]), (n_queries * (n_candidates + 1),))
    hits = ops.reshape(hits, (n_queries, n_candidates + 1))[:, :-1]
    return ops.logical_or(masked, hits > 0)


# --- checks


def check_vectors(vectors: Any, name: str, rows: int | None = None) -> None:
    """Checks that `vectors` is a float array `[rows, width]`.

    Args:
        vectors: Object to check.
        name: Its name in the error.
        rows: Required number of rows; None for any.

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
        of: Name of the model's class, for the error.

    Raises:
        RecsysError: They aren't (R334).
    """
    check_vectors(query, f"The result of {of}.query()" if of else "query")
    check_vectors(candidate, f"The result of {of}.candidate()" if of else "candidate")
    widths = {query.shape[1], candidate.shape[1]} - {None}  # TensorFlow may not know a width.
    if len(widths) > 1:
        raise RecsysError(
            "R334",
            f"Queries and candidates{f' of {of}' if of else ''} must have the same width: their"
            " score is a dot product.",
            "End both with a layer of the same width, such as config.dim.",
            f"query {described(query)}, candidate {described(candidate)}",
        )


def check_scalar(value: Any, name: str) -> None:
    """Checks that `value` is a float scalar.

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
    """Returns the dtype and shape of a tensor, or the class name of another object."""
    if not hasattr(x, "shape"):
        return type(x).__name__
    return f"{keras.backend.standardize_dtype(x.dtype)}{list(x.shape)}"


# --- positions among the candidates


def first_positions(item_row: keras.KerasTensor, wanted: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the first position of each wanted item among the candidates, in `wanted`'s shape.

    Args:
        item_row: Item row of each candidate `[candidates]` int32.
        wanted: Item rows int32, of any shape.

    Returns:
        Positions int32; `candidates` for items that are no candidates.
    """
    n_candidates = item_row.shape[0]
    order = ops.cast(ops.argsort(item_row), "int32")  # Stable: equal rows stay in order.
    in_order = ops.take(item_row, order)
    flat = ops.reshape(wanted, (-1,))
    at = ops.minimum(ops.cast(_search(in_order, flat), "int32"), n_candidates - 1)
    is_found = ops.equal(ops.take(in_order, at), flat)
    return ops.reshape(ops.where(is_found, ops.take(order, at), n_candidates), wanted.shape)


def _search(in_order: keras.KerasTensor, wanted: keras.KerasTensor) -> keras.KerasTensor:
    if keras.backend.backend() != "jax":
        return ops.searchsorted(in_order, wanted)
    import jax.numpy as jnp

    # A loop would launch kernels on a GPU for each step of the search.
    return jnp.searchsorted(in_order, wanted, method="scan_unrolled")


def is_first(item_row: keras.KerasTensor) -> keras.KerasTensor:
    """Returns whether each candidate is the first of its item `[candidates]` bool."""
    order = ops.argsort(item_row)  # Stable: equal rows stay in order.
    in_order = ops.take(item_row, order)
    starts = ops.concatenate([ops.ones((1,), "bool"), in_order[1:] != in_order[:-1]])
    return ops.cast(ops.scatter(order[:, None], ops.cast(starts, "int32"), starts.shape), "bool")


def known_positions(
    item_row: keras.KerasTensor, known: keras.KerasTensor, positive: keras.KerasTensor
) -> keras.KerasTensor:
    """Returns the positions of each query's known items, without its own positive.

    Args:
        item_row: Item row of each candidate `[candidates]` int32.
        known: Item rows of each query `[batch, known]` int32, padded with 0.
        positive: Position of each query's positive `[batch]` int32.

    Returns:
        First positions `[batch, known]` int32; `candidates` for other items.
    """
    positions = first_positions(item_row, known)
    is_none = ops.logical_or(ops.equal(known, NO_ITEM), ops.equal(positions, positive[:, None]))
    return ops.where(is_none, item_row.shape[0], positions)


# --- weights


def mean_weights(weight: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the share of each query in the weighted mean `[batch]` float32.

    Args:
        weight: Weight of each query `[batch]`; all shares are 0 if they sum to 0.
    """
    weight = ops.cast(weight, "float32")
    total = ops.sum(weight)
    is_zero = ops.equal(total, 0.0)
    # The unused branch divides by 1, so that no gradient is NaN.
    return ops.where(is_zero, 0.0, weight / ops.where(is_zero, 1.0, total))


def nan_unless_finite(loss: keras.KerasTensor, *arrays: keras.KerasTensor) -> keras.KerasTensor:
    """Returns `loss`, or NaN if `arrays` hold NaN or infinity.

    The mean loss may hide a query with infinite scores.
    """
    is_finite = [ops.all(ops.isfinite(x)) for x in arrays]
    return ops.where(ops.all(ops.stack(is_finite)), loss, float("nan"))
