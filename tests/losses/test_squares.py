"""Least squares against numpy in float64, and against the closed half-steps of iALS."""

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import scipy.sparse
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.sharding import NamedSharding, PartitionSpec
from softmax_reference import assert_close

from recsys.errors import RecsysError
from recsys.losses import least_squares
from recsys.tasks.retrieval.judging.baselines import Objective, solve


def exact(query, candidate, temperature, weight, negative_weight, regularisation):
    """Returns the loss, and its gradients to the first three, pair by pair."""
    query, candidate = (np.asarray(x, np.float64) for x in (query, candidate))
    d_query, d_candidate, loss, d_temperature = 0 * query, 0 * candidate, 0.0, 0.0
    n_drawn = len(candidate) - len(query)
    for i in range(len(query)):
        share = weight[i] / weight.sum() if weight.sum() else 0.0
        pairs = [(i, 1.0, 1.0)] + [
            (len(query) + j, 0.0, negative_weight / n_drawn) for j in range(n_drawn)
        ]
        for j, target, of_pair in pairs:
            score = query[i] @ candidate[j] / temperature
            lengths = query[i] @ query[i] + candidate[j] @ candidate[j]
            loss += share * of_pair * ((target - score) ** 2 + regularisation * lengths)
            slope = -2 * share * of_pair * (target - score)
            d_query[i] += slope * candidate[j] / temperature
            d_candidate[j] += slope * query[i] / temperature
            d_query[i] += 2 * share * of_pair * regularisation * query[i]
            d_candidate[j] += 2 * share * of_pair * regularisation * candidate[j]
            d_temperature -= slope * score / temperature
    return loss, (d_query, d_candidate, d_temperature)


def batch_of(n_queries, n_drawn, dim=4, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(n_queries, dim)).astype(np.float32),
        rng.normal(size=(n_queries + n_drawn, dim)).astype(np.float32),
        np.float32(0.7),
        rng.choice([0.0, 0.5, 1.0, 2.0], n_queries).astype(np.float32),
    )


gradients = jax.jit(jax.value_and_grad(least_squares, argnums=(0, 1, 2)))


@settings(max_examples=25)
@given(
    n_queries=st.integers(1, 6),
    n_drawn=st.integers(1, 9),
    options=st.sampled_from([(6.0, 0.007), (0.5, 0.0), (30.0, 1.0)]),
    seed=st.integers(0, 2**32 - 1),
)
def test_loss_and_gradients_are_those_in_float64(n_queries, n_drawn, options, seed):
    batch = batch_of(n_queries, n_drawn, seed=seed)
    loss, computed = gradients(*batch, *options)
    expected, slopes = exact(*batch, *options)
    assert float(loss) == pytest.approx(expected, rel=3e-6)
    for actual, wanted in zip(computed, slopes, strict=True):
        assert_close(actual, wanted, 1e-5)


def test_a_user_whose_vector_ials_solves_has_no_gradient():
    """With all items drawn, the sum over a user's events is the objective of a half-step."""
    rng = np.random.default_rng(0)
    n_items, taken, weight, regularisation = 30, np.array([2, 7, 8, 21]), 3.0, 0.05
    items = rng.normal(size=(n_items, 5)).astype(np.float32)
    row = scipy.sparse.csr_matrix((np.ones(4), taken, [0, 4]), shape=(1, n_items), dtype=np.float32)
    objective = Objective(unobserved=weight * len(taken) / n_items, regularisation=regularisation)
    user = solve(row, items, n_items, objective)

    def loss(user, items):
        candidate = jnp.concatenate([items[taken], items])
        return least_squares(
            jnp.repeat(user, len(taken), axis=0), candidate, 1.0, None, weight, regularisation
        )

    assert np.abs(user).max() > 0.05
    assert np.abs(jax.grad(loss)(user, items)).max() < 1e-6
    # And any other vector costs more.
    away = user + rng.normal(size=user.shape).astype(np.float32) * 0.1
    assert float(loss(away, items)) > float(loss(user, items))


@pytest.mark.parametrize("where", [0, 1])
def test_a_number_that_is_none_makes_the_loss_none(where):
    batch = list(batch_of(6, 4))
    batch[where] = batch[where].copy()
    batch[where][-1] = np.inf
    assert np.isnan(least_squares(*batch))


def test_weights_of_zero_have_no_loss_and_no_gradient():
    query, candidate, temperature, weight = batch_of(4, 3)
    loss, computed = gradients(query, candidate, temperature, 0 * weight)
    assert float(loss) == 0
    assert not any(np.any(gradient) for gradient in computed)


def test_bfloat16_counts_as_the_numbers_that_it_holds():
    query, candidate, *rest = batch_of(6, 4)
    half = [jnp.asarray(x, jnp.bfloat16) for x in (query, candidate)]
    loss, (gradient, *_) = gradients(*half, *rest)
    expected, _ = exact(*(np.float32(x) for x in half), *rest, 6.0, 0.007)
    assert loss.dtype == jnp.float32
    assert gradient.dtype == jnp.bfloat16
    assert float(loss) == pytest.approx(expected, rel=1e-6)


def test_a_batch_without_drawn_items_is_refused():
    query, candidate, *rest = batch_of(6, 4)
    with pytest.raises(RecsysError, match=r"R344.*6 queries, 6 candidates"):
        least_squares(query, candidate[:6], *rest)


def test_eight_devices_find_what_one_finds_and_gather_nothing():
    batch = batch_of(1024, 2048, dim=8)
    mesh = keras.distribution.DeviceMesh((8,), ("x",), keras.distribution.list_devices())
    split = NamedSharding(mesh.backend_mesh, PartitionSpec("x"))
    query, candidate = (jax.device_put(x, split) for x in batch[:2])
    # Results stay on the devices of the inputs, so that XLA's later copies don't count.
    where = (None, (split, split, None))
    spread = jax.jit(gradients, out_shardings=where)
    program = spread.lower(query, candidate, *batch[2:]).compile()
    loss, computed = program(query, candidate, *batch[2:])
    expected, slopes = gradients(*batch)
    assert float(loss) == pytest.approx(float(expected), rel=1e-6)
    for actual, wanted in zip(computed, slopes, strict=True):
        assert_close(actual, wanted, 1e-6)
    assert "all-gather(" not in program.as_text()
    # The products would be four times as many bytes.
    alone = gradients.lower(*batch).compile().memory_analysis().temp_size_in_bytes
    assert alone < 1024 * 2048
