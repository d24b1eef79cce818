"""Sums over two processes many times, and trains a model that sums by itself.

    sums.py PROCESS PROCESSES PORT

The last line is JSON: how many sums were wrong, and the error of the model's first step.
"""

import json
import os
import sys

PROCESS, PROCESSES, PORT = map(int, sys.argv[1:4])
os.environ["KERAS_BACKEND"] = "jax"
os.environ["XLA_FLAGS"] += " --xla_force_host_platform_device_count=1"

import jax  # noqa: E402

jax.distributed.initialize(f"localhost:{PORT}", PROCESSES, PROCESS)

import keras  # noqa: E402
import numpy as np  # noqa: E402
from jax.sharding import NamedSharding, PartitionSpec  # noqa: E402

from recsys.distributed.collectives import Group, reduce_scatter  # noqa: E402
from recsys.embedding import SparseModel, activate, table_layout  # noqa: E402
from recsys.errors import RecsysError  # noqa: E402

keras.utils.set_random_seed(0)
ROUNDS, SHAPE = 10, (2, 4096, 128)

activate(table_layout([]))
mesh = keras.distribution.distribution().device_mesh.backend_mesh
(axis,) = mesh.axis_names
of_each = PartitionSpec(axis)


def over_devices(function):
    return jax.jit(jax.shard_map(function, mesh=mesh, in_specs=of_each, out_specs=of_each))


def is_wrong(seed):
    numbers = np.random.default_rng(seed).normal(size=SHAPE).astype(np.float32)
    part = NamedSharding(mesh, of_each)
    spread = jax.make_array_from_callback(SHAPE, part, lambda index: numbers[index])
    own = np.split(numbers[0] + numbers[1], 2)[PROCESS]
    return not np.array_equal(summed(spread).addressable_shards[0].data, own)


class Summing(SparseModel):
    """Sums its output over the devices by JAX's own function."""

    def __init__(self):
        super().__init__()
        self.dense = keras.layers.Dense(4)

    def call(self, inputs):
        outputs = self.dense(inputs)
        scatter = over_devices(lambda x: jax.lax.psum_scatter(x, axis, tiled=True))
        return outputs + keras.ops.mean(scatter(outputs))


def error_of_step():
    model = Summing()
    model.compile(optimizer="sgd", loss="mse")
    try:
        model.fit(np.ones((8, 4), np.float32), np.ones((8, 4), np.float32), verbose=0)
    except RecsysError as error:
        return str(error)
    return None


summed = over_devices(lambda x: reduce_scatter(x[0], Group(axis, 2, 2)))
wrong = sum(is_wrong(seed) for seed in range(ROUNDS))
sys.stdout.write(json.dumps({"wrong": wrong, "error": error_of_step()}) + "\n")
