"""Losses of retrieval training."""

from __future__ import annotations

import keras
from keras import ops

# Far below any logit, and finite: no NaN where a row masks all but its positive.
MASKED = -1e9


def in_batch_softmax(
    query: keras.KerasTensor,
    candidate: keras.KerasTensor,
    item_row: keras.KerasTensor,
    log_q: keras.KerasTensor,
    temperature: float,
) -> keras.KerasTensor:
    """Returns the sampled softmax loss with the batch's other items as negatives.

    The logit of query i and candidate j is `query_i · candidate_j / temperature -
    log_q_j` (Yi et al., RecSys 2019, eq. 5), without a clip: popular items come as
    negatives as often as they are bought, and the correction undoes exactly that.
    A negative that is the query's own item (an accidental hit) is masked.

    Args:
        query: Query embeddings `[batch, dim]`.
        candidate: Candidate embeddings `[batch, dim]`; row i is the positive of
            query i.
        item_row: Item row of each candidate `[batch]` int32.
        log_q: Logarithm of the probability that one draw of a training example
            gives each candidate `[batch]` float32.
        temperature: Divides the dot products.

    Returns:
        The mean negative log-likelihood of the positives, a scalar float32.
    """
    logits = ops.matmul(query, ops.transpose(candidate)) / temperature - log_q[None, :]
    same = ops.equal(item_row[:, None], item_row[None, :])
    is_positive = ops.eye(ops.shape(item_row)[0], dtype="bool")
    logits = ops.where(ops.logical_and(same, ops.logical_not(is_positive)), MASKED, logits)
    positive = ops.sum(ops.where(is_positive, logits, 0.0), axis=-1)
    return ops.mean(ops.logsumexp(logits, axis=-1) - positive)
