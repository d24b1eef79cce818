"""The cosine contrastive loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated, Any, ClassVar

from pydantic import Field, NonNegativeFloat

from recsys.losses.loss import SHARED_BY_ALL, CandidateSharing, Loss, positives_of

if TYPE_CHECKING:
    import keras


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
        item_row: keras.KerasTensor,
        log_q: keras.KerasTensor,
        temperature: Any,
        sample_weight: keras.KerasTensor | None = None,
        known: keras.KerasTensor | None = None,
        sharing: CandidateSharing = SHARED_BY_ALL,
    ) -> keras.KerasTensor:
        """Returns the loss of a batch. Ignores `temperature`.

        Mao et al., "SimpleX: A Simple and Strong Baseline for Collaborative Filtering", CIKM
        2021. With `s_ij = query_i · candidate_j`, y the positive of query i, m the margin
        and S_i its negatives, as in `SampledSoftmax`:

            loss_i = max(0, 1 - s_iy)  +  w Σ_{j in S_i} v_j max(0, s_ij - m) / Σ_{j in S_i} v_j

        The paper draws negatives uniformly. Here the batch shares its negatives, and popular items
        are among them more often, so each is weighted by `v_j = 1 / q_j`: the mean then estimates
        the mean over the whole catalogue (Hájek's estimator, 1971, with the inclusion probabilities
        `q_j`). With `log_q` 0 it is the mean over the candidates. A query without negatives has
        only the loss of its positive.

        Vectors are of length 1, apart from a bias, if products are to be cosines. `log_q` has no
        gradient.
        """
        from keras import ops

        from recsys.losses.batch import MeanHinge, mean_weights, nan_unless_finite
        from recsys.losses.softmax import mean_over_candidates

        log_q = ops.stop_gradient(ops.cast(log_q, "float32"))
        arrays = (query, candidate, item_row, ops.exp(ops.min(log_q) - log_q), 1.0)
        negatives = mean_over_candidates(
            MeanHinge(self.margin), *arrays, sample_weight, known, sharing=sharing
        )
        n_queries = query.shape[0]
        weight = mean_weights(ops.ones((n_queries,)) if sample_weight is None else sample_weight)
        positive = positives_of(candidate, n_queries, sharing.groups)
        query, positive = (ops.cast(x, "float32") for x in (query, positive))
        missing = ops.relu(1.0 - ops.sum(query * positive, axis=-1))
        return nan_unless_finite(
            ops.sum(weight * missing) + self.negative_weight * negatives, log_q
        )
