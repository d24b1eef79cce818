"""Collectives among groups of devices; what travels in bfloat16 is rounded once, then summed."""

import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from embedding_meshes import Lookup, compiled, on_mesh
from jax.sharding import PartitionSpec

from recsys.distributed import collectives
from recsys.distributed.collectives import Group
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
    over = jax.shard_map(function, mesh=mesh, in_specs=AXIS, out_specs=AXIS, check_vma=False)
    return jax.jit(over)  # Else each of its operations is compiled by itself.


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


def test_sums_over_devices_keep_the_shape_of_a_part():
    x = numbers(128, 3, 5)
    summed = over_devices(lambda x: collectives.reduce_scatter(x, ALL, "bfloat16"))(x)
    expected = rounded(x).reshape(8, 16, 3, 5).astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(summed, expected, rtol=1e-6, atol=1e-6)


# --- int8


@pytest.mark.parametrize("width", WIDTHS)
def test_a_number_of_int8_is_off_by_less_than_a_step_of_its_row(width):
    x = numbers(16, width) * np.float32(10.0) ** np.arange(-8, 8)[:, None]
    x[3] = 0
    moved = over_devices(lambda x: collectives.all_gather(x, ALL, "int8"))(x)
    moved = np.asarray(moved).reshape(8, 16, width)
    step = np.abs(x).max(axis=1, keepdims=True) / 127
    assert np.all(np.abs(moved - x) <= step * (1 + 1e-5))
    assert np.array_equal(moved[:, 3], np.zeros((8, width)))
    # The largest of a row arrives, and every device gets the same.
    np.testing.assert_allclose(np.abs(moved).max(axis=2), np.tile(step[:, 0] * 127, (8, 1)), 1e-5)
    assert np.array_equal(moved[0], moved[5])


def test_int8_is_right_on_average_also_for_numbers_far_below_a_step():
    n, share = 8 * 4096, 0.3
    rng = np.random.default_rng(4)
    # A third of a step each, within a hundredth of it.
    x = (rng.uniform(share - 0.005, share + 0.005, (n, 4)) / 127).astype(np.float32)
    x[:, 0] = 1
    moved = np.asarray(over_devices(lambda x: collectives.swap_chunks(x, ALL, "int8"))(
        x.reshape(64, -1, 4)
    )).reshape(n, 4)[:, 1:]  # fmt: skip
    assert set(np.round(moved * 127).ravel()) == {0, 1}
    # By column too: five standard deviations of so many draws.
    off = 5 * np.sqrt(share * (1 - share) / n)
    np.testing.assert_allclose((moved * 127).mean(axis=0), share, atol=off)
    # The rounding of neighbouring columns is independent.
    assert abs(np.corrcoef(moved[:, 0], moved[:, 1])[0, 1]) < 5 / np.sqrt(n)


def test_sums_of_int8_are_taken_in_float32():
    x = numbers(64, 8, 6).reshape(512, 6)
    summed = over_devices(lambda x: collectives.reduce_scatter(x, ALL, "int8"))(x)
    steps = np.abs(x).max(axis=1).reshape(8, 64).sum(axis=0) / 127
    expected = x.reshape(8, 64, 6).astype(np.float64).sum(axis=0)
    assert np.all(np.abs(summed - expected) <= steps[:, None] * (1 + 1e-5))


# --- gradients, and training


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "rows_to_columns"])
def test_gradients_go_back_by_the_reverse_collective(name, kind):
    """For a linear map f, the gradient of f(x) · g is fᵀ(g); numbers are exact in bfloat16."""
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
    at = over_devices(lambda x: jax.numpy.stack([group.index(), *group.members()])[None])
    for place, (own, *others) in enumerate(np.asarray(at(np.arange(8)))):
        assert others[own] == place
        assert others in members


def make_batch():
    rng = np.random.default_rng(2)
    x = {"id": rng.integers(0, 200, 64), "bag": rng.integers(0, 200, (64, 5))}
    x = {name: ids.astype(np.int32) for name, ids in x.items()}
    return x, rng.normal(size=(64, 14)).astype(np.float32)


@functools.cache
def after_steps(placement, exchange, dtype="float32", sent_as="float32"):
    """Returns what is read at first, and the tables after three steps."""
    table = TableConfig(
        "t", 200, 7 if placement != "column" else 8, optimizer=Adagrad(0.1), placement=placement,
        dtype=dtype, exchange=exchange, exchange_dtype=sent_as,
        initializer=keras.initializers.RandomNormal(seed=1),
    )  # fmt: skip
    x, y = make_batch()
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
    [
        ("row", "rows"),
        ("replicated", "gathered"),
        pytest.param("column", "gathered", marks=pytest.mark.thorough),
    ],
)
def test_training_by_bfloat16_stays_near_that_by_float32(placement, exchange):
    read, state = after_steps(placement, exchange)
    read_in_half, half = after_steps(placement, exchange, sent_as="bfloat16")
    scale = np.abs(read).max()
    np.testing.assert_allclose(read_in_half, read, atol=2**-8 * scale, rtol=0)
    for values, wanted in zip(half, state, strict=True):
        assert not np.array_equal(values, wanted)
        np.testing.assert_allclose(values, wanted, atol=2**-6 * np.abs(wanted).max(), rtol=0)


@pytest.mark.parametrize("exchange", ["rows", pytest.param("gathered", marks=pytest.mark.thorough)])
def test_training_by_int8_stays_near_that_by_float32(exchange):
    read, state = after_steps("row", exchange)
    read_in_bytes, by_bytes = after_steps("row", exchange, sent_as="int8")
    # Each of a bag's five ids is off by a step.
    np.testing.assert_allclose(read_in_bytes, read, atol=np.abs(read).max() / 40, rtol=0)
    for values, wanted in zip(by_bytes, state, strict=True):
        assert not np.array_equal(values, wanted)
        off = np.abs(values - wanted)
        assert off.max() < 0.1 * np.abs(wanted).max()
        assert off.mean() < 0.01 * np.abs(wanted).max()


def test_rows_of_a_bfloat16_table_lose_nothing_on_the_way():
    read, _ = after_steps("row", "rows", dtype="bfloat16")
    read_in_half, _ = after_steps("row", "rows", dtype="bfloat16", sent_as="bfloat16")
    np.testing.assert_array_equal(read_in_half, read)
