"""The squared loss for implicit feedback."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import NonNegativeFloat, PositiveFloat

from recsys.errors import RecsysError
from recsys.losses.loss import Loss

if TYPE_CHECKING:
    import keras


class LeastSquares(Loss):
    """Pushes dot products of positives towards 1 and of the catalogue towards 0 (iALS)."""

    title: ClassVar[str] = "Least squares of implicit feedback"
    needs_drawn_negatives: ClassVar[bool] = True

    negative_weight: PositiveFloat = 6.0
    """Weight of the mean over the drawn items relative to the positive."""
    regularisation: NonNegativeFloat = 0.007
    """Weight of the squared lengths of the vectors, counted once per occurrence in the loss."""

    def __call__(
        self,
        query: keras.KerasTensor,
        candidate: keras.KerasTensor,
        item_row: Any,
        log_q: Any,
        temperature: float | keras.KerasTensor = 1.0,
        sample_weight: keras.KerasTensor | None = None,
        known: Any = None,
    ) -> keras.KerasTensor:
        """Returns the loss of a batch. Ignores `item_row`, `log_q` and `known`.

        Hu, Koren and Volinsky, "Collaborative Filtering for Implicit Feedback Datasets", ICDM
        2008, with the regularisation by frequency of Rendle et al., "Revisiting the Performance
        of iALS on Item Recommendation Benchmarks", RecSys 2022. They solve alternating half-steps
        over all pairs; this loss trains any towers on drawn items. With `s_ij = query_i ·
        candidate_j / temperature`, y the positive of query i, N the drawn items, and mean_j the
        mean over N:

            loss_i = (1 - s_iy)²  +  w mean_j s_ij²
                     +  λ (|query_i|² + |candidate_y|²  +  w (|query_i|² + mean_j |candidate_j|²))

        N may contain known positives of a query, as the paper's sum over all pairs contains
        observed pairs. There that sum has the same weight for each user; here its weight grows with
        the number of the user's events.

        The products are not computed: `mean_j s_ij²` is `query_i G query_i` with the Gramian `G =
        mean_j candidate_j candidate_jᵀ`. So the work of a step grows with `batch + drawn`, not with
        their product, and devices exchange only the Gramian and the positives.

        Raises:
            RecsysError: There are no drawn items (R344), or the shapes don't match (R334).
        """
        from keras import ops

        from recsys.losses.batch import check_entries, check_pair, mean_weights, nan_unless_finite

        check_pair(query, candidate)
        n_queries, n_candidates = query.shape[0], candidate.shape[0]
        if n_candidates <= n_queries:
            raise RecsysError(
                "R344",
                "Least squares must have at least one drawn item behind the positives.",
                "Draw items from the catalogue: train.uniform_negatives.",
                f"{n_queries} queries, {n_candidates} candidates",
            )
        check_entries(n_queries, "queries", sample_weight=sample_weight)
        query, candidate = (ops.cast(x, "float32") for x in (query, candidate))
        positive, drawn = candidate[:n_queries], candidate[n_queries:]
        gramian = ops.matmul(ops.transpose(drawn), drawn) / (n_candidates - n_queries)
        score = ops.sum(query * positive, axis=-1) / temperature
        square = ops.sum(ops.matmul(query, gramian) * query, axis=-1) / temperature**2
        of_pair = ops.sum(query * query + positive * positive, axis=-1)
        of_drawn = ops.sum(query * query, axis=-1) + ops.trace(gramian)
        loss = ops.square(1.0 - score) + self.negative_weight * square
        loss = loss + self.regularisation * (of_pair + self.negative_weight * of_drawn)
        weight = mean_weights(ops.ones((n_queries,)) if sample_weight is None else sample_weight)
        return nan_unless_finite(ops.sum(weight * loss), query, candidate)
