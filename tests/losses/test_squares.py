"""Least squares against the closed half-steps of iALS, and on several devices."""

import functools

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pytest
import scipy.sparse
from jax.sharding import NamedSharding, PartitionSpec
from softmax_reference import assert_close

from recsys.losses import LeastSquares
from recsys.tasks.retrieval.judging.baselines import Objective, solve


def batch_of(n_queries, n_drawn, dim=4, seed=0):
    rng = np.random.default_rng(seed)
    return (
        rng.normal(size=(n_queries, dim)).astype(np.float32),
        rng.normal(size=(n_queries + n_drawn, dim)).astype(np.float32),
        np.float32(0.7),
        rng.choice([0.0, 0.5, 1.0, 2.0], n_queries).astype(np.float32),
    )


@jax.jit
@functools.partial(jax.value_and_grad, argnums=(0, 1, 2))
def gradients(query, candidate, temperature, weight):
    return LeastSquares()(query, candidate, None, None, temperature, weight)


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
        squares = LeastSquares(negative_weight=weight, regularisation=regularisation)
        return squares(jnp.repeat(user, len(taken), axis=0), candidate, None, None)

    assert np.abs(user).max() > 0.05
    assert np.abs(jax.grad(loss)(user, items)).max() < 1e-6
    # And any other vector costs more.
    away = user + rng.normal(size=user.shape).astype(np.float32) * 0.1
    assert float(loss(away, items)) > float(loss(user, items))


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
