"""The weighted mean of the queries' losses over the candidates of a batch.

On JAX `recsys.losses.softmax_jax` computes them, elsewhere `recsys.losses.batch.plain_loss`.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.errors import RecsysError
from recsys.losses.batch import (
    QueryLoss,
    check_entries,
    check_pair,
    mean_weights,
    nan_unless_finite,
    plain_loss,
)
from recsys.losses.loss import SHARED_BY_ALL, CandidateSharing


def mean_over_candidates(
    query: keras.KerasTensor,
    candidate: keras.KerasTensor,
    item_row: keras.KerasTensor,
    log_q: keras.KerasTensor,
    temperature: float | keras.KerasTensor,
    sample_weight: keras.KerasTensor | None,
    known: keras.KerasTensor | None,
    query_loss: QueryLoss,
    positive_scale: float | keras.KerasTensor = 1.0,
    sharing: CandidateSharing = SHARED_BY_ALL,
) -> keras.KerasTensor:
    """Returns the weighted mean of the queries' losses over the candidates of a batch.

    Args:
        query: Query embeddings `[batch, dim]`.
        candidate: Candidate embeddings `[candidates, dim]`; the positives come first.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Subtracted from the logits `[candidates]`; for a `MeanHinge` the weights of the
            candidates, which have no gradient.
        temperature: Divides the dot products.
        sample_weight: Weight of each query `[batch]`; None for ones.
        known: Items that are no negatives of a query `[batch, known]`, padded with 0, or None.
        query_loss: Loss of a query.
        positive_scale: Factor on the positive's logit outside the sum of a softmax; it has a
            gradient.
        sharing: How candidates are shared among queries and devices.

    Raises:
        RecsysError: The shapes don't match (R334); there are fewer candidates than queries, or
            they don't divide into the groups (R344).
    """
    check_pair(query, candidate)
    n_queries, n_candidates = query.shape[0], candidate.shape[0]
    if n_candidates < n_queries:
        raise RecsysError(
            "R344",
            "Each query must have its positive among the candidates.",
            "Give the loss the positives of all queries first, then other negatives.",
            f"{n_queries} queries, {n_candidates} candidates",
        )
    if n_queries % sharing.groups or n_candidates % sharing.groups:
        raise RecsysError(
            "R344",
            "Queries and candidates must divide into their groups.",
            f"Give numbers of both that are multiples of {sharing.groups}, or fewer groups.",
            f"{n_queries} queries, {n_candidates} candidates",
        )
    check_entries(n_candidates, "candidates", item_row=item_row, log_q=log_q)
    check_entries(n_queries, "queries", sample_weight=sample_weight, known=known)
    weight = mean_weights(ops.ones((n_queries,)) if sample_weight is None else sample_weight)
    if known is None:
        known = ops.zeros((n_queries, 0), dtype="int32")
    weighted_sum: Any = plain_loss
    if keras.backend.backend() == "jax":
        # Other backends may not have JAX.
        from recsys.losses.softmax_jax import can_sweep, sweep_loss

        is_even = can_sweep(n_queries, n_candidates, sharing.groups)
        weighted_sum = sweep_loss if is_even else plain_loss
    arrays = (query, candidate, item_row, log_q, temperature, weight, known)
    loss = weighted_sum(*arrays, positive_scale, query_loss, sharing)
    return nan_unless_finite(loss, query, candidate, log_q)
