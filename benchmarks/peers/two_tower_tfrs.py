# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "tensorflow-recommenders==0.7.7",
#   "tensorflow-cpu==2.21.0",
#   "tf-keras==2.21.0",
#   "numpy>=2,<3",
# ]
# ///
"""TensorFlow Recommenders as its tutorials have it: `tfrs.tasks.Retrieval`, Adagrad, `fit`.

The gradients of the tables are `IndexedSlices`, which Adagrad applies row by row.
"""

import os
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
import tensorflow_recommenders as tfrs

from benchmarks.measure import answer
from benchmarks.peers.two_tower_case import INITIAL, LEARNING_RATE, TOWER_WIDTHS, StepClock

keras = tf.keras


def tower(rows: int, dim: int) -> keras.Sequential:
    """Returns the table and the dense layers of one side."""
    hidden, out = TOWER_WIDTHS
    initial = keras.initializers.RandomUniform(-INITIAL, INITIAL)
    return keras.Sequential(
        [
            keras.layers.Embedding(rows, dim, embeddings_initializer=initial),
            keras.layers.Dense(hidden, activation="relu"),
            keras.layers.Dense(out),
        ]
    )


class TwoTower(tfrs.Model):
    """The two towers and the retrieval task."""

    def __init__(self, rows: int, dim: int) -> None:
        super().__init__()
        self.users, self.items = tower(rows, dim), tower(rows, dim)
        self.task = tfrs.tasks.Retrieval()

    def compute_loss(self, features: tf.Tensor, training: bool = False) -> tf.Tensor:
        """Returns the in-batch softmax of ids `[2, batch]`."""
        query, candidate = self.users(features[0]), self.items(features[1])
        return self.task(query, candidate, compute_metrics=not training)


def main(**case: Any) -> dict[str, Any]:
    """Returns the figures of a case, whose fields `StepClock` takes."""
    clock = StepClock(**case)
    model = TwoTower(clock.rows, clock.dim)
    model.compile(optimizer=keras.optimizers.Adagrad(LEARNING_RATE))
    batches = tf.data.Dataset.from_generator(
        clock.batches, output_signature=tf.TensorSpec([2, None], tf.int32)
    )
    model.fit(batches.prefetch(1), epochs=1, verbose=0, callbacks=[clock.callback(keras)])
    packages = ["tensorflow-recommenders", "tensorflow-cpu", "tf-keras"]
    return clock.report(clock.adagrad_bytes(), packages)


if __name__ == "__main__":
    answer(main)
