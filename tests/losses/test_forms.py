"""All losses of retrieval against numpy in float64, and what each of them promises."""

import functools
import os
import re

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from softmax_reference import assert_close, mean_of, random_batch

from recsys import registry
from recsys.errors import RecsysError
from recsys.losses import softmax_jax

NAMES = ["query", "candidate", "log_q", "temperature", "weight"]


# --- the formulas


def wide(batch):
    arrays = (batch.query, batch.candidate, batch.log_q, batch.weight)
    return [np.asarray(x, np.float64) for x in arrays]


def mean_and_gradients(batch, losses, to_products, to_log_q, to_temperature):
    """Returns the weighted mean and its gradients, from each query's loss.

    Args:
        batch: The arguments.
        losses: Loss of each query `[n]`.
        to_products: Its gradient to each dot product `[n, candidates]`.
        to_log_q: To each candidate's log_q `[n, candidates]`.
        to_temperature: To the temperature `[n]`.
    """
    query, candidate, _, weight = wide(batch)
    total = weight.sum() or 1.0
    share = weight / total
    mean = share @ losses
    slopes = share[:, None] * to_products
    return mean, {
        "query": slopes @ candidate,
        "candidate": slopes.T @ query,
        "log_q": share @ to_log_q,
        "temperature": share @ to_temperature,
        "weight": (losses - mean) / total,
    }


def squares_exact(batch, w=6.0, regularisation=0.007):
    query, candidate, _, weight = wide(batch)
    n, n_candidates = len(query), len(candidate)
    positive = np.eye(n, n_candidates)
    of_pair = positive + w * (np.arange(n_candidates) >= n) / (n_candidates - n)
    scores = query @ candidate.T / batch.temperature
    lengths = (query**2).sum(axis=1)[:, None] + (candidate**2).sum(axis=1)
    losses = (of_pair * ((positive - scores) ** 2 + regularisation * lengths)).sum(axis=1)
    slopes = -2 * of_pair * (positive - scores) / batch.temperature
    nothing, to_temperature = np.zeros_like(scores), -(slopes * scores).sum(axis=1)
    mean, gradients = mean_and_gradients(batch, losses, slopes, nothing, to_temperature)
    pull = 2 * regularisation * (weight / weight.sum())[:, None] * of_pair
    gradients["query"] += pull.sum(axis=1)[:, None] * query
    gradients["candidate"] += pull.sum(axis=0)[:, None] * candidate
    return mean, gradients


def pairwise_exact(batch):
    query, candidate, _, weight = wide(batch)
    n, each = len(query), np.arange(len(query))
    negative = n + each % (len(candidate) - n)
    row = batch.item_row[negative]
    liked = (row == batch.item_row[:n]) | ((batch.known == row[:, None]) & (batch.known > 0)).any(
        axis=1
    )
    of_pair = np.zeros((n, len(candidate)))
    of_pair[each, each], of_pair[each, negative] = 1, -1
    margin = (of_pair * (query @ candidate.T)).sum(axis=1) / batch.temperature
    slope = -1 / (1 + np.exp(margin))
    mean, gradients = mean_and_gradients(
        batch._replace(weight=np.where(liked, 0, weight)),
        np.logaddexp(0, -margin),
        slope[:, None] * of_pair / batch.temperature,
        np.zeros_like(of_pair),
        -slope * margin / batch.temperature,
    )
    gradients["weight"][liked] = 0
    return mean, gradients


@functools.cache
def differentiated(loss, *_):
    """Returns a loss with its gradients, compiled once for each shape and way to compute it."""

    def of(query, candidate, log_q, temperature, weight, item_row, known):
        return loss(
            query, candidate, item_row=item_row, log_q=log_q, temperature=temperature,
            sample_weight=weight, known=known,
        )  # fmt: skip

    return jax.jit(jax.value_and_grad(of, argnums=range(5)))


def with_gradients(loss, batch):
    """Returns a loss and its gradients by name, as JAX computes them."""
    way = os.environ.get("RECSYS_NATIVE"), softmax_jax.can_sweep
    numbers = (batch.query, batch.candidate, batch.log_q, np.float32(batch.temperature))
    value, gradients = differentiated(loss, *way)(
        *numbers, batch.weight, batch.item_row, batch.known
    )
    return value, dict(zip(NAMES, gradients, strict=True))


