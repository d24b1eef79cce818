"""The planned traffic of a step, and the compiled step's.

As a program: `step_traffic.py DEVICES EXCHANGE DTYPE NODE_DEVICES` prints both, as JSON.
"""

import json
import os
import sys
from concurrent.futures import ThreadPoolExecutor

if __name__ == "__main__":
    os.environ["XLA_FLAGS"] = f"--xla_force_host_platform_device_count={sys.argv[1]}"
    os.environ |= {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu"}

import jax
import keras
import numpy as np
from embedding_meshes import half_squares, on_mesh
from jax.sharding import NamedSharding, PartitionSpec
from keras import ops

from recsys.embedding import (
    Adagrad,
    FeatureConfig,
    Ragged,
    RowWiseAdagrad,
    ShardedEmbedding,
    SparseModel,
    TableConfig,
)
from recsys.embedding.step_check import sent_collectives

DIM, BAGS, LENGTH = 16, 32, 20
"""Numbers of bags and lengths per device."""


class Features(SparseModel):
    """Features of every placement; some learn their weights, the weights of `large` are a mask."""

    def __init__(self, exchange, dtype, learned=("learned",)):
        super().__init__()
        self.learned = learned
        # A table that is larger than what a batch reads of it may not be summed whole.
        large_exchange = "gathered" if exchange == "dense" else exchange
        dtype, _, between_nodes = dtype.partition("/")
        options = {
            "optimizer": Adagrad(0.1), "exchange": large_exchange, "exchange_dtype": dtype,
            "between_nodes_dtype": between_nodes or None,
        }  # fmt: skip
        rows = TableConfig("rows", 10**6, DIM, placement="row", **options)
        wide = TableConfig("wide", 10**6, DIM, placement="column", **options)
        of_small = {**options, "exchange": exchange}
        small = TableConfig("small", 300, DIM, placement="replicated", **of_small)
        large = TableConfig("large", 30_000, DIM, placement="replicated", **options)
        users = TableConfig(
            "users", 10**7, DIM, placement="row", optimizer=RowWiseAdagrad(0.1),
            distinct_share=0.5,
        )  # fmt: skip
        self.configs = [rows, wide, small, large, users]
        tables = {
            "bag": rows, "learned": rows, "ragged": rows, "item": rows, "user": users,
            "wide": wide, "small": small, "large": large,
        }  # fmt: skip
        self.embedding = ShardedEmbedding(
            {n: FeatureConfig(n, t, (None,), (None, DIM)) for n, t in tables.items()}
        )
        self.of_places = self.add_weight(shape=(LENGTH,), initializer="ones", name="of_places")

    def call(self, x):
        weights = {
            "bag": None, "learned": None, "ragged": None, "item": None,
            "user": None, "wide": x["weight"], "small": None, "large": x["weight"] > 0,
        }  # fmt: skip
        weights |= dict.fromkeys(self.learned, x["weight"] * self.of_places)
        ids = {**x, "ragged": Ragged(x["values"], x["lengths"])}
        embeddings = self.embedding({n: ids[n] for n in weights}, weights)
        return ops.concatenate([embeddings[n] for n in weights], axis=-1)


def traffic(*options):
    """Returns the planned collectives, and the compiled step's."""
    # Variables without a value are kept by thread: in this one the next test would make them.
    with ThreadPoolExecutor(1) as pool:
        return pool.submit(_traffic, *options).result()


def _traffic(mesh, exchange, dtype="float32", node_devices=None, learned="learned"):
    node_devices = node_devices and int(node_devices)
    with on_mesh(mesh, Features(exchange, dtype).configs, node_devices=node_devices):
        place = keras.distribution.distribution().device_mesh
        n = place.shape[0]
        spread = NamedSharding(place.backend_mesh, PartitionSpec(place.axis_names[0]))

        def array(dtype, *shape):
            return jax.ShapeDtypeStruct((n * shape[0], *shape[1:]), dtype, sharding=spread)

        bags = ("bag", "learned", "wide", "small", "large")
        x = {name: array(np.int32, BAGS, LENGTH) for name in bags}
        x |= {name: array(np.int32, BAGS) for name in ("item", "user", "lengths")}
        x |= {"values": array(np.int32, BAGS * LENGTH), "weight": array(np.float32, BAGS, LENGTH)}
        y = array(np.float32, BAGS, 8 * DIM)
        model = Features(exchange, dtype, tuple(learned.split()))
        optimizer = keras.optimizers.SGD(0.1)
        with keras.StatelessScope(initialize_variables=False):
            model.embedding.build()
            model.built = True
            model.compile(optimizer, loss=half_squares)
            compiled = model.prove((x, y))
    sent = sent_collectives(compiled, node_devices or None)
    planned = [
        collective
        for table in model.step_traffic
        for sent in (*map(table.to_read, table.reads), table.to_update())
        for collective in sent
    ]
    return {"planned": planned, "always": sent.always, "choices": sent.choices}


if __name__ == "__main__":
    sys.stdout.write(json.dumps(traffic(*sys.argv[1:])) + "\n")
