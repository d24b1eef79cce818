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
    """The bilateral softmax: a temperature for positives, another one for negatives."""

    title: ClassVar[str] = "Bilateral softmax with logQ correction"
    takes_sharing: ClassVar[bool] = True

    positive_temperature: PositiveFloat | None = None
    """Divides the positive's similarity, the paper's τ₁; `null`: `model.temperature`, its τ₂,
    which divides those of the negatives."""
    negative_weight: PositiveFloat = 1.0
    """Weight of the logarithm of the negatives' sum against the positive, the exponent of
    the sum in the authors' code; above 1 negatives count more."""
    decoupled: bool = True
    """Whether the sum is of negatives alone; else the positive is in it, as in
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

    The paper's w is τ / τ₁, which makes both sides a log-expectation-exp of one scale; its
    code takes τ₁ = τ and tunes w. With one positive for each query, the paper's expectation
    over positives is that positive. Negatives, the correction by `log q` and what is left
    out are those of `sampled_softmax`; the value has `τ / τ₁ · log q_y` besides, which has
    no gradient to the embeddings.

    Args:
        query: Query embeddings `[batch, dim]`, float32 or bfloat16; computed in float32.
        candidate: Candidate embeddings `[candidates, dim]`; row i is the positive of query i.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Log of the probability that an item is among the negatives
            `[candidates]` float32.
        temperature: Divides the negatives' dot products; it has a gradient.
        sample_weight: Weight of each query `[batch]`, not negative; None for ones.
        known: Item rows that each query is known to like `[batch, known]` int32, filled
            up with 0. None for none.
        positive_temperature: Divides the positive's dot product; None: `temperature`.
        negative_weight: The weight w.
        decoupled: Whether the sum is without the positive.
        sharing: How candidates are shared among the queries and the devices.

    Returns:
        The weighted mean over the queries, a scalar float32: 0, with gradients 0, if the
        weights sum to 0; NaN if a number in `query`, `candidate` or `log_q` is infinite or
        NaN. A query without negatives costs 0 if decoupled.

    Raises:
        RecsysError: There are fewer candidates than queries, or they don't divide into
            the groups (R344); or arrays don't fit each other (R334).
    """
    from recsys.losses.batch import Form
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
        form=Form(is_decoupled=decoupled),
        pull=ratio / negative_weight,
        sharing=sharing,
    )
