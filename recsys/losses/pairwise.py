"""Bayesian personalised ranking."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from recsys.errors import RecsysError
from recsys.losses.loss import Loss

if TYPE_CHECKING:
    import keras


class Bpr(Loss):
    """Bayesian personalised ranking: one drawn negative per query."""

    title: ClassVar[str] = "Bayesian personalised ranking"
    needs_drawn_negatives: ClassVar[bool] = True

    def __call__(
        self,
        query: keras.KerasTensor,
        candidate: keras.KerasTensor,
        item_row: keras.KerasTensor,
        log_q: Any,
        temperature: float | keras.KerasTensor,
        sample_weight: keras.KerasTensor | None = None,
        known: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        """Returns the loss of a batch. Ignores `log_q`.

        The mean of `-log sigmoid((s_positive - s_negative) / temperature)`: BPR-Opt of Rendle
        et al., UAI 2009, section 4.1, whose regulariser is the optimizers' weight decay.
        Query i is paired with negative `i mod negatives`. Pairs whose negative is the query's own
        item or a known positive have weight 0.

        Raises:
            RecsysError: There is no negative (R344), or the shapes don't match (R334).
        """
        from keras import ops

        from recsys.losses.batch import (
            NO_ITEM,
            check_entries,
            check_pair,
            mean_weights,
            nan_unless_finite,
        )

        check_pair(query, candidate)
        n_queries, n_candidates = query.shape[0], candidate.shape[0]
        if n_candidates <= n_queries:
            raise RecsysError(
                "R344",
                "BPR must have at least one negative behind the positives of the queries.",
                "Draw negatives from the catalogue: train.uniform_negatives.",
                f"{n_queries} queries, {n_candidates} candidates",
            )
        check_entries(n_candidates, "candidates", item_row=item_row)
        check_entries(n_queries, "queries", sample_weight=sample_weight, known=known)
        position = n_queries + ops.arange(n_queries, dtype="int32") % (n_candidates - n_queries)
        query, candidate = (ops.cast(x, "float32") for x in (query, candidate))
        negative = ops.take(candidate, position, axis=0)
        margin = ops.sum(query * (candidate[:n_queries] - negative), axis=-1) / temperature
        weight = ops.ones((n_queries,)) if sample_weight is None else sample_weight
        negative_row = ops.take(item_row, position)
        is_liked = ops.equal(item_row[:n_queries], negative_row)
        if known is not None:
            is_known = ops.logical_and(known == negative_row[:, None], known != NO_ITEM)
            is_liked = ops.logical_or(is_liked, ops.any(is_known, axis=-1))
        weight = ops.where(is_liked, 0.0, weight)
        loss = ops.sum(mean_weights(weight) * ops.softplus(-margin))
        return nan_unless_finite(loss, query, candidate)
