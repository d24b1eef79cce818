"""Sums over a batch that is split over devices: taken in their order, by no all-reduce."""

import functools
import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest

from recsys.collectives import planning
from recsys.embedding.device_order import in_device_order

BATCH, WIDTH = 32, 6


def numbers(*shape, seed=0):
    return jnp.asarray(np.random.default_rng(seed).normal(size=shape).astype(np.float32))


WEIGHTS = {
    "kernel": numbers(WIDTH, WIDTH, seed=1),
    "bias": numbers(WIDTH, seed=2),
    "place": numbers(5, WIDTH, seed=3),
    "scale": numbers(seed=4),
}


@pytest.fixture(autouse=True)
def on_eight_devices():
    devices = keras.distribution.list_devices()[:8]
    keras.distribution.set_distribution(keras.distribution.DataParallel(devices=devices))


def arguments(batch):
    draw = np.random.default_rng(5)
    x, share = numbers(batch, WIDTH), draw.random(batch).astype(np.float32)
    arrays = (x, jnp.asarray(share), jnp.asarray(draw.integers(0, 5, (batch, 3)), jnp.int32))
    mesh = keras.distribution.distribution().device_mesh.backend_mesh
    if batch % 8:
        return WEIGHTS, *arrays
    split = jax.sharding.NamedSharding(mesh, jax.sharding.PartitionSpec(*mesh.axis_names))
    return WEIGHTS, *(jax.device_put(array, split) for array in arrays)


def loss(weights, x, share, rows, dtype=jnp.float32):
    """A loss that reads its weights in most ways: twice, by row, of the mean of a batch."""
    share = share / jnp.sum(share)
    hidden = x @ weights["kernel"] + weights["bias"]
    hidden = jax.nn.silu(hidden - jnp.mean(hidden, axis=0))
    few = hidden.astype(dtype) @ weights["kernel"].astype(dtype).T
    places = jnp.take(weights["place"], rows, axis=0)  # [batch, 3, width]
    seen = jnp.einsum("bw,bpw->bp", hidden, places)
    each = jnp.where(seen > 0, seen, 0.1 * seen).sum(axis=1) * jnp.exp(weights["scale"])
    each = each + jnp.sum(few.astype(jnp.float32) * x, axis=1)
    whole = (10 * jnp.sum(x * x)).astype(jnp.int32)
    return jnp.sum(share * each), (hidden, whole)


def gradients(*arguments, dtype=jnp.float32):
    return jax.value_and_grad(functools.partial(loss, dtype=dtype), has_aux=True)(*arguments)


def compiled(function, *arguments):
    return jax.jit(function).lower(*arguments).compile()


def float_sums(program):
    """The all-reduces of floats in a program."""
    lines = program.as_text().splitlines()
    return [line for line in lines if re.search(r"= \(?f32\[.*\ball-reduce(-start)?\(", line)]


def in_order(*arguments):
    return in_device_order(gradients, *arguments)


@pytest.mark.parametrize(
    ("batch", "dtype", "tolerance"),
    [(BATCH, "float32", 1e-5), (BATCH + 3, "float32", 1e-5), (BATCH, "bfloat16", 0.02)],
)
def test_gradients_and_loss_are_those_of_the_plain_function(batch, dtype, tolerance):
    given, function = arguments(batch), functools.partial(gradients, dtype=dtype)
    ordered = jax.jit(lambda *given: in_device_order(function, *given))(*given)
    expected = jax.jit(function)(*given)

    def check(ours, theirs):
        np.testing.assert_allclose(ours, theirs, rtol=tolerance, atol=tolerance)

    jax.tree.map(check, ordered, expected)


@pytest.mark.parametrize(
    "of_sums",
    [
        lambda weights, x, share, rows: jnp.sum(share) * jnp.sum(x),
        lambda weights, x, share, rows: jnp.sum(x) / jnp.sum(share),
        lambda weights, x, share, rows: 2 / jnp.sum(share),
        lambda weights, x, share, rows: jnp.sum(share) + weights["scale"],
        lambda weights, x, share, rows: weights["place"].at[rows[:, 0]].add(x),
    ],
    ids=["product", "quotient", "divisor", "sum and a number", "rows added to what is there"],
)
def test_what_is_not_linear_in_the_sums_gets_their_totals(of_sums):
    given = arguments(BATCH)
    ordered = jax.jit(lambda *given: in_device_order(of_sums, *given))(*given)
    np.testing.assert_allclose(ordered, of_sums(*given), rtol=1e-5)


def test_no_float_is_summed_by_an_all_reduce():
    given = arguments(BATCH)
    assert float_sums(compiled(gradients, *given))
    assert not float_sums(compiled(in_order, *given))


def test_a_plan_is_that_of_an_accelerator():
    with planning():
        assert float_sums(compiled(lambda *given: in_order(*given), *arguments(BATCH)))
