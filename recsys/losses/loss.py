"""The base class of losses."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar, Literal

from recsys import registry
from recsys.strict import Strict

if TYPE_CHECKING:
    import keras

    from recsys.config.training import TrainConfig


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

    def check(self, train: TrainConfig) -> None:
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
