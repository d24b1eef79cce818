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
    def negative_groups(self) -> int: ...
    @property
    def negatives_dtype(self) -> Literal["float32", "bfloat16"]: ...
    @property
    def table_regularisation(self) -> dict[Any, float]: ...


class Loss(Strict):
    """A loss of retrieval training; its fields are its options in a config.

    Register a subclass with `recsys.register_loss`. Import Keras inside `__call__`, so that
    reading a config doesn't import it:

        @recsys.register_loss("cosine_margin")
        class CosineMargin(recsys.Loss):
            \"\"\"The next item should be closer than the others, by a margin.\"\"\"

            title: ClassVar[str] = "Cosine margin"
            margin: float = 0.2

            def __call__(self, query, candidate, *, item_row, log_q, temperature,
                         sample_weight=None, known=None):
                ...

    Attributes:
        task: Task of the models that it trains.
        title: Display name in the model card and the report.
        negatives: `drawn`: the candidates are the batch's positives and the negatives of
            `train.uniform_negatives`; `catalogue`: the batch's positives, then all items.
        needs_drawn_negatives: Whether `train.uniform_negatives` must be positive.
        takes_sharing: Whether `__call__` takes `sharing`, a `recsys.losses.CandidateSharing`.
            It is passed if `train.negative_groups` or `train.negatives_dtype` is set.
    """

    task: ClassVar[str] = "retrieval"
    title: ClassVar[str] = ""
    negatives: ClassVar[Literal["drawn", "catalogue"]] = "drawn"
    needs_drawn_negatives: ClassVar[bool] = False
    takes_sharing: ClassVar[bool] = False

    def __call__(
        self,
        query: keras.KerasTensor,
        candidate: keras.KerasTensor,
        item_row: keras.KerasTensor,
        log_q: keras.KerasTensor,
        temperature: float | keras.KerasTensor,
        sample_weight: keras.KerasTensor | None = None,
        known: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        """Returns the weighted mean of the queries' losses, a scalar float32.

        Losses of the package return 0, with zero gradients, if the weights sum to 0, and NaN if
        embeddings (or `log_q`, where it counts) have NaN or infinite entries.

        Args:
            query: Query embeddings `[batch, dim]`, float32 or bfloat16; computed in float32.
            candidate: Candidate embeddings `[candidates, dim]`; row i is the positive of
                query i, the rows from `batch` on are only negatives.
            item_row: Item row of each candidate `[candidates]` int32.
            log_q: Log of the probability that an item is among the candidates
                `[candidates]` float32.
            temperature: Divides the dot products; may be trainable.
            sample_weight: Weight of each query `[batch]`, not negative; None for ones.
            known: Item rows of each query's known positives `[batch, known]` int32, padded
                with 0; None for none.
        """
        raise NotImplementedError

    def check(self, train: TrainOptions) -> None:
        """Checks that the other options of `train` are compatible with the loss.

        Raises:
            ValueError: An option isn't; the message says which value it must have.
        """
        name = registry.name_of("loss", self)
        if self.needs_drawn_negatives and not train.uniform_negatives:
            raise ValueError(
                f"loss {name} draws its negatives from the catalogue: uniform_negatives is 0"
            )
        if train.negative_groups > 1 and (not self.takes_sharing or self.negatives != "drawn"):
            raise ValueError(
                f"loss {name} doesn't compare within groups: negative_groups must be 1"
            )
        if train.negatives_dtype != "float32" and not self.takes_sharing:
            raise ValueError(f"loss {name} sends no candidates: negatives_dtype must be float32")


class CandidateSharing(NamedTuple):
    """Which candidates a query is compared with, and how devices exchange them.

    With several groups, queries and candidates are split into as many equal parts. The
    candidates of a part are the positives of its queries, in order, then further negatives. A
    query is compared only with the candidates of its own part.

    Attributes:
        groups: Number of groups; 1 compares all queries with all candidates.
        dtype: Dtype in which devices exchange candidates and their gradients.
    """

    groups: int = 1
    dtype: Literal["float32", "bfloat16"] = "float32"

    @classmethod
    def of_config(cls, train: TrainOptions) -> Self:
        """Returns the sharing of `train.negative_groups` and `train.negatives_dtype`."""
        return cls(train.negative_groups, train.negatives_dtype)


SHARED_BY_ALL = CandidateSharing()
"""Every query is compared with every candidate."""
