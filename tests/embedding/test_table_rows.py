"""Rows of tables that are read, assigned and added by a program."""

import keras
import numpy as np
import pytest
from embedding_meshes import half_squares, on_mesh

from recsys.embedding import (
    Adagrad,
    FeatureConfig,
    LazyAdam,
    ShardedEmbedding,
    SparseModel,
    TableConfig,
)
from recsys.embedding.table import logical_order
from recsys.errors import UsageError

pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")

DIM, BATCH = 8, 16
STACKS = [["a", "b"]]
MESHES = ["one device", "8", pytest.param("2×2", marks=pytest.mark.thorough)]


def configs(**rows):
    rows = {"row": 50, "flat": 20, "a": 7, "b": 30, **rows}
    optimizer = {"row": LazyAdam(0.01)}
    return [
        TableConfig(
            name,
            n,
            DIM,
            optimizer=optimizer.get(name, Adagrad(0.1)),
            placement="replicated" if name == "flat" else "row",
            dtype="bfloat16" if name == "flat" else "float32",
        )
        for name, n in rows.items()
    ]


def make(tables):
    inputs = {t.name: keras.Input((), dtype="int32", name=t.name) for t in tables}
    features = {t.name: FeatureConfig(t.name, t, (None,), (None, DIM)) for t in tables}
    layer = ShardedEmbedding(features, STACKS, name="embedding", seed=4)
    out = keras.ops.concatenate([*layer(inputs).values()], axis=-1)
    start = keras.initializers.GlorotUniform(seed=1)
    model = SparseModel(inputs, keras.layers.Dense(2, kernel_initializer=start, name="dense")(out))
    model.compile(keras.optimizers.Adam(0.01), half_squares)
    return model


def batch(seed=0, low=0, **rows):
    rng = np.random.default_rng(seed)
    rows = {"row": 50, "flat": 20, "a": 7, "b": 30, **rows}
    x = {name: rng.integers(low, n, BATCH) for name, n in rows.items()}
    return x, rng.normal(size=(BATCH, 2)).astype(np.float32)


def slots(model, name):
    """The optimizer state of a table, in the order of its rows."""
    table = model.get_layer("embedding").home_of(name)
    first = table.offset(name)
    return [logical_order(table, v)[first : first + model.tables[name].rows] for v in table.slots]


@pytest.mark.parametrize("mesh", MESHES)
def test_rows_that_were_assigned_are_read_and_others_stay(mesh):
    tables, rng = configs(), np.random.default_rng(0)
    with on_mesh(mesh, tables, STACKS):
        model = make(tables)
        model.train_on_batch(*batch())
        for name, table in model.tables.items():
            before = table.read_rows()
            rows = rng.permutation(table.rows)[:5]
            values = rng.integers(-8, 8, (5, DIM)).astype(np.float32)  # Exact in bfloat16.
            table.assign_rows(rows, values)
            np.testing.assert_array_equal(table.read_rows(rows), values)
            rest = np.setdiff1d(np.arange(table.rows), rows)
            np.testing.assert_array_equal(table.read_rows(rest), before[rest])
            layer = model.get_layer("embedding")
            np.testing.assert_array_equal(layer.get_embedding_tables()[name], table.read_rows())
            initial = 0.0 if name == "row" else 0.1
            for slot in slots(model, name):
                np.testing.assert_array_equal(slot[rows], np.float32(initial))
                assert (slot[rest] != np.float32(initial)).any()
        model.train_on_batch(*batch(1))


@pytest.mark.parametrize(
    ("rows", "values"),
    [
        ([50], np.zeros((1, DIM))),
        ([-1], np.zeros((1, DIM))),
        ([1.0], np.zeros((1, DIM))),
        ([[1]], np.zeros((1, DIM))),
        ([1, 1], np.zeros((2, DIM))),
        ([1, 2], np.zeros((1, DIM))),
        ([1], np.zeros((1, DIM + 1))),
        ([1], np.full((1, DIM), np.nan)),
        ([1], np.full((1, DIM), "x")),
    ],
    ids=["past", "negative", "float", "2-d", "twice", "fewer", "wider", "nan", "text"],
)
def test_rows_or_values_that_do_not_fit_are_refused(rows, values):
    table = make(configs()).tables["row"]
    before = table.read_rows()
    with pytest.raises(UsageError, match="R318"):
        table.assign_rows(rows, values)
    np.testing.assert_array_equal(table.read_rows(), before)
    table.assign_rows([], np.zeros((0, DIM)))


@pytest.mark.parametrize("mesh", MESHES)
def test_a_table_that_grew_is_one_that_had_the_rows_from_the_beginning(mesh):
    larger = {"row": 75, "flat": 33, "a": 9, "b": 4000}
    grown, whole = configs(), configs(**larger)
    with on_mesh(mesh, grown, STACKS):
        model = make(grown)
        model.train_on_batch(*batch())
        paths = [v.path for v in model.variables]
        for name, rows in larger.items():
            model.tables[name].grow(rows)
        assert [v.path for v in model.variables] == paths
        model.train_on_batch(*batch(1, **larger))
        found = model.get_layer("embedding").get_embedding_tables()
        again = ShardedEmbedding.from_config(model.get_layer("embedding").get_config())
    assert {n: t.shape[0] for n, t in found.items()} == larger
    assert {m.name: m.rows for t in again.tables for m in t.members} == larger
    assert grown[0].vocabulary_size == 50  # The caller's config stays as it is.
    with on_mesh(mesh, whole, STACKS):
        other = make(whole)
        other.train_on_batch(*batch())
        other.train_on_batch(*batch(1, **larger))
        for name, rows in other.get_layer("embedding").get_embedding_tables().items():
            np.testing.assert_allclose(found[name], rows, atol=1e-6, err_msg=name)
            for one, two in zip(slots(model, name), slots(other, name), strict=True):
                np.testing.assert_allclose(one, two, atol=1e-6, err_msg=name)


def test_weights_load_into_a_model_with_more_rows_and_not_with_fewer(tmp_path):
    larger = {"row": 75, "a": 9, "b": 4000}
    small, large = make(configs()), make(configs(**larger))
    small.train_on_batch(*batch())
    large.optimizer.build(large.trainable_variables)
    small.save_weights(tmp_path / "small.weights.h5")
    fresh = {name: table.read_rows() for name, table in large.tables.items()}
    large.load_weights(tmp_path / "small.weights.h5")
    for name, table in large.tables.items():
        n = small.tables[name].rows
        np.testing.assert_array_equal(table.read_rows(np.arange(n)), small.tables[name].read_rows())
        np.testing.assert_array_equal(table.read_rows()[n:], fresh[name][n:])
    large.save_weights(tmp_path / "large.weights.h5")
    with pytest.raises((UsageError, ValueError), match="R368"):
        small.load_weights(tmp_path / "large.weights.h5")


def test_what_cannot_grow_says_why():
    model = make(configs())
    with pytest.raises(UsageError, match=r"R319.*shrink"):
        model.tables["row"].grow(49)
    sgd = keras.optimizers.SGD(0.1, gradient_accumulation_steps=2)
    model.compile(sgd, half_squares)
    model.train_on_batch(*batch())
    with pytest.raises(UsageError, match=r"R319.*accumulates"):
        model.tables["row"].grow(60)


def test_a_model_may_call_something_else_its_tables():
    class Own(SparseModel):
        def __init__(self):
            super().__init__()
            self.tables = 7

    assert Own().tables == 7
