"""A loss that imports Keras only where it is used."""

from typing import ClassVar

from pydantic import PositiveFloat

import recsys


@recsys.register_loss("margin")
class Margin(recsys.Loss):
    """The next item must be closer than the others, by a margin."""

    title: ClassVar[str] = "Hinge with a margin"

    margin: PositiveFloat = 0.2
    """How much closer."""

    def __call__(
        self, query, candidate, *, item_row, log_q, temperature, sample_weight=None, known=None
    ):
        from keras import ops

        scores = ops.matmul(query, ops.transpose(candidate))
        n = query.shape[0]
        positive = ops.sum(query * candidate[:n], axis=-1, keepdims=True)
        other = ops.cast(item_row[:n, None] != item_row[None, :], "float32")
        missing = ops.maximum(0.0, self.margin + scores - positive) * other
        return ops.mean(ops.sum(missing, axis=-1) / ops.maximum(ops.sum(other, axis=-1), 1.0))
