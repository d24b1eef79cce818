"""A loss of one's own: a hinge, by which an item must be closer than the others.

In a config: `plugins: [examples.custom_loss]` and `train: {loss: {type: hinge, margin: 0.3}}`.
`python -m examples.custom_loss` computes it for three queries.
"""

import os
from typing import ClassVar

from pydantic import PositiveFloat

import recsys


@recsys.register_loss("hinge")
class Hinge(recsys.Loss):
    """The taken item must be closer than each other candidate, by a margin."""

    title: ClassVar[str] = "Hinge"

    margin: PositiveFloat = 0.2
    """How much closer."""

    def __call__(
        self, query, candidate, *, item_row, log_q, temperature, sample_weight=None, known=None
    ):
        from keras import ops  # Here, so that a config is read without Keras.

        n_queries = query.shape[0]
        scores = ops.matmul(query, ops.transpose(candidate))
        positive = ops.sum(query * candidate[:n_queries], axis=-1, keepdims=True)
        is_other = ops.cast(item_row[:n_queries, None] != item_row[None, :], "float32")
        short = ops.relu(self.margin + scores - positive) * is_other
        losses = ops.sum(short, axis=-1) / ops.maximum(ops.sum(is_other, axis=-1), 1.0)
        weight = ops.ones_like(losses) if sample_weight is None else sample_weight
        return ops.sum(losses * weight) / ops.maximum(ops.sum(weight), 1e-9)


def main():
    os.environ.setdefault("KERAS_BACKEND", "jax")
    import numpy as np

    config = recsys.TrainConfig(loss={"type": "hinge", "margin": 0.5})
    vectors = np.eye(3, dtype="float32")
    rows = np.arange(1, 4)
    loss = config.loss(vectors, vectors, item_row=rows, log_q=None, temperature=1.0)
    tied = config.loss(vectors, vectors * 0, item_row=rows, log_q=None, temperature=1.0)
    print(f"apart: {float(loss):.2f}; all alike: {float(tied):.2f}")
    return float(loss), float(tied)


if __name__ == "__main__":
    main()
