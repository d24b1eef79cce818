"""Losses of retrieval training."""

from __future__ import annotations

import keras
from keras import ops

# Far below any logit, and finite: no NaN where a row masks all but its positive.
MASKED = -1e9


def sampled_softmax(
    query: keras.KerasTensor,
    candidate: keras.KerasTensor,
    item_row: keras.KerasTensor,
    log_q: keras.KerasTensor,
    temperature: float,
) -> keras.KerasTensor:
    """Returns the softmax loss over the candidates of a batch, corrected for their sampling.

    The first candidates are the positives of the queries, which are each other's
    negatives; more may follow that are negatives alone (mixed negative sampling:
    Yang et al., WWW 2020). The logit of query i and candidate j is `query_i ·
    candidate_j / temperature - log_q_j` (Yi et al., RecSys 2019, eq. 5), without a
    clip: an item that is drawn often is a negative often, and the correction undoes
    exactly that. A negative that is the query's own item (an accidental hit) is
    masked.

    Args:
        query: Query embeddings `[batch, dim]`.
        candidate: Candidate embeddings `[candidates, dim]`, `candidates >= batch`;
            row i is the positive of query i.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Logarithm of the probability that one draw of a candidate gives each
            of them `[candidates]` float32.
        temperature: Divides the dot products.

    Returns:
        The mean negative log-likelihood of the positives, a scalar float32.
    """
    n_queries, n_candidates = query.shape[0], candidate.shape[0]
    logits = ops.matmul(query, ops.transpose(candidate)) / temperature - log_q[None, :]
    same = ops.equal(item_row[:n_queries, None], item_row[None, :])
    is_positive = ops.eye(n_queries, n_candidates, dtype="bool")
    logits = ops.where(ops.logical_and(same, ops.logical_not(is_positive)), MASKED, logits)
    positive = ops.sum(ops.where(is_positive, logits, 0.0), axis=-1)
    return ops.mean(ops.logsumexp(logits, axis=-1) - positive)
