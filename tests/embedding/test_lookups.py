"""Lookups: single ids, padded and ragged bags, several times in one step."""

import jax
import keras
import numpy as np
import pytest
from embedding_meshes import (
    Lookup,
    assert_equal,
    compiled,
    on_mesh,
    read_references,
    step_references,
)
from embedding_reference import known_bags, weight_gradients

from recsys.embedding import SGD, Adagrad, FeatureConfig, ShardedEmbedding, TableConfig
from recsys.embedding.ids import ragged
from recsys.embedding.lookup import read_by_keras

ROWS, DIM, BATCH, CAPACITY = 30, 8, 16, 64
COMBINERS = ("sum", "mean", "sqrtn", "max")
KINDS = ("single", "single_weighted", "bags", "bags_weighted", "ragged", "ragged_weighted")
PARTS = {"one device": 1, "2×2": 2, "8": 8}
MESHES = ["8", *(pytest.param(mesh, marks=pytest.mark.thorough) for mesh in ("one device", "2×2"))]


def batch_of(rng, kind, n_parts):
    """Returns ids, weights, and the same as plain lists; what does not matter has no weight."""
    shape = (BATCH, 3) if kind.startswith("bags") else (BATCH,)
    if kind.startswith("ragged"):
        lengths = rng.integers(0, 5, BATCH)
        lengths[[0, 5]] = 0
        bags = [rng.integers(-1, ROWS + 1, n) for n in lengths]
        weights = [rng.choice([0, 0.5, 1, 2, np.nan], n) for n in lengths]
        weights = weights if kind == "ragged_weighted" else None
        return ragged(bags, CAPACITY, n_parts, weights), None, (bags, weights)
    ids = rng.integers(-1, ROWS + 1, shape).astype(np.int32)
    weights = rng.choice([0, 0.5, 1, 2], shape).astype(np.float32)
    if not kind.endswith("weighted"):
        return ids, None, (ids.reshape(BATCH, -1), None)
    return ids, weights, (ids.reshape(BATCH, -1), weights.reshape(BATCH, -1))


def batches(features, references, n_parts, n):
    rng = np.random.default_rng(1)
    for _ in range(n):
        x, bags = {}, {}
        for name, table in features.items():
            kind = name.split("-")[1]
            x[name], weights, (ids, plain) = batch_of(rng, kind, n_parts)
            if weights is not None:
                x[f"{name}_weight"] = weights
            if kind == "single_weighted" and table.combiner != "sum":
                plain = None  # As in keras-rs, nothing is combined.
            bags[name] = references[table.name].bags(ids, plain)
        yield x, bags, rng.normal(size=(BATCH, DIM * len(features))).astype(np.float32)


@pytest.mark.parametrize(
    ("mesh", "placement"),
    [("8", "row"), pytest.param("2×2", "column", marks=pytest.mark.thorough)],
)
def test_six_kinds_of_features_share_one_table_in_one_step(mesh, placement):
    tables = [
        TableConfig(c, ROWS, DIM, optimizer=Adagrad(0.1), combiner=c, placement=placement)
        for c in COMBINERS
    ]
    features = {f"{t.name}-{kind}": t for t in tables for kind in KINDS}
    with on_mesh(mesh, tables):
        model = compiled(Lookup(features))
        model.build()
        references = model.reference()
        for x, bags, y in batches(features, references, PARTS[mesh], 2):
            model.train_on_batch(x, y)
            step_references(features, references, bags, y)
        found = model.predict_on_batch(x)
        expected = read_references(features, references, bags)
        np.testing.assert_allclose(found, expected, rtol=1e-6, atol=1e-6)
        assert_equal(model, references)


def test_the_largest_of_a_bag_hides_no_nan_and_no_infinity():
    rows, dim, length = 100, 64, 50  # A shape from which XLA's maximum on CPU drops NaN.
    table = TableConfig("t", rows, dim, optimizer=SGD(0.1), combiner="max")
    layer = ShardedEmbedding(FeatureConfig("f", table, (None, length), (None, dim)))
    rng = np.random.default_rng(0)
    values = rng.normal(size=(rows, dim)).astype(np.float32)
    values[3, 5], values[4, 6], values[5, 7] = np.nan, np.inf, -np.inf
    ids = rng.integers(0, rows, (64, length))
    layer.build()
    layer.tables[0].embeddings.assign(values)
    expected = values[ids].max(axis=1)
    assert np.isnan(expected).any()
    assert np.isinf(expected).any()
    (home,) = layer.tables
    np.testing.assert_array_equal(jax.jit(layer)(ids), expected)
    # The backends that this is for keep NaN, JAX doesn't.
    by_keras = np.asarray(read_by_keras(home, home.members[0], ids, None))
    np.testing.assert_array_equal(by_keras, np.where(np.isnan(expected), by_keras, expected))


WEIGHTED = (
    "sum-single",
    "sum-bags",
    "mean-bags",
    "sqrtn-bags",
    *(f"{c}-ragged" for c in COMBINERS[:3]),
)


