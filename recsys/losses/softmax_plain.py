"""Reference implementation of the sampled softmax, for every backend."""

from __future__ import annotations

import keras
from keras import ops

from recsys.losses.batch import is_first, known_positions


def plain_loss(
    query: keras.KerasTensor,
    candidate: keras.KerasTensor,
    item_row: keras.KerasTensor,
    log_q: keras.KerasTensor,
    temperature: float | keras.KerasTensor,
    weight: keras.KerasTensor,
    known: keras.KerasTensor,
) -> keras.KerasTensor:
    """Returns the weighted sum of the queries' losses, with the matrix of logits in memory.

    For every backend, and for shapes that don't divide among the devices. Arguments are
    those of `sampled_softmax`; `weight` `[batch]` is used as it is.
    """
    n_queries, n_candidates = query.shape[0], candidate.shape[0]
    query, candidate, log_q = (ops.cast(x, "float32") for x in (query, candidate, log_q))
    item_row = ops.cast(item_row, "int32")
    logits = ops.matmul(query, ops.transpose(candidate)) / temperature - log_q[None, :]
    is_positive = ops.eye(n_queries, n_candidates, dtype="bool")
    # The positive is never masked, so every row has a logit that is finite.
    is_masked = ops.logical_and(_no_negatives(item_row, known), ops.logical_not(is_positive))
    logits = ops.where(is_masked, float("-inf"), logits)
    positive = ops.sum(ops.where(is_positive, logits, 0.0), axis=-1)
    return ops.sum(weight * (ops.logsumexp(logits, axis=-1) - positive))


def _no_negatives(item_row: keras.KerasTensor, known: keras.KerasTensor) -> keras.KerasTensor:
    """Returns which candidates are no negatives of a query `[batch, candidates]` bool."""
    n_queries, n_candidates = known.shape[0], item_row.shape[0]
    own = ops.equal(item_row[:n_queries, None], item_row[None, :])
    masked = ops.logical_or(own, ops.logical_not(is_first(item_row))[None, :])
    if known.shape[1] == 0:
        return masked
    positive = ops.arange(n_queries, dtype="int32")
    # A column more takes what isn't among the candidates.
    positions = known_positions(item_row, ops.cast(known, "int32"), positive)
    indices = ops.reshape(positive[:, None] * (n_candidates + 1) + positions, (-1, 1))
    hits = ops.scatter(indices, ops.ones(indices.shape[0]), (n_queries * (n_candidates + 1),))
    hits = ops.reshape(hits, (n_queries, n_candidates + 1))[:, :-1]
    return ops.logical_or(masked, hits > 0)
