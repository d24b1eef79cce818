"""Trains a small model on four devices, in as many processes as the command line says.

    embedding_processes.py PROCESS PROCESSES PORT FOLDER

Writes its variables into `parts/` and `whole/` of FOLDER, into `0.npy`, … what the devices
have of them, and into `step-PROCESSES.npz` the weights after the first step. The last line is
JSON: the loss of each step, digests of the weights, the collectives of a step, and the error that
the last process had.
"""

import hashlib
import json
import os
import sys
from pathlib import Path

PROCESS, PROCESSES, PORT = map(int, sys.argv[1:4])
os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] += f" --xla_force_host_platform_device_count={4 // PROCESSES}"

import jax  # noqa: E402

if PROCESSES > 1:
    jax.config.update("jax_cpu_collectives_implementation", "gloo")
    jax.distributed.initialize(f"localhost:{PORT}", PROCESSES, PROCESS)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from jax.experimental import multihost_utils  # noqa: E402

from recsys.distributed.coordination import in_shares  # noqa: E402
from recsys.embedding import (  # noqa: E402
    Adagrad,
    FeatureConfig,
    RowWiseAdagrad,
    ShardedEmbedding,
    SparseModel,
    TableConfig,
    activate,
    saved_arrays,
    table_layout,
)
from recsys.embedding.sharding import physical_rows  # noqa: E402
from recsys.errors import RecsysError  # noqa: E402

ROWS, DIM, BATCH, STEPS = 5000, 8, 16, 10


class Sum(SparseModel):
    """One table, read by single ids and by bags, and one that is split by columns."""

    def __init__(self, table, columns):
        super().__init__()
        features = {
            "wide": FeatureConfig("wide", columns, (None,), (None, DIM)),
            "one": FeatureConfig("one", table, (None,), (None, DIM)),
            "bag": FeatureConfig("bag", table, (None, 3), (None, DIM)),
        }
        self.embed = ShardedEmbedding(features)
        start = keras.initializers.GlorotUniform(seed=1)
        self.dense = keras.layers.Dense(4, kernel_initializer=start)

    def call(self, inputs):
        found = self.embed(inputs)
        return self.dense(found["one"] + found["bag"] + found["wide"])

    def compute_loss(self, x=None, y=None, y_pred=None, sample_weight=None, training=True):
        return keras.ops.mean(keras.ops.square(y_pred - 1))


def batches():
    """Yields this process's part of each batch."""
    rng = np.random.default_rng(0)
    part = slice(BATCH // PROCESSES * PROCESS, BATCH // PROCESSES * (PROCESS + 1))
    for _ in range(STEPS):
        one, bag = rng.integers(0, 50, BATCH), rng.integers(0, 50, (BATCH, 3))
        yield ({"one": one[part], "bag": bag[part], "wide": one[part]},)


table = TableConfig("t", ROWS, DIM, optimizer=Adagrad(0.5), placement="row")
columns = TableConfig("c", 60, DIM, optimizer=RowWiseAdagrad(0.5), placement="column")
activate(table_layout([table, columns]))
model = Sum(table, columns)
model.compile(optimizer=keras.optimizers.SGD(0.3, global_clipnorm=0.5))
feed = batches()
one = model.fit(feed, steps_per_epoch=1, shuffle=False, verbose=0).history
kept, split = sorted(model.embed.tables, key=lambda table: -table.rows)


def whole(variable):
    """Returns all places of a variable `[places, width]`."""
    return multihost_utils.process_allgather(variable.value, tiled=True)


def weights():
    arrays = [whole(variable) for variable in (kept.embeddings, kept.slots[0], split.embeddings)]
    return [*arrays, *(np.asarray(variable.value) for variable in model.trainable_variables)]


def written(folder, limit):
    """Writes the table, its slot and a dense variable, in parts from so many bytes on."""
    saved_arrays._WHOLE_BYTES = limit
    pairs = [
        (kept.embeddings, kept),
        (kept.slots[0], kept),
        (split.embeddings, split),
        (model.dense.kernel, None),
    ]
    return saved_arrays.write_variables(
        folder, [saved_arrays.SavedVariable(variable, table) for variable, table in pairs]
    )


def damaged(share, shares):
    if share == shares - 1:
        raise RecsysError("R221", "'item_row.npy' must be as it was.", "Run again.", share)


def error_of(do):
    try:
        do()
    except RecsysError as error:
        return str(error)
    return None


folder = Path(sys.argv[4])
after_one = weights()
if PROCESS == 0:
    np.savez(folder / f"step-{PROCESSES}.npz", *after_one)
rest = model.fit(feed, epochs=STEPS - 1, steps_per_epoch=1, shuffle=False, verbose=0).history
if PROCESSES > 1:
    places = physical_rows(np.arange(ROWS), kept.n_physical)
    arrays = [whole(variable)[places] for variable in (kept.embeddings, kept.slots[0])]
    arrays += [whole(split.embeddings), np.asarray(model.dense.kernel.value)]
    if PROCESS == 0:
        for number, array in enumerate(arrays):
            np.save(folder / f"{number}.npy", array)
    described = {name: written(folder / name, n) for name, n in (("parts", 1000), ("whole", 1e9))}
else:
    described = {}

digests = [hashlib.sha256(np.ascontiguousarray(array)).hexdigest() for array in weights()]
seen = {"losses": [*one["loss"], *rest["loss"]], "weights": digests, "described": described}
seen["collectives"] = sorted(model.step_proof.collectives)
errors = {
    "error": error_of(lambda: in_shares(damaged)),
    "no_error": error_of(lambda: in_shares(lambda share, shares: None)),
}
sys.stdout.write(json.dumps({**seen, **errors}) + "\n")
