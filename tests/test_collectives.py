"""Collectives among groups of devices; what travels in bfloat16 is rounded once, then summed."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from embedding_meshes import Lookup, compiled, on_mesh
from jax.sharding import PartitionSpec

from recsys import collectives
from recsys.collectives import Group
from recsys.embedding import Adagrad, TableConfig

WIDTHS = [1, 4, 7]
AXIS = PartitionSpec("devices")
ALL = Group("devices", 8, 8)
GROUPS = {
    "nodes": (Group("devices", 8, 4), [[0, 1, 2, 3], [4, 5, 6, 7]]),
    "peers": (Group("devices", 8, 2, 4), [[0, 4], [1, 5], [2, 6], [3, 7]]),
    "both": (Group("devices", 8, 2, 2), [[0, 2], [1, 3], [4, 6], [5, 7]]),
}


def over_devices(function):
    """Returns a function over the parts that eight devices have of an array."""
    mesh = jax.sharding.Mesh(np.array(jax.devices()[:8]), ("devices",))
    return jax.shard_map(function, mesh=mesh, in_specs=AXIS, out_specs=AXIS, check_vma=False)


def rounded(x):
    return np.asarray(jnp.asarray(x).astype(jnp.bfloat16).astype(jnp.float32))


def numbers(*shape):
    return np.random.default_rng(0).normal(size=shape).astype(np.float32)


@pytest.mark.parametrize("width", WIDTHS)
def test_chunks_arrive_rounded_to_bfloat16(width):
    x = numbers(64, 3, width)
    moved = over_devices(lambda x: collectives.swap_chunks(x, ALL, "bfloat16"))(x)
    # Device i gets the i-th chunk of each device.
    expected = rounded(x).reshape(8, 8, 3, width).swapaxes(0, 1).reshape(64, 3, width)
    np.testing.assert_array_equal(moved, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_all_devices_gather_what_is_rounded(width):
    x = numbers(16, width)
    gathered = over_devices(lambda x: collectives.all_gather(x, ALL, "bfloat16"))(x)
    np.testing.assert_array_equal(gathered.reshape(8, 16, width), np.tile(rounded(x), (8, 1, 1)))


@pytest.mark.parametrize("width", WIDTHS)
def test_sums_over_devices_are_taken_in_float32(width):
    x = numbers(64, 8, width).reshape(512, width)
    summed = over_devices(lambda x: collectives.reduce_scatter(x, ALL, "bfloat16"))(x)
    expected = rounded(x).reshape(8, 64, width).astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(summed, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "rows_to_columns"])
def test_gradients_go_back_by_the_reverse_collective(name, kind):
    """Of a linear map f the gradient of f(x) · g is fᵀ(g); numbers are exact in bfloat16."""
    rng = np.random.default_rng(1)
    move = over_devices(lambda x: getattr(collectives, name)(x, ALL, kind))
    x = rng.integers(-8, 8, (64, 2)).astype(np.float32)
    out, back = jax.vjp(move, x)
    g = rng.integers(-8, 8, out.shape).astype(np.float32)
    (gradient,) = back(g)
    direction = rng.integers(-8, 8, x.shape).astype(np.float32)
    assert (gradient * direction).sum() == (move(direction) * g).sum()


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", GROUPS)
def test_each_group_keeps_to_itself(name, kind):
    group, members = GROUPS[name]
    assert group.index_groups == members
    # Whole numbers up to 256 are exact in bfloat16.
    x = np.random.default_rng(2).integers(-99, 99, (8, 8, 3)).astype(np.float32)
    flat = x.reshape(64, 3)
    gathered, swapped = np.empty((8, 8 * group.size, 3)), np.empty((8, 8, 3))
    summed = np.empty((8, 8 // group.size, 3))
    for places in members:
        parts = x[places].reshape(group.size, group.size, -1, 3)
        for at, place in enumerate(places):
            gathered[place] = x[places].reshape(-1, 3)
            summed[place] = parts.sum(axis=0)[at]
            swapped[place] = parts[:, at].reshape(8, 3)
    gather = over_devices(lambda x: collectives.all_gather(x, group, kind))
    np.testing.assert_array_equal(gather(flat), gathered.reshape(-1, 3))
    scatter = over_devices(lambda x: collectives.reduce_scatter(x, group, kind))
    np.testing.assert_array_equal(scatter(flat), summed.reshape(-1, 3))
    swap = over_devices(lambda x: collectives.swap_chunks(x, group, kind))
    chunks = x.reshape(8 * group.size, -1, 3)
    np.testing.assert_array_equal(np.reshape(swap(chunks), (8, 8, 3)), swapped)
    at = over_devices(lambda x: jax.numpy.stack([group.place(), *group.members()])[None])
    for place, (own, *others) in enumerate(np.asarray(at(np.arange(8)))):
        assert others[own] == place
        assert others in members


@pytest.fixture
def batch():
    rng = np.random.default_rng(2)
    x = {"id": rng.integers(0, 200, 64), "bag": rng.integers(0, 200, (64, 5))}
    x = {name: ids.astype(np.int32) for name, ids in x.items()}
    return x, rng.normal(size=(64, 14)).astype(np.float32)


def after_steps(placement, exchange, batch, dtype="float32", sent_as="float32"):
    """Returns what is read at first, and the tables after three steps."""
    table = TableConfig(
        "t", 200, 7 if placement != "column" else 8, optimizer=Adagrad(0.1), placement=placement,
        dtype=dtype, exchange=exchange, exchange_dtype=sent_as,
        initializer=keras.initializers.RandomNormal(seed=1),
    )  # fmt: skip
    x, y = batch
    y = np.pad(y, ((0, 0), (0, 2 * table.embedding_dim - y.shape[1])))
    with on_mesh("8", [table]):
        model = compiled(Lookup({"id": table, "bag": table}, seed=4))
        model.build()
        read = model.predict_on_batch(x)
        for _ in range(3):
            model.train_on_batch(x, y)
        return read, model.state()["t"]


@pytest.mark.parametrize(
    ("placement", "exchange"),
    [("row", "rows"), ("row", "gathered"), ("column", "gathered"), ("replicated", "gathered")],
)
def test_training_by_bfloat16_stays_near_that_by_float32(placement, exchange, batch):
    read, state = after_steps(placement, exchange, batch)
    read_in_half, half = after_steps(placement, exchange, batch, sent_as="bfloat16")
    scale = np.abs(read).max()
    np.testing.assert_allclose(read_in_half, read, atol=2**-8 * scale, rtol=0)
    for values, wanted in zip(half, state, strict=True):
        assert not np.array_equal(values, wanted)
        np.testing.assert_allclose(values, wanted, atol=2**-6 * np.abs(wanted).max(), rtol=0)


def test_rows_of_a_bfloat16_table_lose_nothing_on_the_way(batch):
    read, _ = after_steps("row", "rows", batch, dtype="bfloat16")
    read_in_half, _ = after_steps("row", "rows", batch, dtype="bfloat16", sent_as="bfloat16")
    np.testing.assert_array_equal(read_in_half, read)
