"""Trains a small model on four devices, in as many processes as the command line says.

    processes.py PROCESS PROCESSES PORT

The last line is JSON: the loss, the sum of squares of all places of the table, and the error
that the last process had.
"""

import json
import os
import sys

PROCESS, PROCESSES, PORT = map(int, sys.argv[1:])
os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={4 // PROCESSES}"

import jax  # noqa: E402

if PROCESSES > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{PORT}", PROCESSES, PROCESS)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402

from recsys.embedding import (  # noqa: E402
    Adagrad,
    FeatureConfig,
    ShardedEmbedding,
    SparseModel,
    TableConfig,
    activate,
    table_layout,
)
from recsys.errors import RecsysError  # noqa: E402
from recsys.training.distributed import in_shares  # noqa: E402

ROWS, DIM, BATCH, STEPS = 5000, 8, 16, 3


class Sum(SparseModel):
    """One table, read by single ids and by bags."""

    def __init__(self, table):
        super().__init__()
        features = {
            "one": FeatureConfig("one", table, (None,), (None, DIM)),
            "bag": FeatureConfig("bag", table, (None, 3), (None, DIM)),
        }
        self.embed = ShardedEmbedding(features)
        start = keras.initializers.GlorotUniform(seed=1)
        self.dense = keras.layers.Dense(4, kernel_initializer=start)

    def call(self, inputs):
        found = self.embed(inputs)
        return self.dense(found["one"] + found["bag"])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y_pred - 1))


def batches():
    """Yields this process's part of each batch."""
    rng = np.random.default_rng(0)
    part = slice(BATCH // PROCESSES * PROCESS, BATCH // PROCESSES * (PROCESS + 1))
    for _ in range(STEPS):
        one, bag = rng.integers(0, 50, BATCH), rng.integers(0, 50, (BATCH, 3))
        yield ({"one": one[part], "bag": bag[part]},)


table = TableConfig("t", ROWS, DIM, optimizer=Adagrad(0.5), placement="row")
activate(table_layout([table]))
model = Sum(table)
model.compile(optimizer=keras.optimizers.SGD(0.3))
history = model.fit(batches(), steps_per_epoch=STEPS, shuffle=False, verbose=0).history
value = model.embed.tables[0].embeddings.value
whole = np.asarray(multihost_utils.process_allgather(value, tiled=True), np.float64)


def damaged(share, shares):
    if share == shares - 1:
        raise RecsysError("R221", "'item_row.npy' must be as it was.", "Run again.", share)


def error_of(check):
    try:
        in_shares(check)
    except RecsysError as error:
        return str(error)
    return None


seen = {"loss": history["loss"][0], "squares": float((whole**2).sum())}
errors = {"error": error_of(damaged), "no_error": error_of(lambda share, shares: None)}
sys.stdout.write(json.dumps({**seen, **errors}) + "\n")
