"""Losses of retrieval training."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops


def sampled_softmax(
    query: keras.KerasTensor,
    candidate: keras.KerasTensor,
    item_row: keras.KerasTensor,
    log_q: keras.KerasTensor,
    temperature: float | keras.KerasTensor,
    sample_weight: keras.KerasTensor | None = None,
) -> keras.KerasTensor:
    """Returns the softmax loss over the candidates of a batch, corrected for their sampling.

    The first candidates are the positives of the queries, which are each other's
    negatives; more may follow that are negatives alone (mixed negative sampling:
    Yang et al., WWW 2020). The logit of query i and candidate j is `query_i ·
    candidate_j / temperature - log_q_j` (Yi et al., RecSys 2019, eq. 5), without a
    clip: an item that is drawn often is a negative often, and the correction undoes
    exactly that. A negative that is the query's own item (an accidental hit) is
    masked.

    On JAX, loss and gradients are computed by blocks of queries: memory grows with
    `batch + candidates`, not with their product. Under a distribution whose devices
    divide both, each device computes the part of its own queries.

    Args:
        query: Query embeddings `[batch, dim]`.
        candidate: Candidate embeddings `[candidates, dim]`, `candidates >= batch`;
            row i is the positive of query i.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Logarithm of the probability that one draw of a candidate gives each
            of them `[candidates]` float32.
        temperature: Divides the dot products.
        sample_weight: Weight of each query `[batch]`, not negative; None for ones.

    Returns:
        The weighted mean of the negative log-likelihoods of the positives, a scalar
        float32: 0, with gradients 0, if the weights sum to 0; NaN if a number in
        `query`, `candidate` or `log_q` is infinite or NaN.

    Raises:
        ValueError: There are fewer candidates than queries.
    """
    n_queries, n_candidates = query.shape[0], candidate.shape[0]
    if n_candidates < n_queries:
        raise ValueError(
            "Each query must have its positive among the candidates. "
            f"Received: {n_queries} queries, {n_candidates} candidates."
        )
    weight = _shares(sample_weight, n_queries)
    loss = _chosen(n_queries, n_candidates)(query, candidate, item_row, log_q, temperature, weight)
    # A query whose logits are infinite could hide among the others' losses.
    is_finite = [ops.all(ops.isfinite(x)) for x in (query, candidate, log_q)]
    return ops.where(ops.all(ops.stack(is_finite)), loss, float("nan"))


def _chosen(n_queries: int, n_candidates: int) -> Any:
    if keras.backend.backend() != "jax":
        return plain_loss
    # JAX is not there under other backends.
    from recsys.softmax_loss import can_sweep, sweep_loss

    return sweep_loss if can_sweep(n_queries, n_candidates) else plain_loss


def plain_loss(
    query: keras.KerasTensor,
    candidate: keras.KerasTensor,
    item_row: keras.KerasTensor,
    log_q: keras.KerasTensor,
    temperature: float | keras.KerasTensor,
    weight: keras.KerasTensor,
) -> keras.KerasTensor:
    """Returns the weighted sum of the queries' losses, with the matrix of logits in memory.

    For every backend, and for shapes that don't divide among the devices. Arguments are
    those of `sampled_softmax`; `weight` `[batch]` is used as it is.
    """
    n_queries, n_candidates = query.shape[0], candidate.shape[0]
    query, candidate, log_q = (ops.cast(x, "float32") for x in (query, candidate, log_q))
    logits = ops.matmul(query, ops.transpose(candidate)) / temperature - log_q[None, :]
    same = ops.equal(item_row[:n_queries, None], item_row[None, :])
    is_positive = ops.eye(n_queries, n_candidates, dtype="bool")
    # The positive is never masked, so every row has a logit that is finite.
    masked = ops.logical_and(same, ops.logical_not(is_positive))
    logits = ops.where(masked, float("-inf"), logits)
    positive = ops.sum(ops.where(is_positive, logits, 0.0), axis=-1)
    return ops.sum(weight * (ops.logsumexp(logits, axis=-1) - positive))


def _shares(sample_weight: keras.KerasTensor | None, n_queries: int) -> keras.KerasTensor:
    """Returns the share of each query in the weighted mean `[batch]` float32."""
    if sample_weight is None:
        return ops.full((n_queries,), 1.0 / n_queries, dtype="float32")
    weight = ops.cast(sample_weight, "float32")
    total = ops.sum(weight)
    is_none = ops.equal(total, 0.0)
    # Divided by 1 where it isn't used: no NaN, in the gradient neither.
    return ops.where(is_none, 0.0, weight / ops.where(is_none, 1.0, total))
