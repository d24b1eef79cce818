"""Every way that bags and gradients travel gives the numbers of gathering them."""

import contextlib
import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from embedding_meshes import Lookup, compiled, half_squares, on_mesh
from hypothesis import given, settings
from hypothesis import strategies as st
from keras import ops

from recsys.embedding import (
    SGD,
    Adagrad,
    FeatureConfig,
    LazyAdam,
    Ragged,
    RowWiseAdagrad,
    ShardedEmbedding,
    SparseModel,
    TableConfig,
    exchange,
)
from recsys.embedding.rows import Lookups, StepScalars
from recsys.embedding.sharding import TableSharding
from recsys.embedding.table import logical_order
from recsys.embedding.traffic import ExchangeOptions

ROWS, DIM, BATCH, LENGTH = 40, 4, 64, 12
N_PARTS = {"8": 8, "2×2": 2}
# Mixed: each way in one step. Clipped: what is sent is squared too.
CASES = [
    ("mixed", "row", "8", 2, None),
    ("nodes", "row", "8", 4, 0.05),
    ("dense", "replicated", "2×2", None, 0.05),
    *(
        pytest.param(*case, marks=pytest.mark.thorough)
        for case in (
            ("rows", "row", "8", None, None),
            ("rows", "row", "8", None, 0.05),
            ("nodes", "row", "8", 4, None),
            ("dense", "row", "8", None, None),
            ("dense", "row", "2×2", None, None),
            ("dense", "replicated", "2×2", None, None),
        )
    ),
]


class Mixed(SparseModel):
    """Bags of all kinds, and single ids of the same tables; the weights of places are learned."""

    def __init__(self, exchange, placement):
        super().__init__()
        options = {"placement": placement, "exchange": exchange}
        shared = TableConfig("shared", ROWS, DIM, optimizer=Adagrad(0.2), **options)
        rooted = TableConfig(
            "rooted", ROWS, DIM, optimizer=RowWiseAdagrad(0.2, clipnorm=0.05),
            combiner="sqrtn", **options,
        )  # fmt: skip
        ragged = TableConfig(
            "ragged", ROWS, DIM, optimizer=LazyAdam(0.02), combiner="sum", **options,
        )  # fmt: skip
        self.configs = [shared, rooted, ragged]
        features = {"learned": shared, "single": shared, "rooted": rooted, "ragged": ragged}
        self.embedding = ShardedEmbedding(
            {n: FeatureConfig(n, t, (None,), (None, DIM)) for n, t in features.items()}, seed=3
        )
        self.of_places = self.add_weight(shape=(LENGTH,), initializer="ones", name="of_places")

    def build(self, input_shape=None):
        self.embedding.build()

    def call(self, x):
        weights = {
            "learned": x["learned_weight"] * self.of_places,
            "single": None,
            "rooted": x["rooted_weight"],
            "ragged": None,
        }
        ids = {n: x[n] for n in ("learned", "single", "rooted")}
        ids["ragged"] = Ragged(x["values"], x["lengths"])
        embeddings = self.embedding(ids, weights)
        return ops.concatenate([embeddings[n] for n in weights], axis=-1)

    def state(self):
        tables = [
            logical_order(table, v) for table in self.embedding.tables
            for v in table.variables_by_row
        ]  # fmt: skip
        return [*tables, np.asarray(self.of_places)]


