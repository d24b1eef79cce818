# /// script
# requires-python = "==3.11.*"
# dependencies = ["keras-rs==0.4.0", "keras==3.15.1", "jax==0.10.2", "numpy>=2,<3"]
# ///
"""The workload in Keras on JAX, with our tables or a peer's, whose gradients are dense.

The peers are `keras.layers.Embedding` as it comes, and `keras_rs.layers.DistributedEmbedding`,
whose gradients are dense off TPU.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from benchmarks.measure import answer
from benchmarks.peers.two_tower_case import INITIAL, LEARNING_RATE, TOWER_WIDTHS, StepClock

SIDES = ("user", "item")


def tower() -> keras.Sequential:
    """Returns the dense layers of one side."""
    hidden, out = TOWER_WIDTHS
    return keras.Sequential([keras.layers.Dense(hidden, "relu"), keras.layers.Dense(out)])


def initial() -> keras.initializers.Initializer:
    """Returns how tables start."""
    return keras.initializers.RandomUniform(-INITIAL, INITIAL, seed=1)


class TwoTower(keras.Model):
    """The two towers over `embed`, which turns `{"user", "item"}` ids into rows of tables."""

    def __init__(self, embed: Any) -> None:
        super().__init__()
        self.embed, self.users, self.items = embed, tower(), tower()

    def call(self, ids: dict[str, keras.KerasTensor]) -> keras.KerasTensor:
        """Returns the logits `[batch, batch]` of ids `[batch]`."""
        rows = self.embed(ids)
        query, candidate = self.users(rows["user"]), self.items(rows["item"])
        return ops.matmul(query, ops.transpose(candidate))

    def compute_loss(self, x: Any, y: Any, y_pred: Any, *_: Any, **__: Any) -> Any:
        """Returns the mean softmax loss; each query's own item is the positive."""
        positive = ops.arange(y_pred.shape[0])
        losses = keras.losses.sparse_categorical_crossentropy(positive, y_pred, from_logits=True)
        return ops.mean(losses)


def fit(model: keras.Model, clock: StepClock) -> None:
    """Trains `model` on the clock's batches until all is measured."""

    def batches() -> Iterator[tuple[dict[str, Any]]]:
        for user, item in clock.batches():
            yield ({"user": user, "item": item},)

    model.compile(optimizer=keras.optimizers.Adagrad(LEARNING_RATE), jit_compile=True)
    model.fit(batches(), epochs=1, verbose=0, callbacks=[clock.callback(keras)])


# --- The peers.


def plain(rows: int, dim: int) -> keras.Model:
    """Returns a table of Keras for each side, as a model from ids to rows."""
    ids = {side: keras.Input((), dtype="int32", name=side) for side in SIDES}
    tables = {side: keras.layers.Embedding(rows, dim, initial()) for side in SIDES}
    return keras.Model(ids, {side: tables[side](ids[side]) for side in SIDES})


def distributed(rows: int, dim: int) -> keras.layers.Layer:
    """Returns the layer of keras-rs with a table for each side."""
    from keras_rs.layers import DistributedEmbedding, FeatureConfig, TableConfig

    options: dict[str, Any] = {"initializer": initial(), "optimizer": "adagrad"}
    tables = [TableConfig(side, rows, dim, **options) for side in SIDES]
    shapes = (None,), (None, dim)
    return DistributedEmbedding({t.name: FeatureConfig(t.name, t, *shapes) for t in tables})


def main(library: str, **case: Any) -> dict[str, Any]:
    """Returns the figures of a case, whose other fields `StepClock` takes."""
    clock = StepClock(**case)
    tables = distributed if library == "keras_rs" else plain
    fit(TwoTower(tables(clock.rows, clock.dim)), clock)
    return clock.report(clock.adagrad_bytes(), ["keras-rs", "keras", "jax"])


if __name__ == "__main__":
    answer(main)
