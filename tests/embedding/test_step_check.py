"""The check of the compiled step: what holds a number for each row passes, what computes doesn't.

All models are trained by `fit`, on one device and on eight; the table is split by rows there.
"""

import functools
import os
from unittest import mock

import jax
import keras
import numpy as np
import pytest
from embedding_meshes import Lookup, compiled, on_mesh
from keras import ops

from recsys.embedding import Adagrad, FeatureConfig, ShardedEmbedding, SparseModel, TableConfig
from recsys.embedding import model as sparse_model
from recsys.errors import RecsysError

ROWS, DIM, BATCH = 7680, 4, 16
POPULARITY = np.linspace(0.1, 1.0, ROWS, dtype=np.float32)
IDS = np.arange(BATCH) * 5
TARGETS = np.ones((BATCH, 1), np.float32)


def table(name="items", dim=DIM, placement="row"):
    return TableConfig(name, ROWS, dim, optimizer=Adagrad(0.1), placement=placement)


@pytest.fixture(autouse=True)
def _compiled_as_users_do(monkeypatch):
    """Compiles steps as users do: other tests lower fusions otherwise (tests/conftest.py)."""
    if "fusion_emitters" not in os.environ["XLA_FLAGS"]:
        return
    jitted = sparse_model._jitted
    jit = functools.partial(jax.jit, compiler_options={"xla_cpu_use_fusion_emitters": True})

    def as_users_do(step, state):
        with mock.patch("jax.jit", jit):
            return jitted(step, state)

    monkeypatch.setattr(sparse_model, "_jitted", as_users_do)


class Items(SparseModel):
    """Scores items by their rows, and by what a subclass adds."""

    configs = (table(),)

    def __init__(self):
        super().__init__()
        self.embedding = ShardedEmbedding(
            {c.name: FeatureConfig(c.name, c, (None,), (None, c.embedding_dim))
             for c in self.configs}
        )  # fmt: skip
        self.dense = keras.layers.Dense(1, name="dense")
        self.prepare()

    def prepare(self):
        """Makes further weights."""

    def call(self, ids):
        embeddings = self.embedding({c.name: ids for c in self.configs})
        return self.dense(embeddings["items"]) + self.more(ids, embeddings)

    def more(self, ids, embeddings):
        """Returns what is added to the scores `[batch, 1]`."""
        return 0.0

    @property
    def whole_table(self):
        return self.embedding.tables[0].embeddings


# --- what is held


class BiasTable(Items):
    configs = (table(), table("bias", dim=1))

    def more(self, ids, embeddings):
        return embeddings["bias"]


class HeldWeight(Items):
    def prepare(self):
        self.log_q = self.add_weight(
            shape=(ROWS,), initializer="ones", trainable=False, name="log_q"
        )

    def more(self, ids, embeddings):
        return ops.take(self.log_q, ids)[:, None]


class Constant(Items):
    def more(self, ids, embeddings):
        return ops.log(ops.take(ops.convert_to_tensor(POPULARITY), ids))[:, None]


class DenseBias(Items):
    def prepare(self):
        self.bias = self.add_weight(shape=(ROWS,), initializer="zeros", name="bias")

    def more(self, ids, embeddings):
        return ops.take(self.bias, ids)[:, None]


class EmbeddingBias(Items):
    def prepare(self):
        self.bias = keras.layers.Embedding(ROWS, 1, name="bias")

    def more(self, ids, embeddings):
        return self.bias(ids)


class MarkedRows(HeldWeight):
    """Writes a number for each row of the batch, in place."""

    def more(self, ids, embeddings):
        self.log_q.assign(ops.scatter_update(self.log_q, ids[:, None], ops.zeros(ops.shape(ids))))
        return 0.0


# --- what is computed


class SummedTable(Items):
    def more(self, ids, embeddings):
        self.add_loss(1e-3 * ops.sum(self.whole_table))
        return 0.0


class AllScores(Items):
    def more(self, ids, embeddings):
        scores = ops.matmul(embeddings["items"], ops.transpose(self.whole_table))
        return ops.max(scores, axis=1, keepdims=True)


class DenseGradientOfATable(Items):
    """Its gradient is as large as the table, and on eight devices is summed over them."""

    def prepare(self):
        self.plain = keras.layers.Embedding(ROWS, DIM, name="plain")

    def more(self, ids, embeddings):
        return ops.sum(self.plain(ids), axis=1, keepdims=True)


class SoftmaxOfWhatIsHeld(HeldWeight):
    def more(self, ids, embeddings):
        return ops.take(ops.softmax(self.log_q), ids)[:, None]


