"""Optimizers of rows against Keras' own on dense tables, and what no other row may feel."""

import dataclasses
from typing import ClassVar

import jax.numpy as jnp
import keras
import keras_rs
import numpy as np
import pytest
from embedding_meshes import (
    NATIVE,
    Lookup,
    compiled,
    on_mesh,
    row_operations,
)

import recsys
from recsys.config import TrainConfig
from recsys.embedding import (
    SGD,
    Adagrad,
    FeatureConfig,
    Ftrl,
    LazyAdam,
    RowWiseAdagrad,
    ShardedEmbedding,
    SparseModel,
    TableConfig,
)
from recsys.embedding.optimizers import Slot, row_optimizer
from recsys.errors import UsageError

# Keras' get_config of an optimizer asks its learning rate for a numpy array.
pytestmark = pytest.mark.filterwarnings("ignore:__array__ implementation doesn't accept a copy")

optimizers, schedules = keras.optimizers, keras.optimizers.schedules
ROWS, DIM, BATCH, LENGTH = 20, 4, 16, 4
HALVING = schedules.ExponentialDecay(0.2, decay_steps=1, decay_rate=0.5)
WARM_UP = schedules.CosineDecay(0.0, 5, warmup_target=0.1, warmup_steps=2)
DENSE = {
    "sgd": lambda: optimizers.SGD(0.1),
    "sgd, schedule, decay": lambda: optimizers.SGD(HALVING, weight_decay=0.1),
    "adagrad": lambda: optimizers.Adagrad(0.1, initial_accumulator_value=0.3, epsilon=1e-3),
    "adagrad, decay": lambda: optimizers.Adagrad(0.1, weight_decay=0.1),
    "adam": lambda: optimizers.Adam(0.02, beta_1=0.8, beta_2=0.95, epsilon=1e-4),
    "adam, schedule, decay": lambda: optimizers.Adam(WARM_UP, weight_decay=0.1),
    "ftrl": lambda: optimizers.Ftrl(
        0.1,
        initial_accumulator_value=0.2,
        l1_regularization_strength=0.01,
        l2_regularization_strength=0.02,
        l2_shrinkage_regularization_strength=0.03,
        beta=0.1,
    ),
    "ftrl, power, decay": lambda: optimizers.Ftrl(
        HALVING, learning_rate_power=-0.3, weight_decay=0.1
    ),
}
# Every kind of optimizer meets every combiner; compiling twice as many takes twice as long.
COMBINERS = {name: ("mean", "sqrtn") if "decay" in name else ("sum", "max") for name in DENSE}
TABLES = [f"{name} {combiner}" for name in DENSE for combiner in COMBINERS[name]]


def batches(names, n):
    """Every row comes up in every batch, as a dense optimizer moves them all."""
    rng = np.random.default_rng(2)
    for _ in range(n):
        x = {}
        for name in names:
            ids = np.concatenate([np.arange(ROWS), rng.integers(0, ROWS, BATCH * LENGTH - ROWS)])
            x[name] = rng.permutation(ids).reshape(BATCH, LENGTH).astype(np.int32)
            weight = rng.uniform(0.5, 1.5, (BATCH, LENGTH))
            x[f"{name}_weight"] = weight.astype(np.float32)
        yield x, rng.normal(size=(BATCH, DIM * len(names))).astype(np.float32)


class Dense(keras.Model):
    """The same by layers of Keras and keras-rs, whose gradients are as large as the tables."""

    def __init__(self, weights):
        super().__init__()
        self.tables = {}
        for name, start in weights.items():
            combiner, start = name.split()[-1], keras.initializers.Constant(start)
            layer = (
                keras.layers.Embedding(ROWS, DIM, start)
                if combiner == "max"
                else keras_rs.layers.EmbedReduce(ROWS, DIM, start, combiner=combiner)
            )
            layer.build((BATCH, LENGTH))
            self.tables[name] = layer

    def call(self, inputs):
        found = []
        for name, layer in self.tables.items():
            ids, weights = inputs[name], inputs[f"{name}_weight"]
            is_max = isinstance(layer, keras.layers.Embedding) and name.endswith("max")
            found.append(keras.ops.max(layer(ids), 1) if is_max else layer(ids, weights))
        return keras.ops.concatenate(found, axis=-1)


