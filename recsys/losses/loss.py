"""The base class of losses, and how the candidates of a batch are shared.

Candidates are shared among the queries of a batch, and among the devices.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, ClassVar, Literal, NamedTuple, Protocol, Self

from recsys import registry
from recsys.strict import Strict

if TYPE_CHECKING:
    import keras


class TrainOptions(Protocol):
    """The keys of `train` that a loss and a model read."""

    @property
    def uniform_negatives(self) -> int: ...
    @property
    def hard_negatives(self) -> Any: ...
    @property
    def negative_groups(self) -> int: ...
    @property
    def negatives_dtype(self) -> Literal["float32", "bfloat16"]: ...
    @property
    def table_regularisation(self) -> dict[Any, float]: ...


class Loss(Strict):
    """A loss of retrieval training; its fields are its options in a config.

    Register a subclass with `recsys.register_loss`. Keras is imported inside `__call__`, so
    that a config is read without it:

        @recsys.register_loss("cosine_margin")
        class CosineMargin(recsys.Loss):
            \"\"\"The next item should be closer than the others, by a margin.\"\"\"

            title: ClassVar[str] = "Cosine margin"
            margin: float = 0.2

            def __call__(self, query, candidate, *, item_row, log_q, temperature,
                         sample_weight=None, known=None):
                ...

    Attributes:
        title: What the loss is called in the model card and the report.
        negatives: `drawn`: the candidates of a batch are its positives and what
            `train.uniform_negatives` and `train.hard_negatives` add; `catalogue`: its
            positives, then all items.
        takes_hard_negatives: Whether hard negatives may be among the candidates.
        needs_drawn_negatives: Whether `train.uniform_negatives` must be positive.
        takes_sharing: Whether it takes `sharing`, a `recsys.losses.CandidateSharing`, which
            is given where `train.negative_groups` or `train.negatives_dtype` ask for it.
    """

    title: ClassVar[str] = ""
    negatives: ClassVar[Literal["drawn", "catalogue"]] = "drawn"
    takes_hard_negatives: ClassVar[bool] = True
    needs_drawn_negatives: ClassVar[bool] = False
    takes_sharing: ClassVar[bool] = False

    def __call__(
        self,
        query: keras.KerasTensor,
        candidate: keras.KerasTensor,
        *,
        item_row: keras.KerasTensor,
        log_q: keras.KerasTensor,
        temperature: float | keras.KerasTensor,
        sample_weight: keras.KerasTensor | None = None,
        known: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        """Returns the loss of a batch, a scalar float32.

        Args:
            query: Query embeddings `[batch, dim]`.
            candidate: Candidate embeddings `[candidates, dim]`; row i is the positive of
                query i, the rows from `batch` on are negatives alone.
            item_row: Item row of each candidate `[candidates]` int32.
            log_q: Log of the probability that an item is among the candidates
                `[candidates]` float32.
            temperature: Divides the dot products; it may have a gradient.
            sample_weight: Weight of each query `[batch]`; None for ones.
            known: Item rows that each query is known to like `[batch, known]` int32,
                padded with 0; None for none.
        """
        raise NotImplementedError

    def check(self, train: TrainOptions) -> None:
        """Checks that the rest of `train` suits the loss.

        Raises:
            ValueError: It doesn't; the text says what must hold.
        """
        name = registry.name_of("loss", self)
        if self.needs_drawn_negatives and not train.uniform_negatives:
            raise ValueError(
                f"loss {name} draws its negatives from the catalogue: uniform_negatives is 0"
            )
        if train.hard_negatives.count and not self.takes_hard_negatives:
            raise ValueError(f"hard_negatives can't be used with loss: {name}")
        if train.negative_groups > 1 and (not self.takes_sharing or self.negatives != "drawn"):
            raise ValueError(
                f"loss {name} doesn't compare within groups: negative_groups must be 1"
            )
        if train.negatives_dtype != "float32" and not self.takes_sharing:
            raise ValueError(f"loss {name} sends no candidates: negatives_dtype must be float32")


class CandidateSharing(NamedTuple):
    """Which candidates a query is compared with, and how devices send them to each other.

    In several groups the queries are cut into as many equal parts, and so are the candidates:
    those of a part are the positives of its queries, in their order, then further negatives.
    A query is compared with the candidates of its own part alone.

    Attributes:
        groups: Groups of queries, each with candidates of its own; 1: all share all.
        dtype: Type in which devices send candidates and their gradients to each other.
    """

    groups: int = 1
    dtype: Literal["float32", "bfloat16"] = "float32"

    @classmethod
    def of_config(cls, train: TrainOptions) -> Self:
        """Returns what `train.negative_groups` and `train.negatives_dtype` say."""
        return cls(train.negative_groups, train.negatives_dtype)


SHARED_BY_ALL = CandidateSharing()
"""Every query is compared with every candidate."""


def positives_of(
    candidate: keras.KerasTensor, n_queries: int, groups: int = 1
) -> keras.KerasTensor:
    """Returns the positives of all queries `[n_queries, …]`, in their order.

    Args:
        candidate: An entry for each candidate `[candidates, …]`.
        n_queries: Queries.
        groups: Groups of queries, each with candidates of its own.
    """
    from keras import ops

    if groups == 1:
        return candidate[:n_queries]
    shape = tuple(candidate.shape)
    of_groups = ops.reshape(candidate, (groups, shape[0] // groups, *shape[1:]))
    return ops.reshape(of_groups[:, : n_queries // groups], (n_queries, *shape[1:]))
