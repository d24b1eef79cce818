"""Meshes over some of the eight simulated devices, and models of tables on them."""

from __future__ import annotations

import contextlib
import math
from unittest import mock

import keras
import numpy as np
import pytest
from embedding_reference import ReferenceTable

from recsys import kernels
from recsys.embedding import FeatureConfig, ShardedEmbedding, SparseModel
from recsys.embedding.table import logical_order

MESHES = {
    "one device": None,
    "1×1": (1, 1),
    "1×2": (1, 2),
    "2×2": (2, 2),
    "1×4": (1, 4),
    "1×8": (1, 8),
    "8": (8,),
    "2": (2,),
    "4": (4,),
    "16": (16,),
    "1": (1,),
}


@contextlib.contextmanager
def on_mesh(name, tables, stacks=(), node_devices=None):
    """Lays `tables` out by hand-written rules; one axis is shared, of two the last splits.

    `node_devices` neighbours are a node; None: all are.
    """
    keras.distribution.set_distribution(None)
    if MESHES[name] is not None:
        distribution = _distribution(MESHES[name], tables, stacks)
        distribution.node_devices = node_devices
        keras.distribution.set_distribution(distribution)
    try:
        yield
    finally:
        keras.distribution.set_distribution(None)


def _distribution(shape, tables, stacks):
    devices = keras.distribution.list_devices()[: math.prod(shape)]
    axes = ("devices",) if len(shape) == 1 else ("data", "model")
    layout = keras.distribution.LayoutMap(keras.distribution.DeviceMesh(shape, axes, devices))
    stacked = {name for stack in stacks for name in stack}
    placements = {t.name: t.placement for t in tables}
    for names in [*stacks, *([n] for n in placements if n not in stacked)]:
        path = f"(.*/)?{'_'.join(names)}/"
        if placements[names[0]] == "row":
            layout[path + "(embeddings|accumulator|linear|momentum|velocity)"] = (axes[-1], None)
        if placements[names[0]] == "column":
            rowwise = next(t for t in tables if t.name == names[0]).optimizer
            whole = getattr(rowwise, "kind", "") == "row_wise_adagrad"
            slots = "" if whole else "|accumulator|linear|momentum|velocity"
            layout[path + f"(embeddings{slots})"] = (None, axes[-1])
    return keras.distribution.ModelParallel(
        layout_map=layout, batch_dim_name=axes[0], auto_shard_dataset=False
    )


@contextlib.contextmanager
def row_operations(kind):
    """Reads and updates rows by `pure` JAX, or by the `native` kernels."""
    with mock.patch("recsys.kernels.available", return_value=kind == "native"):
        yield


NATIVE = pytest.param(
    "native", marks=pytest.mark.skipif(not kernels.available(), reason="no kernels: no C compiler")
)


def half_squares(y, out):
    """A loss whose gradient by `out` is (out - y) / batch."""
    return keras.ops.sum(keras.ops.square(out - y), axis=-1) / 2


class Lookup(SparseModel):
    """All features side by side `[batch, features · dim]`; nothing to train but tables.

    Args:
        features: Pairs of a name and its table.
    """

    def __init__(self, features, **layer):
        super().__init__()
        self.features = dict(features)
        configs = {
            n: FeatureConfig(n, t, (None,), (None, t.embedding_dim))
            for n, t in self.features.items()
        }
        self.embedding = ShardedEmbedding(configs, name="embedding", **layer)

    def build(self, input_shape=None):
        self.embedding.build()

    def call(self, inputs):
        ids = {n: inputs[n] for n in self.features}
        weights = {n: inputs.get(f"{n}_weight") for n in self.features}
        found = self.embedding(ids, weights)
        return keras.ops.concatenate([found[n] for n in self.features], axis=-1)

    def reference(self):
        """Returns a reference of each table as it is now."""
        weights = self.embedding.get_embedding_tables()
        tables = {t.name: t for t in self.features.values()}
        return {
            name: ReferenceTable(weights[name], table.optimizer, table.combiner)
            for name, table in tables.items()
        }

    def state(self):
        """Returns weights and slots of each table in the order of its rows."""
        return {
            table.name: [logical_order(table, v) for v in table.variables_by_row]
            for table in self.embedding.tables
        }


def compiled(model, optimizer="sgd", **kwargs):
    model.compile(optimizer, loss=half_squares, **kwargs)
    return model


def train_both(model, references, batches):
    """Trains the model and the references on `batches` of inputs and targets."""
    for x, y in batches:
        model.train_on_batch(x, y)
        step_references(model.features, references, bags_of(model.features, references, x), y)


def bags_of(features, references, x):
    """Returns the bags of each feature of a batch of arrays."""
    found = {}
    for name, table in features.items():
        ids = np.asarray(x[name])
        ids = ids[:, None] if ids.ndim == 1 else ids
        found[name] = references[table.name].bags(ids, x.get(f"{name}_weight"))
    return found


def read_references(features, references, bags):
    """Returns what the model should return."""
    found = [references[table.name].read(bags[name]) for name, table in features.items()]
    return np.concatenate(found, axis=1)


def step_references(features, references, bags, y):
    """Trains the references on one batch, by the gradient of `half_squares`."""
    grads = (read_references(features, references, bags) - y) / len(y)
    uses, at = {name: [] for name in references}, 0
    for name, table in features.items():
        dim = references[table.name].weights.shape[1]
        uses[table.name].append((bags[name], grads[:, at : at + dim]))
        at += dim
    for name, reference in references.items():
        reference.train(uses[name])


def assert_equal(model, references, tolerance=1e-6):
    for name, values in model.state().items():
        wanted = [references[name].weights, *references[name].slots]
        for found, expected in zip(values, wanted, strict=True):
            np.testing.assert_allclose(found, expected, rtol=tolerance, atol=tolerance)