def assert_right(loss, batch, expected, tolerance=5e-6):
    value, gradients = with_gradients(loss, batch)
    mean, exact = expected
    assert float(value) == pytest.approx(mean, rel=tolerance, abs=tolerance)
    for name in NAMES:
        np.testing.assert_array_equal(np.isfinite(gradients[name]), True, err_msg=name)
        # Differences that nearly cancel are as exact as their terms.
        size = {"temperature": 30 / batch.temperature, "weight": 10 / batch.weight.sum()}
        scale = max(np.abs(exact[name]).max(), size.get(name, 1e-3) * max(1, abs(mean)))
        np.testing.assert_allclose(
            gradients[name], exact[name], rtol=0, atol=tolerance * scale, err_msg=name
        )


def loss_named(name, **options):
    return registry.Choice("loss").read({"type": name, **options})


ALL = {
    "softmax": (loss_named("sampled_softmax"), mean_of),
    "least squares": (loss_named("least_squares"), squares_exact),
    "pairwise": (loss_named("bpr"), pairwise_exact),
}
every_loss = pytest.mark.parametrize(("loss", "exact"), ALL.values(), ids=ALL)


def batch_of(n_queries, n_candidates, dim, **options):
    """A random batch whose dot products are cosines, and about as often above 0.2 as below."""
    batch = random_batch(n_queries, n_candidates, dim, **options)
    query, candidate = (
        x / np.linalg.norm(x, axis=1, keepdims=True) for x in (batch.query, batch.candidate)
    )
    return batch._replace(query=query, candidate=candidate, temperature=0.25)


