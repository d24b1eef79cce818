"""Models that go on from a checkpoint as if nothing had stopped them."""

import keras
import numpy as np
import pytest
from embedding_meshes import half_squares, on_mesh

from recsys.embedding import (
    Adagrad,
    FeatureConfig,
    LazyAdam,
    RowWiseAdagrad,
    ShardedEmbedding,
    SparseModel,
    TableConfig,
)
from recsys.training.checkpoint import CheckpointStore

pytestmark = pytest.mark.slow

ROWS, DIM, BATCH = 50, 8, 16
TABLES = [
    TableConfig("row", 20_000, DIM, optimizer=Adagrad(0.1), placement="row"),
    TableConfig("wise", ROWS, DIM, optimizer=RowWiseAdagrad(0.1), placement="row", combiner="sum"),
    TableConfig("column", ROWS, DIM, optimizer=LazyAdam(0.01), placement="column"),
    TableConfig("flat", ROWS, DIM, optimizer=LazyAdam(0.01), placement="replicated"),
]


class Noise(keras.layers.Layer):
    """Dropout whose seed has a name of its own: Keras numbers its own through the process."""

    def __init__(self, seed):
        super().__init__(name="noise")
        self.seed_generator = keras.random.SeedGenerator(seed, name="noise")

    def call(self, inputs, training=False):
        return keras.random.dropout(inputs, 0.3, seed=self.seed_generator) if training else inputs


def made(seed):
    inputs = {t.name: keras.Input((3,), dtype="int32", name=t.name) for t in TABLES}
    configs = {t.name: FeatureConfig(t.name, t, (None, 3), (None, DIM)) for t in TABLES}
    found = ShardedEmbedding(configs, name="embedding", seed=seed)(inputs)
    found = keras.ops.concatenate([found[t.name] for t in TABLES], axis=-1)
    found = Noise(seed)(found)
    start = keras.initializers.GlorotUniform(seed=seed)
    model = SparseModel(inputs, keras.layers.Dense(2, kernel_initializer=start, name="out")(found))
    model.compile(keras.optimizers.Adam(0.01, name="adam"), half_squares)
    model.optimizer.build(model.trainable_variables)
    return model


def variables_of(model):
    counts = {id(v) for metric in model.metrics for v in metric.variables}
    every = [*model.variables, *model.optimizer.variables]
    return {v.path: v for v in every if id(v) not in counts}


def arrays(model):
    return {path: v.value for path, v in variables_of(model).items()}


def numbers(model):
    return {path: np.asarray(v.value) for path, v in variables_of(model).items()}


def train(model, steps):
    for step in steps:
        rng = np.random.default_rng(step)
        x = {t.name: rng.integers(0, ROWS, (BATCH, 3)) for t in TABLES}
        model.train_on_batch(x, rng.normal(size=(BATCH, 2)).astype(np.float32))


def assert_same_bits(one, two):
    assert one.keys() == two.keys()
    for path, value in one.items():
        np.testing.assert_array_equal(value, two[path], err_msg=path)


@pytest.mark.parametrize("mesh", ["8", pytest.param("2×2", marks=pytest.mark.thorough)])
def test_goes_on_as_if_nothing_had_stopped_it(tmp_path, mesh):
    with on_mesh(mesh, TABLES):
        store, model = CheckpointStore(tmp_path, {}), made(seed=1)
        train(model, range(3))
        before = numbers(model)
        store.save(3, arrays(model), {})
        train(model, range(3, 7))  # While it is being written, in place of its arrays.
        other = made(seed=2)
        assert store.restore(variables_of(other)).step == 3
        assert_same_bits(numbers(other), before)
        train(other, range(3, 7))
        store.close()
        assert_same_bits(numbers(other), numbers(model))


@pytest.mark.parametrize(
    "mesh", ["2×2", *(pytest.param(n, marks=pytest.mark.thorough) for n in ("4", "one device"))]
)
def test_goes_on_on_another_mesh_from_the_same_numbers(tmp_path, mesh):
    with on_mesh("8", TABLES):
        store, model = CheckpointStore(tmp_path, {}), made(seed=1)
        train(model, range(3))
        store.save(3, arrays(model), {})
        store.close()
        saved = numbers(model)
        train(model, range(3, 7))
    with on_mesh(mesh, TABLES):
        store, other = CheckpointStore(tmp_path, {}), made(seed=2)
        assert store.restore(variables_of(other)).step == 3
        store.close()
        assert_same_bits(numbers(other), saved)
        train(other, range(3, 7))
        for path, value in numbers(model).items():
            np.testing.assert_allclose(numbers(other)[path], value, rtol=1e-4, atol=1e-6)
