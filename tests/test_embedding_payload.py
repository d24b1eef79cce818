"""Rows that travel in bfloat16: rounded once on the way, and summed in float32."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from embedding_meshes import Lookup, compiled, on_mesh
from jax.sharding import PartitionSpec

from recsys.embedding import Adagrad, TableConfig, payload

WIDTHS = [1, 4, 7]
AXIS = PartitionSpec("devices")


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
    moved = over_devices(lambda x: payload.swap_chunks(x, "devices", "bfloat16"))(x)
    # Device i gets the i-th chunk of each device.
    expected = rounded(x).reshape(8, 8, 3, width).swapaxes(0, 1).reshape(64, 3, width)
    np.testing.assert_array_equal(moved, expected)


@pytest.mark.parametrize("width", WIDTHS)
def test_all_devices_gather_what_is_rounded(width):
    x = numbers(16, width)
    gathered = over_devices(lambda x: payload.all_gather(x, "devices", "bfloat16"))(x)
    np.testing.assert_array_equal(gathered.reshape(8, 16, width), np.tile(rounded(x), (8, 1, 1)))


@pytest.mark.parametrize("width", WIDTHS)
def test_sums_over_devices_are_taken_in_float32(width):
    x = numbers(64, 8, width).reshape(512, width)
    summed = over_devices(lambda x: payload.reduce_scatter(x, "devices", "bfloat16"))(x)
    expected = rounded(x).reshape(8, 64, width).astype(np.float64).sum(axis=0)
    np.testing.assert_allclose(summed, expected, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("kind", ["float32", "bfloat16"])
@pytest.mark.parametrize("name", ["all_gather", "reduce_scatter", "rows_to_columns"])
def test_gradients_go_back_by_the_reverse_collective(name, kind):
    """Of a linear map f the gradient of f(x) · g is fᵀ(g); numbers are exact in bfloat16."""
    rng = np.random.default_rng(1)
    move = over_devices(lambda x: getattr(payload, name)(x, "devices", kind))
    x = rng.integers(-8, 8, (64, 2)).astype(np.float32)
    out, back = jax.vjp(move, x)
    g = rng.integers(-8, 8, out.shape).astype(np.float32)
    (gradient,) = back(g)
    direction = rng.integers(-8, 8, x.shape).astype(np.float32)
    assert (gradient * direction).sum() == (move(direction) * g).sum()


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
