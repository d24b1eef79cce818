# /// script
# requires-python = "==3.11.*"
# dependencies = [
#   "tensorflow-recommenders==0.7.7",
#   "tensorflow-cpu==2.21.0",
#   "tf-keras==2.21.0",
#   "numpy>=2,<3",
# ]
# ///
"""TensorFlow Recommenders: `tfrs.metrics.FactorizedTopK`, which only computes hit rates.

`candidates=` is a data set of batches, as in its tutorials, or a `BruteForce` layer, which
holds all scores of a block of users. It takes one positive at a time, and leaves nothing
out that a user has seen.
"""

import os
import time
from typing import Any

os.environ["TF_USE_LEGACY_KERAS"] = "1"
os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")

import tensorflow as tf
import tensorflow_recommenders as tfrs

from benchmarks.measure import answer
from benchmarks.peers.evaluate_case import KS, draw

USERS = 128
"""Users of a block; of 32 to 512 the fastest, or as fast."""


def main(batch: int, **case: Any) -> dict[str, float]:
    """Returns the time of all users, with so many candidates of a batch; 0: all at once."""
    data = draw(**case)
    candidates = tf.constant(data.candidates[1:])
    # A query for each positive.
    query = tf.repeat(tf.constant(data.query), data.positives.shape[1], axis=0)
    positive = tf.constant(data.positives.reshape(-1) - 1)
    if batch:
        source = tf.data.Dataset.from_tensor_slices(candidates).batch(batch)
    else:
        source = tfrs.layers.factorized_top_k.BruteForce(k=max(KS)).index(candidates)
    topk = tfrs.metrics.FactorizedTopK(candidates=source, ks=KS)

    @tf.function(reduce_retracing=True)
    def update(query: tf.Tensor, positive: tf.Tensor) -> None:
        topk.update_state(query, tf.gather(candidates, positive))

    update(query[:USERS], positive[:USERS])
    started = time.perf_counter()
    for start in range(0, len(query), USERS):
        update(query[start : start + USERS], positive[start : start + USERS])
    return {"seconds": time.perf_counter() - started}


if __name__ == "__main__":
    answer(main)
