"""The softmax over sampled candidates, and over the whole catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from recsys.losses.loss import SHARED_BY_ALL, CandidateSharing, Loss
from recsys.registry import register_loss

if TYPE_CHECKING:
    import keras


@register_loss("sampled_softmax")
class SampledSoftmax(Loss):
    """Softmax over the batch's items and the drawn negatives, with logQ correction."""

    title: ClassVar[str] = "Sampled softmax with logQ correction"
    takes_sharing: ClassVar[bool] = True

    decoupled: bool = False
    """Whether the sum of the softmax leaves the positive out. The gradient of a positive then
    doesn't vanish when it scores far above all others (Yeh et al., "Decoupled Contrastive
    Learning", ECCV 2022)."""

    def __call__(
        self, query: keras.KerasTensor, candidate: keras.KerasTensor, **batch: Any
    ) -> keras.KerasTensor:
        """Returns the loss of a batch; see `sampled_softmax`."""
        return sampled_softmax(query, candidate, **batch, decoupled=self.decoupled)


@register_loss("full_softmax")
class FullSoftmax(SampledSoftmax):
    """Softmax over the whole catalogue; for small catalogues."""

    title: ClassVar[str] = "Softmax over the whole catalogue"
    negatives: ClassVar[Literal["drawn", "catalogue"]] = "catalogue"
    takes_hard_negatives: ClassVar[bool] = False


def sampled_softmax(
    query: keras.KerasTensor,
    candidate: keras.KerasTensor,
    item_row: keras.KerasTensor,
    log_q: keras.KerasTensor,
    temperature: float | keras.KerasTensor,
    sample_weight: keras.KerasTensor | None = None,
    known: keras.KerasTensor | None = None,
    decoupled: bool = False,
    sharing: CandidateSharing = SHARED_BY_ALL,
) -> keras.KerasTensor:
    """Returns the softmax loss over the candidates of a batch, corrected for their sampling.

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

    With the positives and then the whole catalogue as candidates, and `log_q` 0, it is the full
    softmax.

    On JAX, loss and gradients are computed in blocks of queries: memory grows with
    `batch + candidates`, not with their product. Under a distribution whose devices divide
    both, each device computes the loss of its own queries over the candidates of all devices.

    Args:
        query: Query embeddings `[batch, dim]`, float32 or bfloat16; computed in float32.
        candidate: Candidate embeddings `[candidates, dim]`, `candidates >= batch`;
            row i is the positive of query i.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Log of the probability that an item is among the negatives
            `[candidates]` float32.
        temperature: Divides the dot products; it has a gradient.
        sample_weight: Weight of each query `[batch]`, not negative; None for ones.
        known: Item rows of each query's known positives `[batch, known]` int32, padded with 0;
            its own positive may be one of them. None for none.
        decoupled: Whether the sum leaves the positive out (Yeh et al., ECCV 2022). The loss of
            a query without negatives is then 0.
        sharing: How candidates are shared among queries and devices.

    Returns:
        The weighted mean of the negative log-likelihoods of the positives, a scalar
        float32. 0, with zero gradients, if the weights sum to 0; NaN if `query`, `candidate` or
        `log_q` has NaN or infinite entries.

    Raises:
        RecsysError: There are fewer candidates than queries, or they don't divide into
            the groups (R344); or the shapes don't match (R334).
    """
    from recsys.losses.batch import Softmax
    from recsys.losses.over_candidates import mean_over_candidates

    return mean_over_candidates(
        query,
        candidate,
        item_row,
        log_q,
        temperature,
        sample_weight,
        known,
        Softmax(decoupled),
        sharing=sharing,
    )