def configs(placement="row"):
    return {
        f"{name} {c}": TableConfig(
            f"{name}_{c}".replace(", ", "_"),
            ROWS,
            DIM,
            optimizer=make(),
            combiner=c,
            placement=placement,
        )
        for name, make in DENSE.items()
        for c in COMBINERS[name]
    }


@pytest.fixture(scope="module")
def steps():
    return list(batches(TABLES, 4))


@pytest.fixture(scope="module")
def dense(steps):
    """Weights and slots of the dense tables, by table, after training; and how they began."""
    start = Lookup(configs())
    start.build()
    start = {n: start.state()[c.name][0] for n, c in configs().items()}
    found = {}
    for at, (optimizer, make) in enumerate(DENSE.items()):
        names = [f"{optimizer} {c}" for c in COMBINERS[optimizer]]
        model = compiled(Dense({n: start[n] for n in names}), make())
        for x, y in steps:
            mine = {k: v for k, v in x.items() if k.removesuffix("_weight") in names}
            width = DIM * len(names)
            model.train_on_batch(mine, y[:, at * width : (at + 1) * width])
        for n in names:
            (table,) = model.tables[n].weights
            slots = [v for v in model.optimizer.variables if slot_of(v, table)]
            found[n] = [np.asarray(v.value) for v in (table, *slots)]
    return found


def slot_of(variable, table):
    return variable.path.split("/")[-1].startswith(table.path.replace("/", "_"))


@pytest.fixture(
    scope="module",
    params=[
        pytest.param(("one device", "native"), marks=NATIVE.marks),
        pytest.param(("8", "pure"), marks=pytest.mark.thorough),
    ],
    ids=", ".join,
)
def sparse(request, steps):
    mesh, kind = request.param
    tables = configs()
    with on_mesh(mesh, tables.values()), row_operations(kind):
        model = compiled(Lookup(tables))
        for x, y in steps:
            model.train_on_batch(x, y)
        return {n: model.state()[c.name] for n, c in tables.items()}


@pytest.mark.parametrize("name", TABLES)
def test_where_all_rows_are_touched_it_is_the_dense_optimizer(sparse, dense, name):
    assert len(sparse[name]) == len(dense[name])
    for found, expected in zip(sparse[name], dense[name], strict=True):
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)


ALL = {
    "sgd": SGD(0.1, weight_decay=0.1),
    "adagrad": Adagrad(0.1),
    "row_wise_adagrad": RowWiseAdagrad(0.1, clipnorm=0.5),
    "lazy_adam": LazyAdam(0.1),
    "ftrl": Ftrl(0.1, l2_regularization_strength=0.1),
}


@pytest.mark.parametrize(
    ("mesh", "placement", "kind", "dtype"),
    [
        pytest.param("8", "row", "pure", "float32", marks=pytest.mark.thorough),
        ("2×2", "column", "pure", "float32"),
        pytest.param("8", "row", "native", "bfloat16", marks=NATIVE.marks),
    ],
)
def test_rows_outside_the_batch_stay_to_the_bit(mesh, placement, kind, dtype):
    """Weights and slots, whatever the optimizer and the type; rows in it move."""
    tables = [
        TableConfig(name, 50, DIM, optimizer=o, placement=placement, dtype=dtype)
        for name, o in ALL.items()
    ]
    rng = np.random.default_rng(0)
    ids = rng.integers(10, 30, (BATCH, 2)).astype(np.int32)
    ids[0, 0] = -1
    weights = np.ones((BATCH, 2), np.float32)
    ids[1], weights[1] = [40, 41], 0
    x = {t.name: ids for t in tables} | {f"{t.name}_weight": weights for t in tables}
    y = rng.normal(size=(BATCH, DIM * len(tables))).astype(np.float32)
    touched = np.unique(np.where(ids < 0, 0, ids)[weights > 0])
    with on_mesh(mesh, tables), row_operations(kind):
        model = compiled(Lookup({t.name: t for t in tables}))
        model.build()
        before = model.state()
        for _ in range(2):
            model.train_on_batch(x, y)
        for name, values in model.state().items():
            for old, new in zip(before[name], values, strict=True):
                moved = np.flatnonzero((old != new).any(axis=1))
                assert set(moved) <= set(touched), name
                assert len(moved) > 0.8 * len(touched), name