def packed(kind, bags, values, n_parts):
    """Returns ids and their weights as the layer takes them."""
    if kind == "ragged":
        both = ragged(bags, CAPACITY, n_parts, values)
        return both._replace(weights=None), both.weights
    shape = (BATCH,) if kind == "single" else (BATCH, -1)
    return np.reshape(bags, shape).astype(np.int32), np.reshape(values, shape).astype(np.float32)


def random_bags(rng, name):
    lengths = [{"single": 1, "bags": 3, "ragged": rng.integers(0, 5)}[name.split("-")[1]]] * BATCH
    return [rng.integers(-1, ROWS + 1, n) for n in lengths]


@pytest.mark.parametrize("mesh", MESHES)
def test_the_gradients_of_weights_are_those_of_the_closed_form(mesh):
    rng = np.random.default_rng(3)
    tables = {c: TableConfig(c, ROWS, DIM, combiner=c, placement="row") for c in COMBINERS[:3]}
    configs = {n: FeatureConfig(n, tables[n.split("-")[0]], (None,), (None, DIM)) for n in WEIGHTED}
    bags = {n: random_bags(rng, n) for n in WEIGHTED}
    values = {n: [rng.uniform(0.5, 2, len(bag)) for bag in bags[n]] for n in WEIGHTED}
    grads = {n: rng.normal(size=(BATCH, DIM)).astype(np.float32) for n in WEIGHTED}
    parts = {n: packed(n.split("-")[1], bags[n], values[n], PARTS[mesh]) for n in WEIGHTED}
    with on_mesh(mesh, tables.values()):
        layer = ShardedEmbedding(configs, name="embedding")
        layer.build()

        def product(weights):
            out = layer({n: ids for n, (ids, _) in parts.items()}, weights)
            return sum(jax.numpy.vdot(out[n], grads[n]) for n in WEIGHTED)

        found = jax.jit(jax.grad(product))({n: weights for n, (_, weights) in parts.items()})
        table = layer.get_embedding_tables()
    for n in WEIGHTED:
        combiner, kind = n.split("-")
        known = known_bags(bags[n], values[n], ROWS)
        expected = [
            weight_gradients(table[combiner].astype(np.float64), bag, combiner, grad)
            for bag, grad in zip(known, grads[n], strict=True)
        ]
        _, expected = packed(kind, bags[n], expected, PARTS[mesh])
        np.testing.assert_allclose(found[n], expected, rtol=1e-5, atol=1e-6, err_msg=n)


@pytest.mark.parametrize("mesh", MESHES)
def test_a_weight_that_is_learned_takes_its_step_with_the_table(mesh):
    """As a history whose places have learned weights, under a loss that depends on both."""
    table = TableConfig("t", ROWS, DIM, optimizer=SGD(0.5), combiner="mean", placement="row")
    rng = np.random.default_rng(4)
    ids = rng.integers(0, ROWS, (BATCH, 3)).astype(np.int32)
    y = rng.normal(size=(BATCH, DIM)).astype(np.float32)
    with on_mesh(mesh, [table]):
        model = compiled(WithPlaces({"f": table}), keras.optimizers.SGD(0.5))
        model.build()
        reference = model.reference()["t"]
        for _ in range(2):
            place = np.asarray(model.place.value, np.float64)
            bags = reference.bags(ids, np.tile(place, (BATCH, 1)))
            grads = (reference.read(bags) - y) / BATCH
            by_weight = [
                weight_gradients(reference.weights, bag, "mean", grad)
                for bag, grad in zip(bags, grads, strict=True)
            ]
            expected = place - 0.5 * np.sum(by_weight, axis=0)
            model.train_on_batch({"f": ids}, y)
            reference.train([(bags, grads)])
            np.testing.assert_allclose(model.place.value, expected, atol=1e-6)
        assert_equal(model, {"t": reference})


class WithPlaces(Lookup):
    """Weighs each place of a bag by a variable."""

    def build(self, input_shape=None):
        super().build()
        start = keras.initializers.Constant([1.0, 0.5, 0.25])
        self.place = self.add_weight(shape=(3,), initializer=start, name="place")

    def call(self, inputs):
        weights = keras.ops.broadcast_to(self.place, keras.ops.shape(inputs["f"]))
        return super().call({**inputs, "f_weight": weights})


@pytest.mark.parametrize(
    ("mesh", "placement"),
    [("8", "row"), pytest.param("2×2", "column", marks=pytest.mark.thorough)],
)
def test_bags_without_any_position_are_zeros_and_train_nothing(mesh, placement):
    tables = [
        TableConfig(c, ROWS, DIM, optimizer="adagrad", combiner=c, placement=placement)
        for c in COMBINERS
    ]
    features = {t.name: t for t in tables}
    x = {name: np.zeros((BATCH, 0), np.int32) for name in features}
    with on_mesh(mesh, tables):
        model = compiled(Lookup(features))
        model.build()
        before = model.state()
        model.train_on_batch(x, np.ones((BATCH, DIM * 4), np.float32))
        assert not np.asarray(model.predict_on_batch(x)).any()
        for name, values in model.state().items():
            assert all(np.array_equal(*pair) for pair in zip(values, before[name], strict=True))
