"""The bilateral softmax loss."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar

from pydantic import PositiveFloat

from recsys.losses.loss import SHARED_BY_ALL, CandidateSharing, Loss
from recsys.registry import register_loss

if TYPE_CHECKING:
    import keras


@register_loss("bilateral_softmax")
class BilateralSoftmax(Loss):
    """Bilateral softmax: separate temperatures for positives and negatives."""

    title: ClassVar[str] = "Bilateral softmax with logQ correction"
    takes_sharing: ClassVar[bool] = True

    positive_temperature: PositiveFloat | None = None
    """Divides the positive's similarity, the paper's τ₁; `null` for `model.temperature`, the
    paper's τ₂, which divides the negatives' similarities."""
    negative_weight: PositiveFloat = 1.0
    """Weight of the log of the negatives' sum relative to the positive, the exponent of the sum
    in the authors' code; above 1 negatives count more."""
    decoupled: bool = True
    """Whether the sum leaves the positive out; else it includes the positive, as in
    `sampled_softmax`."""

    def __call__(
        self, query: keras.KerasTensor, candidate: keras.KerasTensor, **batch: Any
    ) -> keras.KerasTensor:
        """Returns the loss of a batch; see `bilateral_softmax`."""
        return bilateral_softmax(query, candidate, **batch, **self.model_dump())


def bilateral_softmax(
    query: keras.KerasTensor,
    candidate: keras.KerasTensor,
    item_row: keras.KerasTensor,
    log_q: keras.KerasTensor,
    temperature: float | keras.KerasTensor,
    sample_weight: keras.KerasTensor | None = None,
    known: keras.KerasTensor | None = None,
    positive_temperature: float | None = None,
    negative_weight: float = 1.0,
    decoupled: bool = True,
    sharing: CandidateSharing = SHARED_BY_ALL,
) -> keras.KerasTensor:
    """Returns the bilateral softmax loss (BSL) over the candidates of a batch.

    Wu et al., "BSL: Understanding and Improving Softmax Loss for Recommendation", ICDE
    2024. With `s_ij = query_i · candidate_j`, y the positive of query i, τ the temperature
    and S_i its negatives:

        loss_i = w log Σ_{j in S_i} exp(s_ij / τ - log q_j)  -  s_iy / τ₁

    The paper's w is τ / τ₁, which gives both sides the same scale; its code takes τ₁ = τ and
    tunes w. With one positive per query, the paper's expectation over positives is that
    positive. Negatives and the correction by `log q` are as in `sampled_softmax`. The value also
    contains `τ / τ₁ · log q_y`, which has no gradient for the embeddings.

    Args:
        query: Query embeddings `[batch, dim]`, float32 or bfloat16; computed in float32.
        candidate: Candidate embeddings `[candidates, dim]`; row i is the positive of query i.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Log of the probability that an item is among the negatives
            `[candidates]` float32.
        temperature: Divides the negatives' dot products; it has a gradient.
        sample_weight: Weight of each query `[batch]`, not negative; None for ones.
        known: Item rows of each query's known positives `[batch, known]` int32, padded with 0.
            None for none.
        positive_temperature: Divides the positive's dot product; None: `temperature`.
        negative_weight: The weight w.
        decoupled: Whether the sum leaves the positive out.
        sharing: How candidates are shared among queries and devices.

    Returns:
        The weighted mean over the queries, a scalar float32. 0, with zero gradients, if the
        weights sum to 0; NaN if `query`, `candidate` or `log_q` has NaN or infinite entries. If
        decoupled, the loss of a query without negatives is 0.

    Raises:
        RecsysError: There are fewer candidates than queries, or they don't divide into
            the groups (R344); or the shapes don't match (R334).
    """
    from recsys.losses.batch import Softmax
    from recsys.losses.over_candidates import mean_over_candidates

    ratio = 1.0 if positive_temperature is None else temperature / positive_temperature
    return negative_weight * mean_over_candidates(
        query,
        candidate,
        item_row,
        log_q,
        temperature,
        sample_weight,
        known,
        Softmax(decoupled),
        positive_scale=ratio / negative_weight,
        sharing=sharing,
    )