@pytest.mark.parametrize("kind", ["pure", NATIVE])
def test_a_row_whose_gradients_cancel_out_is_touched(kind):
    """Adam's moments decay, and weights do."""
    options = {"optimizer": LazyAdam(0.1, weight_decay=0.5), "placement": "row"}
    table = TableConfig("t", ROWS, DIM, initializer="zeros", combiner="sum", **options)
    model = compiled(Lookup({"f": table}))
    one, two = np.array([3, 3], np.int32), np.ones((2, DIM), np.float32)
    with row_operations(kind):
        model.train_on_batch({"f": one}, two)
        weights, *moments = (value[3].copy() for value in model.state()["t"])
        # Gradients w - y of both examples: equal, and of other sign.
        y = np.stack([weights + 1, weights - 1])
        model.train_on_batch({"f": one}, y)
    after, *decayed = (value[3] for value in model.state()["t"])
    np.testing.assert_allclose(decayed, [moments[0] * 0.9, moments[1] * 0.999], rtol=1e-6)
    alpha = 0.1 * np.sqrt(1 - 0.999**2) / (1 - 0.9**2)
    expected = weights * (1 - 0.1 * 0.5) - alpha * decayed[0] / (np.sqrt(decayed[1]) + 1e-7)
    np.testing.assert_allclose(after, expected, rtol=1e-6, atol=1e-6)


def test_a_keras_optimizer_hands_over_all_its_numbers():
    adam = optimizers.Adam(0.3, 0.4, 0.5, 0.6, weight_decay=0.7, clipnorm=0.8)
    assert row_optimizer(adam) == LazyAdam(
        pytest.approx(0.3), beta_1=0.4, beta_2=0.5, epsilon=0.6, weight_decay=0.7, clipnorm=0.8
    )
    assert row_optimizer(optimizers.SGD()) == SGD(pytest.approx(0.01))
    assert row_optimizer(optimizers.Adagrad(0.5, 0.2, 0.3)) == Adagrad(
        0.5, initial_accumulator_value=0.2, epsilon=0.3
    )
    schedule = row_optimizer(optimizers.SGD(HALVING)).learning_rate
    assert [float(schedule(step)) for step in range(3)] == pytest.approx([0.2, 0.1, 0.05])


@pytest.mark.parametrize(
    ("name", "cls"),
    [
        ("sgd", SGD),
        ("Adagrad", Adagrad),
        ("row_wise_adagrad", RowWiseAdagrad),
        ("adam", LazyAdam),
        ("ftrl", Ftrl),
    ],
)
def test_a_name_means_the_optimizer_with_its_defaults(name, cls):
    assert row_optimizer(name) == cls()


@pytest.mark.parametrize(
    "optimizer", [optimizers.Lion(), "lion", None, object(), optimizers.AdamW()], ids=type
)
def test_an_optimizer_that_rows_have_not_is_refused(optimizer):
    with pytest.raises(UsageError, match=r"R350.*row_wise_adagrad"):
        row_optimizer(optimizer)


@pytest.mark.parametrize(
    "optimizer",
    [
        optimizers.SGD(0.1, momentum=0.9),
        optimizers.SGD(0.1, momentum=0.9, nesterov=True),
        optimizers.Adam(amsgrad=True),
        optimizers.Adagrad(clipvalue=1.0),
        optimizers.Adagrad(global_clipnorm=1.0),
        optimizers.Ftrl(use_ema=True),
        optimizers.SGD(loss_scale_factor=2.0),
        optimizers.SGD(gradient_accumulation_steps=2),
    ],
)
def test_unsupported_optimizer_options_are_refused_by_name(optimizer):
    with pytest.raises(UsageError, match=r"R351.*must leave '\w+' at"):
        row_optimizer(optimizer)


