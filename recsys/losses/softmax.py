"""Softmax losses: over sampled candidates, and over the whole catalogue.

They are computed by `recsys.losses.softmax_jax` on JAX, and elsewhere by
`recsys.losses.batch.plain_loss`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from recsys.errors import RecsysError
from recsys.losses.loss import SHARED_BY_ALL, CandidateSharing, Loss

if TYPE_CHECKING:
    import keras


class SampledSoftmax(Loss):
    """Softmax over the batch's items and the drawn negatives, with logQ correction."""

    title: ClassVar[str] = "Sampled softmax with logQ correction"
    takes_sharing: ClassVar[bool] = True

    def __call__(
        self,
        query: keras.KerasTensor,
        candidate: keras.KerasTensor,
        item_row: keras.KerasTensor,
        log_q: keras.KerasTensor,
        temperature: float | keras.KerasTensor,
        sample_weight: keras.KerasTensor | None = None,
        known: keras.KerasTensor | None = None,
        sharing: CandidateSharing = SHARED_BY_ALL,
    ) -> keras.KerasTensor:
        """Returns the loss of a batch, a scalar float32.

        The first candidates are the positives of the queries, which are negatives of the other
        queries; further negatives may follow (mixed negative sampling: Yang et al., WWW 2020). The
        logit of query i and candidate j is `query_i · candidate_j / temperature - log_q_j`, also
        for the positive, without clipping.

        A query's softmax runs over a set: its own positive, and the first candidate of each other
        item. Further copies of an item are ignored; copies of the query's own item (accidental
        hits) and its known positives are left out.

        For a set, `log_q` is the log of the inclusion probability: `1 - (1 - p)^B` for B draws
        with probability p each, where the miss probability of a second sampler multiplies
        `(1 - p)^B`. Derivation: the set S sampled around the positive y has probability
        Q(S | y) ∝ 1 / q_y among the y in S, since every other member had to be drawn and y is
        always in S. So by Bayes P(y | x, S) ∝ P(y | x) / q_y, and the corrected softmax is fitted
        by the scores log P(y | x) (Bengio & Senécal, IEEE TNN 2008; Jean et al., ACL 2015;
        TensorFlow's note "Candidate Sampling", where q is the expected count among unique
        samples). Yi et al. (RecSys 2019, eq. 5) use log p, which is the same up to a constant if
        B p is small. The correction is exact if items are drawn independently of each other, and
        approximate for draws with replacement (docs/losses.md gives the error).

        On JAX, loss and gradients are computed in blocks of queries: memory grows with
        `batch + candidates`, not with their product. Under a distribution whose devices divide
        both, each device computes the loss of its own queries over the candidates of all devices.

        Raises:
            RecsysError: The shapes don't match (R334); there are fewer candidates than queries, or
                they don't divide into the groups (R344).
        """
        import keras
        from keras import ops

        from recsys.losses.batch import (
            check_entries,
            check_pair,
            mean_weights,
            nan_unless_finite,
            plain_loss,
        )

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
        loss = weighted_sum(*arrays, sharing)
        return nan_unless_finite(loss, query, candidate, log_q)


class FullSoftmax(SampledSoftmax):
    """Softmax over the whole catalogue; for small catalogues."""

    title: ClassVar[str] = "Softmax over the whole catalogue"
    negatives: ClassVar[Literal["drawn", "catalogue"]] = "catalogue"