class CountsOfTheBatch(Items):
    """A temporary of as many numbers as the table has rows, and no weight that is so long."""

    def more(self, ids, embeddings):
        counts = ops.scatter(ids[:, None], ops.ones(ops.shape(ids)), (ROWS,))
        return (ops.take(counts, ids) / ops.max(counts))[:, None]


class CumulatedTable(Items):
    """XLA computes it from the table in another shape."""

    def more(self, ids, embeddings):
        sums = ops.cumsum(self.whole_table, axis=0)
        return ops.sum(ops.take(sums, ids, axis=0), axis=1, keepdims=True)


class SumsOfGroups(Items):
    """Small results of a scatter, to which every row of the table is added."""

    def more(self, ids, embeddings):
        groups = np.arange(self.whole_table.shape[0]) % 7
        sums = ops.segment_sum(self.whole_table, groups, 7)
        return ops.sum(ops.take(sums, ids % 7, axis=0), axis=1, keepdims=True)


class BestOfABiasTable(BiasTable):
    def more(self, ids, embeddings):
        biases = ops.reshape(self.embedding.tables[1].embeddings, (-1,))
        return ops.sum(ops.top_k(biases, 4)[0])


HELD = (BiasTable, HeldWeight, MarkedRows, Constant)
COMPUTED = (
    SummedTable,
    AllScores,
    DenseGradientOfATable,
    SoftmaxOfWhatIsHeld,
    CountsOfTheBatch,
    CumulatedTable,
    SumsOfGroups,
    BestOfABiasTable,
)


def on_meshes(kinds, quick):
    """Returns each kind on one device and on eight; by default only `quick` ones on eight."""
    marks = {kind: () if kind in quick else pytest.mark.thorough for kind in kinds}
    eight = [pytest.param(kind, "8", marks=marks[kind]) for kind in kinds]
    return pytest.mark.parametrize(
        ("kind", "mesh"), [*((kind, "one device") for kind in kinds), *eight]
    )


def fitted(kind, mesh):
    with on_mesh(mesh, kind.configs):
        model = compiled(kind())
        model.fit(IDS, TARGETS, batch_size=BATCH, verbose=0)
        return model


@on_meshes(HELD, quick=(BiasTable,))
def test_what_only_holds_a_number_for_each_row_passes(kind, mesh):
    proof = fitted(kind, mesh).step_proof
    assert set(proof.tables) == {config.name for config in kind.configs}
    assert proof.dense_per_row == ()


@pytest.mark.parametrize("mesh", ["one device", "8"])
def test_rows_that_go_straight_into_the_loss_change_in_place_without_kernels(mesh, monkeypatch):
    """XLA gathers the one row of a device again for the loss: that must come before the update."""
    monkeypatch.setenv("RECSYS_NATIVE", "0")
    items = table(placement="replicated")
    with on_mesh(mesh, [items]):
        model = compiled(Lookup({"items": items}))
        model.fit({"items": IDS[:8]}, np.ones((8, DIM)), batch_size=8, verbose=0)
    assert model.step_proof.tables == ("items",)


@on_meshes((DenseBias, EmbeddingBias), quick=())
def test_a_dense_bias_for_each_row_trains_and_is_named(kind, mesh, caplog):
    """It is a weight like any other; its cost grows with its length, which is reported."""
    model = fitted(kind, mesh)
    (path,) = model.step_proof.dense_per_row
    assert "bias" in path
    assert path in caplog.text
    assert "embedding_dim=1" in caplog.text
    (bias,) = [v for v in model.trainable_variables if v.path == path]
    moved = np.flatnonzero(np.asarray(bias).reshape(-1))
    assert kind is EmbeddingBias or moved.tolist() == IDS.tolist()


@on_meshes(COMPUTED, quick=(SummedTable, DenseGradientOfATable))
def test_what_computes_with_every_row_is_refused(kind, mesh):
    with pytest.raises(RecsysError, match=r"R303.*'(items|bias)'.*whole table") as caught:
        fitted(kind, mesh)
    assert "embedding_dim=1" in str(caught.value)
    if kind is DenseGradientOfATable:
        assert "plain/embeddings" in str(caught.value)


# --- after a refusal


def test_after_r303_the_model_has_its_weights():
    model = compiled(SummedTable())
    with pytest.raises(RecsysError, match="R303"):
        model.fit(IDS, TARGETS, batch_size=BATCH, verbose=0)
    assert np.isfinite(model.predict(IDS, verbose=0)).all()
