# /// script
# requires-python = "==3.11.*"
# dependencies = ["tensorflow-cpu==2.21.0", "numpy>=2,<3"]
# ///
"""TensorFlow: lookup, `IndexedSlices`, and the sparse kernel of Adagrad."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from benchmarks.measure import answer
from benchmarks.peers.embedding_layer_case import INITIAL, LEARNING_RATE, take_turns


def main(ids: str, grads: str, rows: int, dim: int, optimizer: str) -> None:
    """Takes turns on a table, with ids `[batches, bags, length]` and gradients `[bags, dim]`."""
    table = tf.Variable(tf.fill([rows, dim], INITIAL))
    if optimizer == "sgd":
        updates = tf.compat.v1.train.GradientDescentOptimizer(LEARNING_RATE)
    else:  # Its kernel adds no epsilon; the accumulator must start above 0.
        updates = tf.compat.v1.train.AdagradOptimizer(
            LEARNING_RATE, initial_accumulator_value=1e-14
        )
    gradients = tf.constant(np.load(grads))

    @tf.function
    def traced(bags: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            looked_up = tf.nn.embedding_lookup(table, bags)  # [bags, length, dim]
            out = tf.reduce_sum(looked_up, axis=1) if bags.shape[1] > 1 else looked_up[:, 0]
        gradient = tape.gradient(out, table, output_gradients=gradients)
        updates.apply_gradients([(gradient, table)])
        return out

    def step(bags: object) -> None:
        traced(bags).numpy()

    take_turns(ids, tf.constant, step, table.numpy, ["tensorflow-cpu"])


if __name__ == "__main__":
    answer(main)