@pytest.mark.parametrize("value", [np.inf, -np.inf, np.nan])
@pytest.mark.parametrize(
    ("make", "name"),
    [
        (SGD, "learning_rate"),
        (lambda value: Adagrad(0.1, epsilon=value), "epsilon"),
        (lambda value: LazyAdam(0.1, beta_1=value), "beta_1"),
        (lambda value: RowWiseAdagrad(0.1, clipnorm=value), "clipnorm"),
        (lambda value: Ftrl(0.1, beta=value), "beta"),
        (lambda value: row_optimizer(optimizers.Adam(value)), "learning_rate"),
        (
            lambda value: SGD(optimizers.schedules.ExponentialDecay(value, 10, 0.9)),
            "learning_rate.initial_learning_rate",
        ),
        (
            lambda value: SGD(optimizers.schedules.PiecewiseConstantDecay([5], [0.1, value])),
            "learning_rate.values.1",
        ),
    ],
)
def test_a_number_that_is_infinite_or_nan_is_refused(make, name, value):
    with pytest.raises(UsageError, match=f"R367.*'{name}' of .*Received: {value}"):
        make(value)


@pytest.mark.parametrize("optimizer", [*ALL.values(), SGD(HALVING)], ids=lambda o: o.kind)
def test_an_optimizer_comes_back_from_its_config(optimizer):
    text = keras.saving.serialize_keras_object(optimizer)
    found = keras.saving.deserialize_keras_object(text)
    assert type(found) is type(optimizer)
    assert found.attributes() == optimizer.attributes()
    rate = found.learning_rate
    assert (rate(2) if callable(rate) else rate) == (0.05 if callable(rate) else 0.1)


def test_a_table_without_an_optimizer_is_read_and_never_moves():
    tables = {
        "fixed": TableConfig("fixed", ROWS, DIM, optimizer=None, placement="row"),
        "learns": TableConfig("learns", ROWS, DIM, optimizer="sgd", placement="row"),
    }
    model = compiled(Lookup(tables))
    model.build()
    before = model.state()
    x = {name: np.arange(16, dtype=np.int32) for name in tables}
    model.train_on_batch(x, np.ones((16, 2 * DIM), np.float32))
    after = model.state()
    assert np.array_equal(after["fixed"][0], before["fixed"][0])
    assert len(after["fixed"]) == 1
    assert (after["learns"][0][:16] != before["learns"][0][:16]).all()


# --- an optimizer of one's own


@recsys.register_row_optimizer("test_sign_descent")
@dataclasses.dataclass(frozen=True, kw_only=True)
class SignDescent(SGD):
    """w ← w − η sign(g), with a count of the updates of each row."""

    slots: ClassVar[tuple[Slot, ...]] = (Slot("count", per_row=True),)

    def apply(self, row, slots, gradient, rate, step_size, mean):
        return row - rate * jnp.sign(gradient), (slots[0] + 1,)


def test_a_registered_optimizer_trains_by_its_name_and_by_no_kernel_of_its_parent():
    table = TableConfig("t", 9, 4, optimizer="test_sign_descent", initializer="zeros")
    ids = keras.Input((), dtype="int32")
    layer = ShardedEmbedding({"f": FeatureConfig("f", table, (None,), (None, 4))})
    model = SparseModel(
        ids, keras.layers.Dense(1, kernel_initializer="ones")(layer({"f": ids})["f"])
    )
    model.compile("sgd", "mse")
    model.train_on_batch(np.array([3, 3, 5]), -np.ones((3, 1), np.float32))
    expected = np.zeros((9, 4), np.float32)
    expected[[3, 5]] = -0.01
    np.testing.assert_allclose(layer.get_embedding_tables()["t"], expected)
    counts = np.asarray(layer.tables[0].slots[0])[:, 0]
    assert counts.tolist() == [0, 0, 0, 1, 0, 1, 0, 0, 0]
    assert TrainConfig(table_optimizer="test_sign_descent").table_optimizer
    with pytest.raises(ValueError, match=r"must be one of .*adagrad"):
        TrainConfig(table_optimizer="no_such")
