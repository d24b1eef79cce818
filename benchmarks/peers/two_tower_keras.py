# /// script
# requires-python = "==3.11.*"
# dependencies = ["keras-rs==0.4.0", "keras==3.15.1", "jax==0.10.2", "numpy>=2,<3"]
# ///
"""Keras on JAX, whose gradients of tables are dense.

`keras.layers.Embedding` as it comes, or `keras_rs.layers.DistributedEmbedding`, whose
gradients are dense off TPU.
"""

from typing import Any

import keras

from benchmarks.measure import answer
from benchmarks.peers import two_tower_dense as dense_keras
from benchmarks.peers.two_tower_case import StepClock

_SIDES = ("user", "item")


class Tables(keras.layers.Layer):
    """A table of Keras for each side."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.tables = {
            side: keras.layers.Embedding(rows, dim, dense_keras.initial(), name=side)
            for side in _SIDES
        }

    def call(self, ids: dict[str, keras.KerasTensor]) -> dict[str, keras.KerasTensor]:
        """Returns the rows `[batch, dim]` of ids `[batch]`."""
        return {side: self.tables[side](ids[side]) for side in self.tables}


def distributed(rows: int, dim: int) -> keras.layers.Layer:
    """Returns the layer of keras-rs with a table for each side."""
    from keras_rs.layers import DistributedEmbedding, FeatureConfig, TableConfig

    tables = {
        side: TableConfig(side, rows, dim, initializer=dense_keras.initial(), optimizer="adagrad")
        for side in _SIDES
    }
    return DistributedEmbedding(
        {side: FeatureConfig(side, tables[side], (None,), (None, dim)) for side in _SIDES}
    )


def main(library: str, **case: Any) -> dict[str, Any]:
    """Returns the figures of a case, whose other fields `StepClock` takes."""
    clock = StepClock(**case)
    tables = distributed if library == "keras_rs" else Tables
    dense_keras.fit(dense_keras.TwoTower(tables(clock.rows, clock.dim)), clock)
    return clock.report(clock.adagrad_bytes(), ["keras-rs", "keras", "jax"])


if __name__ == "__main__":
    answer(main)
