# /// script
# requires-python = "==3.11.*"
# dependencies = ["tensorflow-cpu==2.21.0", "numpy>=2,<3"]
# ///
"""TensorFlow: lookup, `IndexedSlices`, and the sparse kernel of Adagrad."""

import os

os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import numpy as np
import tensorflow as tf

from benchmarks.peers.embedding_layer_case import (
    INITIAL,
    LEARNING_RATE,
    Case,
    take_turns,
)


def main() -> None:
    """Takes turns on the case that the command line names."""
    case = Case.from_command()
    table = tf.Variable(tf.fill([case.rows, case.dim], INITIAL))
    if case.optimizer == "sgd":
        optimizer = tf.compat.v1.train.GradientDescentOptimizer(LEARNING_RATE)
    else:  # Its kernel adds no epsilon; the accumulator must start above 0.
        optimizer = tf.compat.v1.train.AdagradOptimizer(
            LEARNING_RATE, initial_accumulator_value=1e-14
        )
    grads = tf.constant(np.load(case.grads))

    @tf.function
    def traced(ids: tf.Tensor) -> tf.Tensor:
        with tf.GradientTape() as tape:
            rows = tf.nn.embedding_lookup(table, ids)  # [bags, length, dim]
            out = tf.reduce_sum(rows, axis=1) if ids.shape[1] > 1 else rows[:, 0]
        gradient = tape.gradient(out, table, output_gradients=grads)
        optimizer.apply_gradients([(gradient, table)])
        return out

    def step(ids: object) -> None:
        traced(ids).numpy()

    take_turns(case, tf.constant, step, table.numpy, ["tensorflow-cpu"])


if __name__ == "__main__":
    main()
