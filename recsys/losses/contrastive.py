"""The cosine contrastive loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, NonNegativeFloat

from recsys.losses.loss import SHARED_BY_ALL, CandidateSharing, Loss, positives_of
from recsys.registry import register_loss

if TYPE_CHECKING:
    import keras


@register_loss("cosine_contrastive")
class CosineContrastive(Loss):
    """Pushes positives towards 1 and negatives below a margin (SimpleX); use many negatives."""

    title: ClassVar[str] = "Cosine contrastive loss"
    takes_sharing: ClassVar[bool] = True

    margin: Annotated[float, Field(ge=-1.0, lt=1.0)] = 0.9
    """Similarity up to which a negative has no loss [-1..1)."""
    negative_weight: NonNegativeFloat = 150.0
    """Weight of the mean over the negatives relative to the positive."""

    def __call__(
        self,
        query: keras.KerasTensor,
        candidate: keras.KerasTensor,
        *,
        temperature: Any,
        **batch: Any,
    ) -> keras.KerasTensor:
        """Returns the loss of a batch; see `cosine_contrastive`. Ignores `temperature`."""
        return cosine_contrastive(query, candidate, **batch, **self.model_dump())


def cosine_contrastive(
    query: keras.KerasTensor,
    candidate: keras.KerasTensor,
    item_row: keras.KerasTensor,
    log_q: keras.KerasTensor,
    sample_weight: keras.KerasTensor | None = None,
    known: keras.KerasTensor | None = None,
    margin: float = 0.9,
    negative_weight: float = 150.0,
    sharing: CandidateSharing = SHARED_BY_ALL,
) -> keras.KerasTensor:
    """Returns the cosine contrastive loss (CCL) against all candidates of a batch.

    Mao et al., "SimpleX: A Simple and Strong Baseline for Collaborative Filtering", CIKM
    2021. With `s_ij = query_i · candidate_j`, y the positive of query i, m the margin
    and S_i its negatives, as in `sampled_softmax`:

        loss_i = max(0, 1 - s_iy)  +  w Σ_{j in S_i} v_j max(0, s_ij - m) / Σ_{j in S_i} v_j

    The paper draws negatives uniformly. Here the batch shares its negatives, and popular items
    are among them more often, so each is weighted by `v_j = 1 / q_j`: the mean then estimates
    the mean over the whole catalogue (Hájek's estimator, 1971, with the inclusion probabilities
    `q_j`). With `log_q` 0 it is the mean over the candidates.

    Args:
        query: Query embeddings `[batch, dim]`, float32 or bfloat16; computed in float32.
            Unit vectors, apart from a bias, if products are to be cosines.
        candidate: Candidate embeddings `[candidates, dim]`; row i is the positive of query i.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Log of the probability that an item is among the negatives `[candidates]`
            float32, without a gradient.
        sample_weight: Weight of each query `[batch]`, not negative; None for ones.
        known: Item rows of each query's known positives `[batch, known]` int32, padded with 0.
            None for none.
        margin: The margin m.
        negative_weight: The weight w.
        sharing: How candidates are shared among queries and devices.

    Returns:
        The weighted mean over the queries, a scalar float32. 0, with zero gradients, if the
        weights sum to 0; NaN if `query`, `candidate` or `log_q` has NaN or infinite entries. A
        query without negatives has only the loss of its positive.

    Raises:
        RecsysError: There are fewer candidates than queries, or they don't divide into
            the groups (R344); or the shapes don't match (R334).
    """
    from keras import ops

    from recsys.losses.batch import MeanHinge, mean_weights, nan_unless_finite
    from recsys.losses.softmax import mean_over_candidates

    log_q = ops.stop_gradient(ops.cast(log_q, "float32"))
    negatives = mean_over_candidates(
        query,
        candidate,
        item_row,
        ops.exp(ops.min(log_q) - log_q),
        1.0,
        sample_weight,
        known,
        MeanHinge(margin),
        sharing=sharing,
    )
    n_queries = query.shape[0]
    weight = mean_weights(ops.ones((n_queries,)) if sample_weight is None else sample_weight)
    positive = positives_of(candidate, n_queries, sharing.groups)
    query, positive = (ops.cast(x, "float32") for x in (query, positive))
    missing = ops.relu(1.0 - ops.sum(query * positive, axis=-1))
    return nan_unless_finite(ops.sum(weight * missing) + negative_weight * negatives, log_q)
