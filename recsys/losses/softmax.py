"""The softmax over sampled candidates, and over the whole catalogue."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal

from recsys.losses.loss import SHARED_BY_ALL, CandidateSharing, Loss
from recsys.registry import register_loss

if TYPE_CHECKING:
    import keras


@register_loss("sampled_softmax")
class SampledSoftmax(Loss):
    """Against the batch's items and the negatives drawn, corrected for their sampling."""

    title: ClassVar[str] = "Sampled softmax with logQ correction"
    takes_sharing: ClassVar[bool] = True

    decoupled: bool = False
    """Whether the softmax' sum leaves the positive out: one that is well above all others is
    pulled as hard as any (Yeh et al., "Decoupled Contrastive Learning", ECCV 2022)."""

    def __call__(
        self, query: keras.KerasTensor, candidate: keras.KerasTensor, **batch: Any
    ) -> keras.KerasTensor:
        """Returns the loss of a batch; see `sampled_softmax`."""
        return sampled_softmax(query, candidate, **batch, decoupled=self.decoupled)


@register_loss("full_softmax")
class FullSoftmax(SampledSoftmax):
    """Against the whole catalogue, for small ones."""

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

    The first candidates are the positives of the queries, which are each other's
    negatives; more may follow that are negatives alone (mixed negative sampling: Yang
    et al., WWW 2020). The logit of query i and candidate j is `query_i · candidate_j /
    temperature - log_q_j`, that of the positive too, without a clip.

    A query's softmax runs over a set: its own positive, and the first candidate of each
    other item. Further copies of an item add nothing; copies of the query's own item
    (accidental hits) and of items that it is known to like are left out.

    For a set, `log_q` is the log of the inclusion probability: that of B draws with
    probability p each is `1 - (1 - p)^B`, and a second sampler's miss probability
    multiplies in. Why that is right: the set S sampled around the positive y has probability
    Q(S | y) ∝ 1 / q_y among the y in S, since every other member had to be drawn and y was
    there anyway; so by Bayes P(y | x, S) ∝ P(y | x) / q_y, and the scores whose corrected softmax
    fits are log P(y | x) (Bengio & Senécal, IEEE TNN 2008; Jean et al., ACL 2015; TensorFlow's note
    "Candidate Sampling", where q is the expected count among unique samples). Yi et al. (RecSys
    2019, eq. 5) take log p, which is the same up to a constant while B p is small. It is exact
    where items are drawn independently of each other, and near it for draws with replacement
    (docs/losses.md says how near).

    With `candidate` the positives and then the whole catalogue, and `log_q` 0, it is the
    full softmax.

    On JAX, loss and gradients are computed by blocks of queries: memory grows with
    `batch + candidates`, not with their product. Under a distribution whose devices
    divide both, each device computes the part of its own queries, against the candidates
    of all.

    Args:
        query: Query embeddings `[batch, dim]`, float32 or bfloat16; computed in float32.
        candidate: Candidate embeddings `[candidates, dim]`, `candidates >= batch`;
            row i is the positive of query i.
        item_row: Item row of each candidate `[candidates]` int32.
        log_q: Log of the probability that an item is among the negatives
            `[candidates]` float32.
        temperature: Divides the dot products; it has a gradient.
        sample_weight: Weight of each query `[batch]`, not negative; None for ones.
        known: Item rows that each query is known to like `[batch, known]` int32, filled
            up with 0; its own positive may be one of them. None for none.
        decoupled: Whether the sum is over the other items alone, without the positive
            (Yeh et al., ECCV 2022). A query without any then costs 0.
        sharing: How candidates are shared among the queries and the devices.

    Returns:
        The weighted mean of the negative log-likelihoods of the positives, a scalar
        float32: 0, with gradients 0, if the weights sum to 0; NaN if a number in
        `query`, `candidate` or `log_q` is infinite or NaN.

    Raises:
        RecsysError: There are fewer candidates than queries, or they don't divide into
            the groups (R344); or arrays don't fit each other (R334).
    """
    from recsys.losses.batch import Form
    from recsys.losses.over_candidates import mean_over_candidates

    return mean_over_candidates(
        query,
        candidate,
        item_row,
        log_q,
        temperature,
        sample_weight,
        known,
        form=Form(is_decoupled=decoupled),
        sharing=sharing,
    )