def batch(seed, n_parts):
    """Returns inputs with duplicates within bags and between devices, unknown ids, empty bags."""
    rng = np.random.default_rng(seed)
    x = {"single": rng.integers(-1, ROWS + 1, BATCH)}
    for name in ("learned", "rooted"):
        x[name] = np.minimum(rng.zipf(1.3, (BATCH, LENGTH)), ROWS + 2) - 1
        weight = rng.choice([0, 0.5, 1, 2], (BATCH, LENGTH)).astype(np.float32)
        weight[rng.integers(BATCH)] = 0
        x[f"{name}_weight"] = weight
    x["learned"][0], x["learned"][1] = 7, -1
    # Every other row isn't read, and Adam's means of it must stay as they are.
    x["values"] = 2 * rng.integers(0, ROWS // 2, BATCH * LENGTH) + seed % 2
    # Each part of the batch has room of its own; what is past its bags is padding.
    x["lengths"] = rng.integers(0, LENGTH + 1, BATCH)
    assert x["lengths"].reshape(n_parts, -1).sum(axis=1).max() <= BATCH * LENGTH // n_parts
    x = {n: a.astype(np.float32 if n.endswith("weight") else np.int32) for n, a in x.items()}
    return x, rng.normal(size=(BATCH, 4 * DIM)).astype(np.float32)


def mixed_ways(sharding, bags, options, places):
    """Returns another way for each kind of bags."""
    assert sharding.has_nodes
    return "rows" if bags.is_single else "nodes" if bags.learns_weights else "gathered"


@contextlib.contextmanager
def trained(exchange, placement, mesh, steps, clipnorm=None, node=None):
    """Yields a model that learned the batches of `steps`, and the losses."""
    with on_mesh(mesh, Mixed(exchange, placement).configs, node_devices=node):
        model = Mixed(exchange, placement)
        optimizer = keras.optimizers.SGD(0.1, global_clipnorm=clipnorm)
        model.compile(optimizer, loss=half_squares)
        model.build()
        yield model, [model.train_on_batch(*b, return_dict=True)["loss"] for b in steps]


@functools.cache
def gathered(placement, mesh, clipnorm):
    """Returns losses, state and predictions of a model whose bags are gathered: the reference."""
    steps = batches(mesh)
    with trained("gathered", placement, mesh, steps, clipnorm) as (model, losses):
        return losses, model.state(), model.predict_on_batch(steps[0][0])


def batches(mesh):
    return [batch(seed, N_PARTS[mesh]) for seed in range(3)]


@pytest.mark.parametrize(("exchange", "placement", "mesh", "node", "clipnorm"), CASES)
def test_what_is_exchanged_otherwise_trains_the_same_tables(
    exchange, placement, mesh, node, clipnorm, monkeypatch
):
    expected_losses, expected, predicted = gathered(placement, mesh, clipnorm)
    steps = batches(mesh)
    if exchange == "mixed":
        # Single ids by rows, learned bags by nodes, bags with position weights, too.
        monkeypatch.setattr("recsys.embedding.exchange.way_of", mixed_ways)
        exchange = "rows"
    with trained(exchange, placement, mesh, steps, clipnorm, node) as (model, losses):
        np.testing.assert_allclose(losses, expected_losses, rtol=1e-6)
        np.testing.assert_allclose(
            model.predict_on_batch(steps[0][0]), predicted, rtol=1e-6, atol=1e-6
        )
        for values, wanted in zip(model.state(), expected, strict=True):
            np.testing.assert_allclose(values, wanted, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize(
    ("exchange", "node"),
    [("nodes", 4), pytest.param("gathered", None, marks=pytest.mark.thorough)],
)
def test_a_mask_gives_the_bits_of_weights_that_are_0_or_1(exchange, node):
    tables = {
        combiner: TableConfig(
            combiner, ROWS, DIM, optimizer=Adagrad(0.2), combiner=combiner, placement="row",
            exchange=exchange,
        )
        for combiner in ("sum", "mean", "sqrtn", "max")
    }  # fmt: skip
    x, y = batch(2, 8)
    mask = x["rooted_weight"] > 0
    states = []
    for weight in (mask, mask.astype(np.float32)):
        with on_mesh("8", tables.values(), node_devices=node):
            model = compiled(Lookup(tables, seed=5))
            model.build()
            features = dict.fromkeys(tables, x["rooted"])
            features |= {f"{name}_weight": weight for name in tables}
            model.train_on_batch(features, y)
            states.append((model.predict_on_batch(features), *model.state().values()))
            plans = [plan for table in model.step_traffic for plan in table.reads]
            assert [plan.n_bag_arrays for plan in plans] == [int(weight is mask)] * 3 + [0]
    for values, expected in zip(*map(jax.tree.leaves, states), strict=True):
        np.testing.assert_array_equal(values, expected)


# --- between nodes


@pytest.mark.parametrize(("way", "node"), [("rows", 4), ("rows", 1), ("nodes", 4)])
def test_rows_and_gradients_are_rounded_between_nodes_alone(way, node):
    """Each of eight devices reads one row of each, which no other device does."""
    rng = np.random.default_rng(0)
    table, grads = rng.normal(size=(2, 64, DIM)).astype(np.float32)
    reader, owner = np.divmod(np.arange(64), 8)
    rows = owner * 8 + reader
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("devices",))
    sharding = TableSharding("rows", mesh, "devices", "devices", node)
    options = ExchangeOptions(way, between_nodes="int8")
    numbers = StepScalars(
        jnp.float32(1), jnp.float32(1), jnp.float32(1), jnp.uint32(0), jnp.int32(0)
    )

    @jax.jit
    def read_and_updated(table):
        lookups = Lookups(jnp.asarray(rows, jnp.int32))
        out, read, _ = exchange.read(sharding, table, lookups, 64, options)
        assert read.plan.way == way
        return out, exchange.apply(sharding, SGD(1.0), table, (), [read], [grads], numbers)[0]

    out, updated = map(np.asarray, read_and_updated(table))
    is_near = reader // node == owner // node
    for found, exact, rounded in (
        (out, table[rows], table[rows]),
        (updated[rows], table[rows] - grads, grads),
    ):
        np.testing.assert_array_equal(found[is_near], exact[is_near])
        off, step = np.abs(found - exact)[~is_near], np.abs(rounded)[~is_near].max(axis=1) / 127
        assert off.any()
        assert (off <= 1.01 * step[:, None]).all()


# --- any shape


@st.composite
def exchanges(draw):
    """Draws the shapes of a table and of the bags that eight devices read of it."""
    return {
        "bags": draw(st.integers(1, 3)),
        "length": draw(st.integers(1, 5)),
        "dim": draw(st.integers(1, 5)),
        "shard_rows": draw(st.integers(1, 4)),
        "is_ragged": draw(st.booleans()),
        "is_weighted": draw(st.booleans()),
        "node": draw(st.sampled_from([None, 2, 4])),
        "seed": draw(st.integers(0, 99)),
    }


@pytest.mark.thorough
@settings(max_examples=12)
@given(exchanges())
def test_rows_of_any_shape_are_summed_where_they_are_needed(shape):
    rng = np.random.default_rng(shape["seed"])
    n_bags, n_rows = 8 * shape["bags"], 8 * shape["shard_rows"]
    table = rng.normal(size=(n_rows, shape["dim"])).astype(np.float32)
    rows = rng.integers(-1, n_rows + 1, (n_bags, shape["length"])).astype(np.int32)
    weight = np.ones(rows.shape, np.float32)
    if shape["is_weighted"]:
        weight = rng.normal(size=rows.shape).astype(np.float32)
    bag = np.repeat(np.arange(n_bags, dtype=np.int32), shape["length"])
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("devices",))
    sharding = TableSharding("rows", mesh, "devices", "devices", shape["node"])
    options = ExchangeOptions("nodes" if shape["node"] else "rows")
    lookups = Lookups(
        jnp.asarray(rows.reshape(-1)),
        jnp.asarray(bag) if shape["is_ragged"] else None,
        jnp.asarray(weight.reshape(-1)) if shape["is_weighted"] else None,
    )
    known = (rows >= 0) & (rows < n_rows)
    picked = table[np.where(known, rows, 0)].astype(np.float64)
    expected = (picked * (weight * known)[..., None]).sum(axis=1)
    grads = rng.normal(size=expected.shape).astype(np.float32)

    @jax.jit
    def loss(weight):
        used = lookups if weight is None else lookups._replace(weight=weight)
        result = exchange.read(
            sharding, jnp.asarray(table), used, n_bags, options, learns_weights=True
        )
        return (result[0] * grads).sum(), result

    if shape["is_weighted"]:
        (_, (out, read, _)), by_weight = jax.jit(jax.value_and_grad(loss, has_aux=True))(
            lookups.weight
        )
        wanted = (picked * grads[:, None]).sum(axis=-1) * known
        np.testing.assert_allclose(by_weight, wanted.reshape(-1), rtol=1e-5, atol=1e-5)
    _, (out, read, _) = loss(lookups.weight)
    np.testing.assert_allclose(out, expected, rtol=1e-5, atol=1e-5)
    sums = np.zeros(table.shape)
    np.add.at(sums, rows[known], (weight[..., None] * grads[:, None])[known])
    squares = jax.jit(lambda g: exchange.squares(sharding, n_rows, [read], [g]))(grads)
    assert float(squares) == pytest.approx((sums**2).sum(), rel=1e-5, abs=1e-6)
