"""The workload in plain Keras on JAX, for the peers whose tables have dense gradients."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from benchmarks.peers.two_tower_case import INITIAL, LEARNING_RATE, TOWER_WIDTHS, StepClock


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


class Ticker(keras.callbacks.Callback):
    """Ends each step of the clock by reading the loss."""

    def __init__(self, clock: StepClock) -> None:
        super().__init__()
        self.clock = clock

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ticks."""
        self.clock.tick(float(logs["loss"]))


def fit(model: keras.Model, clock: StepClock) -> None:
    """Trains `model` on the clock's batches until all is measured."""

    def batches() -> Iterator[tuple[dict[str, Any]]]:
        for user, item in clock.batches():
            yield ({"user": user, "item": item},)

    model.compile(optimizer=keras.optimizers.Adagrad(LEARNING_RATE), jit_compile=True)
    model.fit(batches(), epochs=1, verbose=0, callbacks=[Ticker(clock)])
