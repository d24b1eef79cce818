"""A row optimizer of one's own: RMSprop of the rows that a step reads.

In a config: `plugins: [examples.custom_row_optimizer]` and
`train: {table_optimizer: {type: rms, rho: 0.95}}`. `python -m examples.custom_row_optimizer`
compares it with Keras' RMSprop, which is the same where each step reads every row.
"""

import dataclasses
import os
from typing import ClassVar

os.environ.setdefault("KERAS_BACKEND", "jax")

import jax.numpy as jnp
import keras
import numpy as np

import recsys
from recsys import embedding
from recsys.embedding.optimizers import RowOptimizer, Slot

ROWS, DIM, STEPS = 6, 4, 5


@recsys.register_row_optimizer("rms")
@keras.saving.register_keras_serializable(package="examples")
@dataclasses.dataclass(frozen=True, kw_only=True)
class RowRms(RowOptimizer):
    """RMSprop: v ← ρ v + (1 − ρ) g², w ← w − η g / √(v + ε). Other rows keep their v."""

    rho: float = 0.9
    """Decay rate of the mean of squares [0..1)."""
    epsilon: float = 1e-7
    """Small constant for numerical stability."""

    slots: ClassVar = (Slot("velocity"),)  # A number a weight; with per_row=True one a row.

    def apply(self, row, slots, gradient, rate, step_size, mean):
        velocity = self.rho * slots[0] + (1 - self.rho) * gradient * gradient
        return row - rate * gradient / jnp.sqrt(velocity + self.epsilon), (velocity,)


def main():
    table = embedding.TableConfig("items", ROWS, DIM, optimizer=RowRms(0.1, rho=0.8))
    ids = keras.Input((), dtype="int32")
    layer = embedding.ShardedEmbedding(
        {"item": embedding.FeatureConfig("item", table, (None,), (None, DIM))}
    )
    model = embedding.SparseModel(ids, layer({"item": ids})["item"])
    model.compile(loss="mse")
    dense = keras.Sequential([keras.layers.Embedding(ROWS, DIM)])
    dense.compile(keras.optimizers.RMSprop(0.1, rho=0.8), loss="mse")
    start = model.tables["items"].read_rows()
    dense.build((None,))
    dense.set_weights([start])
    rng = np.random.default_rng(0)
    for _ in range(STEPS):
        x, y = rng.permutation(ROWS), rng.normal(size=(ROWS, DIM))
        model.train_on_batch(x, y)
        dense.train_on_batch(x, y)
    ours, keras_own = model.tables["items"].read_rows(), np.asarray(dense.weights[0].value)
    print(f"largest difference from Keras' RMSprop: {np.abs(ours - keras_own).max():.1e}")
    return start, ours, keras_own


if __name__ == "__main__":
    main()
