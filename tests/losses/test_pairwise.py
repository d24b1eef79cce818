"""Bayesian personalised ranking: numbers worked out by hand."""

import jax
import numpy as np
import pytest

from recsys.losses import Bpr

bpr = Bpr()


def test_a_margin_counts_over_the_temperature():
    query = np.ones((1, 1), np.float32)
    candidate = np.array([[3.0], [2.0]], np.float32)
    loss = bpr(query, candidate, np.array([1, 2]), None, 0.5)
    assert float(loss) == pytest.approx(np.log1p(np.exp(-2)))


def test_queries_take_the_negatives_in_turn():
    # Logits 1, 2 of the negatives, 0 of the positives; the third query has the first again.
    query = np.ones((3, 1), np.float32)
    candidate = np.array([[0.0], [0.0], [0.0], [1.0], [2.0]], np.float32)
    loss = bpr(query, candidate, np.arange(1, 6), None, 1.0)
    one, two = np.log1p(np.exp(1)), np.log1p(np.exp(2))
    assert float(loss) == pytest.approx((2 * one + two) / 3)


@pytest.mark.parametrize("margin", [-1e4, 1e4])
def test_margins_of_ten_thousand_have_finite_losses_and_gradients(margin):
    candidate = np.array([[margin], [0.0]], np.float32)
    arguments = (np.ones((1, 1), np.float32), candidate, np.array([1, 2]), None, 1.0)
    loss, gradient = jax.jit(jax.value_and_grad(bpr))(*arguments)
    assert float(loss) == max(0, -margin)
    assert np.isfinite(gradient).all()


def test_where_all_negatives_are_liked_loss_and_gradients_are_zero():
    query, candidate = np.ones((4, 1), np.float32), np.arange(6, dtype=np.float32)[:, None]
    known = np.tile(np.array([0, 5, 6, 5], np.int32), (4, 1))
    gradient = jax.jit(jax.value_and_grad(bpr, argnums=(0, 1)))
    loss, found = gradient(query, candidate, np.arange(1, 7), None, 1.0, None, known)
    assert float(loss) == 0
    assert not any(map(np.any, found))