@every_loss
@settings(max_examples=12)
@given(  # Of few shapes: each is compiled.
    sizes=st.sampled_from([(1, 0), (20, 5)]),
    items=st.integers(1, 30),
    known=st.just(3),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_batch_is_right(loss, exact, sizes, items, known, seed):
    n, n_drawn = sizes[0], max(sizes[1], loss.needs_drawn_negatives)
    batch = batch_of(n, n + n_drawn, 5, items=items, known=known, seed=seed)
    assert_right(loss, batch, exact(batch), 1e-5)


@pytest.mark.parametrize("n_candidates", [30, 44])
def test_the_plain_formula_is_the_same(n_candidates, monkeypatch):
    batch = batch_of(30, n_candidates, 8, items=12, known=4)
    monkeypatch.setattr("recsys.losses.softmax_jax.can_sweep", lambda *_: False)
    loss, exact = ALL["softmax"]
    assert_right(loss, batch, exact(batch))


# --- weights, types, and numbers that are none


@pytest.mark.parametrize("name", ALL)
def test_a_query_counts_by_its_weight(name):
    """Weights are how `train.user_balance` makes users count alike."""
    loss, _ = ALL[name]
    batch = batch_of(6, 12, 4)._replace(item_row=np.arange(1, 13, dtype=np.int32))
    value, _ = with_gradients(loss, batch)
    alone = [
        float(with_gradients(loss, batch._replace(weight=np.eye(6, dtype=np.float32)[i]))[0])
        for i in range(6)
    ]
    expected = np.average(alone, weights=batch.weight)
    assert float(value) == pytest.approx(expected, rel=1e-5)


@every_loss
def test_weights_that_sum_to_zero_give_loss_and_gradients_zero(kernels, loss, exact):
    batch = batch_of(6, 10, 4)._replace(weight=np.zeros(6, np.float32))
    value, gradients = with_gradients(loss, batch)
    assert float(value) == 0
    for name in ("query", "candidate", "log_q", "temperature"):
        assert not np.any(gradients[name]), name


@every_loss
def test_bfloat16_counts_as_the_numbers_that_it_holds(kernels, loss, exact):
    batch = batch_of(6, 10, 4, known=3)
    half = [jnp.asarray(x, jnp.bfloat16) for x in (batch.query, batch.candidate)]
    value, gradients = with_gradients(loss, batch._replace(query=half[0], candidate=half[1]))
    mean, expected = exact(batch._replace(query=np.float32(half[0]), candidate=np.float32(half[1])))
    assert value.dtype == jnp.float32
    assert float(value) == pytest.approx(mean, rel=3e-6)
    for name in ("query", "candidate"):
        assert gradients[name].dtype == jnp.bfloat16
        assert_close(gradients[name], expected[name], 2**-7)


@every_loss
@pytest.mark.parametrize(("where", "bad"), [("query", np.nan), ("candidate", np.inf)])
def test_a_number_that_is_none_makes_the_loss_none(kernels, loss, exact, where, bad):
    batch = batch_of(6, 10, 4)
    array = getattr(batch, where).copy()
    array[-1] = bad
    value, _ = with_gradients(loss, batch._replace(**{where: array}))
    assert np.isnan(value)


def test_an_infinite_probability_makes_the_loss_none(kernels):
    batch = batch_of(6, 10, 4)
    log_q = np.where(np.arange(10) == 9, -np.inf, batch.log_q).astype(np.float32)
    assert np.isnan(with_gradients(ALL["softmax"][0], batch._replace(log_q=log_q))[0])


@pytest.mark.parametrize(("name", "n"), [("softmax", 5), ("least squares", 6), ("pairwise", 6)])
def test_too_few_candidates_are_refused(name, n):
    batch = batch_of(6, 6, 4)
    cut = {key: getattr(batch, key)[:n] for key in ("candidate", "item_row", "log_q")}
    with pytest.raises(RecsysError, match=rf"R344.*6 queries, {n} candidates"):
        with_gradients(ALL[name][0], batch._replace(**cut))


# --- several devices, and memory


@pytest.fixture
def eight_devices():
    mesh = keras.distribution.DeviceMesh((8,), ("x",), keras.distribution.list_devices())
    distribution = keras.distribution.DataParallel(device_mesh=mesh, auto_shard_dataset=False)
    keras.distribution.set_distribution(distribution)
    return mesh.backend_mesh


@pytest.mark.parametrize(
    "kernels", ["native", pytest.param("blocks", marks=pytest.mark.thorough)], indirect=True
)
@every_loss
def test_eight_devices_find_what_one_finds(kernels, eight_devices, loss, exact):
    batch = batch_of(64, 88, 16, items=40, known=5)

    def of(query, candidate, log_q, weight, item_row, known):
        return loss(
            query, candidate, item_row=item_row, log_q=log_q, temperature=0.25,
            sample_weight=weight, known=known,
        )  # fmt: skip

    arrays = (batch.query, batch.candidate, batch.log_q, batch.weight, batch.item_row, batch.known)
    split = NamedSharding(eight_devices, PartitionSpec("x"))
    gradient = jax.jit(jax.value_and_grad(of, argnums=(0, 1)))
    value, gradients = gradient(*(jax.device_put(x, split) for x in arrays))
    mean, expected = exact(batch)
    assert float(value) == pytest.approx(mean, rel=3e-6)
    for found, name in zip(gradients, NAMES, strict=False):
        assert_close(found, expected[name], 5e-6)
        assert found.sharding.spec == PartitionSpec("x")


def test_no_array_has_a_place_for_each_query_and_candidate(monkeypatch):
    from recsys.losses.softmax_jax import sweep_loss

    monkeypatch.setenv("RECSYS_NATIVE", "0")
    batch = batch_of(6000, 10_000, 8, known=10)

    def of(query, candidate):
        more = (batch.item_row, batch.log_q, 0.2, batch.weight, batch.known)
        return sweep_loss(query, candidate, *more)

    lowered = jax.jit(jax.value_and_grad(of, argnums=(0, 1))).lower(batch.query, batch.candidate)
    compiled = lowered.compile()
    assert not re.search(r"6000,1000[01]|1?[06]000,1?[06]000|6000,10,10000", compiled.as_text())
    # A quarter of one such array.
    assert compiled.memory_analysis().temp_size_in_bytes < 6000 * 10_000
