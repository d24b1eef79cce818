"""The loss of queries over the candidates of a batch: a softmax, or hinges.

On JAX `recsys.losses.softmax_jax` computes it; `plain_loss` is its definition, for every backend.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.errors import RecsysError
from recsys.losses.batch import (
    Form,
    check_entries,
    check_pair,
    is_first,
    known_positions,
    mean_weights,
    nan_unless_finite,
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
    form: Form,
    pull: float | keras.KerasTensor = 1.0,
    sharing: CandidateSharing = SHARED_BY_ALL,
) -> keras.KerasTensor:
    """Returns the weighted mean of losses over a set of candidates, as `sampled_softmax` does.

    Args:
        query: As in `sampled_softmax`, and so are the next ones.
        candidate: Candidate embeddings.
        item_row: Item row of each candidate.
        log_q: Subtracted from the logits; where the form has a margin, weights of the
            candidates, without a gradient.
        temperature: Divides the dot products.
        sample_weight: Weight of each query; None for ones.
        known: Items that are no negatives of a query; None for none.
        form: What the loss of a query is, of its scores.
        pull: What the positive's logit is multiplied by, where it stands outside of the
            softmax' sum; it has a gradient.
        sharing: How candidates are shared.

    Raises:
        RecsysError: Arrays don't fit each other (R334); there are fewer candidates than
            queries, or they don't divide into the groups (R344).
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
        # JAX is not there under other backends.
        from recsys.losses.softmax_jax import can_sweep, sweep_loss

        is_even = can_sweep(n_queries, n_candidates, sharing.groups)
        weighted_sum = sweep_loss if is_even else plain_loss
    arrays = (query, candidate, item_row, log_q, temperature, weight, known)
    loss = weighted_sum(*arrays, pull, form, sharing)
    return nan_unless_finite(loss, query, candidate, log_q)


def plain_loss(
    query: keras.KerasTensor,
    candidate: keras.KerasTensor,
    item_row: keras.KerasTensor,
    log_q: keras.KerasTensor,
    temperature: float | keras.KerasTensor,
    weight: keras.KerasTensor,
    known: keras.KerasTensor,
    pull: float | keras.KerasTensor = 1.0,
    form: Form = Form(),  # noqa: B008  It is a tuple.
    sharing: CandidateSharing = SHARED_BY_ALL,
) -> keras.KerasTensor:
    """Returns the weighted sum of the queries' losses, with the matrix of logits in memory.

    For every backend, and for shapes that don't divide among the devices. Arguments are
    those of `recsys.losses.softmax_jax.sweep_loss`.
    """
    if sharing.groups > 1:
        arrays = (query, candidate, item_row, log_q, weight, known)
        parts = zip(*(ops.split(x, sharing.groups) for x in arrays), strict=True)
        losses = [
            plain_loss(q, c, row, z, temperature, w, k, pull, form) for q, c, row, z, w, k in parts
        ]
        return ops.sum(ops.stack(losses))
    n_queries, n_candidates = query.shape[0], candidate.shape[0]
    query, candidate, log_q = (ops.cast(x, "float32") for x in (query, candidate, log_q))
    item_row = ops.cast(item_row, "int32")
    products = ops.matmul(query, ops.transpose(candidate)) / temperature
    is_positive = ops.eye(n_queries, n_candidates, dtype="bool")
    is_negative = ops.logical_not(ops.logical_or(_no_negatives(item_row, known), is_positive))
    if form.margin is not None:
        return ops.sum(weight * _hinges(products - form.margin, is_negative, log_q))
    logits = products - log_q[None, :]
    positive = ops.sum(ops.where(is_positive, logits, 0.0), axis=-1)
    if not form.is_decoupled:
        # The positive is never masked, so every row has a logit that is finite.
        is_summed = ops.logical_or(is_negative, is_positive)
        logits = ops.where(is_summed, logits, float("-inf"))
        return ops.sum(weight * (ops.logsumexp(logits, axis=-1) - pull * positive))
    has_negative = ops.any(is_negative, axis=-1, keepdims=True)
    # A row without a negative sums what it likes, and has no gradient.
    logits = ops.where(
        ops.logical_or(is_negative, ops.logical_not(has_negative)), logits, float("-inf")
    )
    losses = ops.logsumexp(logits, axis=-1) - pull * positive
    return ops.sum(weight * ops.where(has_negative[:, 0], losses, 0.0))


def _hinges(
    scores: keras.KerasTensor, is_negative: keras.KerasTensor, share: keras.KerasTensor
) -> keras.KerasTensor:
    """Returns the mean of the negatives' scores above 0 `[batch]`, weighted by `share`."""
    share = ops.where(is_negative, share[None, :], 0.0)
    total = ops.sum(share, axis=-1)
    mean = ops.sum(share * ops.relu(scores), axis=-1)
    return mean / ops.where(ops.equal(total, 0.0), 1.0, total)


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
