"""Bayesian personalised ranking against numpy in float64, and numbers worked out by hand."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from softmax_reference import assert_close

from recsys.errors import RecsysError
from recsys.losses import bpr


def exact(query, candidate, item_row, temperature, weight, known):
    """Returns the loss, and its gradients to the first two and the temperature, pair by pair."""
    query, candidate, weight = (np.array(x, np.float64) for x in (query, candidate, weight))
    n, n_negatives = len(query), len(candidate) - len(query)
    pairs = [(i, n + i % n_negatives) for i in range(n)]
    for i, j in pairs:
        if item_row[j] in {item_row[i], *known[i]} - {0} or item_row[j] == item_row[i]:
            weight[i] = 0
    loss, d_query, d_candidate, d_temperature = 0.0, np.zeros_like(query), 0 * candidate, 0.0
    for i, j in pairs:
        if not weight[i]:
            continue
        share, difference = weight[i] / weight.sum(), candidate[i] - candidate[j]
        margin = query[i] @ difference / temperature
        loss += share * np.logaddexp(0, -margin)
        slope = -share / (1 + np.exp(margin)) / temperature
        d_query[i] += slope * difference
        d_candidate[i] += slope * query[i]
        d_candidate[j] -= slope * query[i]
        d_temperature -= slope * margin
    return loss, (d_query, d_candidate, d_temperature)


def batch_of(n_queries, n_negatives, *, dim=4, items=20, known=3, seed=0):
    rng = np.random.default_rng(seed)
    n_candidates = n_queries + n_negatives
    return (
        rng.normal(size=(n_queries, dim)).astype(np.float32),
        rng.normal(size=(n_candidates, dim)).astype(np.float32),
        rng.integers(0, items, n_candidates).astype(np.int32),
        np.float32(0.7),
        rng.choice([0.0, 0.5, 1.0, 2.0], n_queries).astype(np.float32),
        rng.integers(0, items, (n_queries, known)).astype(np.int32),
    )


gradients = jax.jit(jax.value_and_grad(bpr, argnums=(0, 1, 3)))


def assert_right(batch):
    loss, found = gradients(*batch)
    expected_loss, expected = exact(*batch)
    assert float(loss) == pytest.approx(expected_loss, rel=3e-6)
    for actual, wanted in zip(found, expected, strict=True):
        assert_close(actual, wanted, 5e-6)


@settings(max_examples=20)
@given(
    n_negatives=st.sampled_from([1, 4, 7, 9]),
    items=st.integers(1, 9),
    known=st.sampled_from([0, 2]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_batch_is_right(n_negatives, items, known, seed):
    assert_right(batch_of(7, n_negatives, items=items, known=known, seed=seed))


def test_a_margin_counts_over_the_temperature():
    query = np.ones((1, 1), np.float32)
    candidate = np.array([[3.0], [2.0]], np.float32)
    loss = bpr(query, candidate, np.array([1, 2]), 0.5)
    assert float(loss) == pytest.approx(np.log1p(np.exp(-2)))


def test_queries_take_the_negatives_in_turn():
    # Logits 1, 2 of the negatives, 0 of the positives; the third query has the first again.
    query = np.ones((3, 1), np.float32)
    candidate = np.array([[0.0], [0.0], [0.0], [1.0], [2.0]], np.float32)
    loss = bpr(query, candidate, np.arange(1, 6), 1.0)
    one, two = np.log1p(np.exp(1)), np.log1p(np.exp(2))
    assert float(loss) == pytest.approx((2 * one + two) / 3)


@pytest.mark.parametrize("margin", [-1e4, 1e4])
def test_margins_of_ten_thousand_have_finite_losses_and_gradients(margin):
    candidate = np.array([[margin], [0.0]], np.float32)
    arguments = (np.ones((1, 1), np.float32), candidate, np.array([1, 2]), 1.0)
    loss, gradient = jax.value_and_grad(bpr)(*arguments)
    assert float(loss) == max(0, -margin)
    assert np.isfinite(gradient).all()


def test_where_all_negatives_are_liked_loss_and_gradients_are_zero():
    query, candidate, item_row, temperature, weight, _ = batch_of(4, 2)
    item_row = np.array([1, 2, 3, 4, 5, 6], np.int32)
    known = np.tile(np.array([0, 5, 6, 5], np.int32), (4, 1))
    loss, found = gradients(query, candidate, item_row, temperature, weight, known)
    assert float(loss) == 0
    for gradient in found:
        assert not np.any(gradient)


def test_bfloat16_counts_as_the_numbers_that_it_holds():
    query, candidate, *rest = batch_of(6, 4)
    half = [jnp.asarray(x, jnp.bfloat16) for x in (query, candidate)]
    loss, (gradient, *_) = gradients(*half, *rest)
    expected, _ = exact(*(np.float32(x) for x in half), *rest)
    assert loss.dtype == jnp.float32
    assert gradient.dtype == jnp.bfloat16
    assert float(loss) == pytest.approx(expected, rel=1e-6)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -np.inf])
@pytest.mark.parametrize("where", [0, 1])
def test_a_number_that_is_none_makes_the_loss_none(where, bad):
    batch = list(batch_of(6, 4))
    batch[where] = batch[where].copy()
    batch[where][-1] = bad
    assert np.isnan(bpr(*batch))


def test_a_batch_without_negatives_is_refused():
    query, candidate, *rest = batch_of(6, 4)
    with pytest.raises(RecsysError, match=r"R344.*6 queries, 6 candidates"):
        bpr(query, candidate[:6], *rest)


def test_devices_that_share_the_batch_find_what_one_finds():
    batch = batch_of(64, 24, items=40)
    expected = gradients(*batch)
    mesh = keras.distribution.DeviceMesh((8,), ("batch",), keras.distribution.list_devices())
    spec = NamedSharding(mesh.backend_mesh, PartitionSpec("batch"))
    keras.distribution.set_distribution(
        keras.distribution.DataParallel(device_mesh=mesh, auto_shard_dataset=False)
    )
    placed = [jax.device_put(x, spec) if np.ndim(x) else x for x in batch]
    found = gradients(*placed)
    for actual, wanted in zip(jax.tree.leaves(found), jax.tree.leaves(expected), strict=True):
        assert_close(actual, wanted, 1e-6)
