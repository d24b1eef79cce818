"""The sampled softmax against numpy in float64, and against numbers worked out by hand."""

import functools
import importlib.util
import os
import subprocess
import sys
import textwrap

import jax
import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from softmax_reference import (
    GRADIENTS,
    arguments,
    assert_close,
    loss_of,
    mean_of,
    random_batch,
)

from recsys.losses import SampledSoftmax

sampled_softmax = SampledSoftmax()


@functools.cache
def differentiated(_):
    """Returns the loss with its gradients, compiled once for each shape and kind of kernels."""
    return jax.jit(jax.value_and_grad(lambda *batch: loss_of(*batch), argnums=range(5)))


def loss_and_gradients(batch):
    """Returns the loss, and its gradients to everything by name."""
    loss, gradients = differentiated(os.environ.get("RECSYS_NATIVE"))(*arguments(batch))
    return loss, dict(zip(GRADIENTS, gradients, strict=True))


def assert_right(batch, tolerance=3e-6):
    loss, gradients = loss_and_gradients(batch)
    expected_loss, expected = mean_of(batch)
    assert_close(loss, expected_loss, tolerance)
    for name in GRADIENTS:
        np.testing.assert_array_equal(np.isfinite(gradients[name]), True, err_msg=name)
        # Differences that nearly cancel are as exact as their terms.
        size = {"temperature": 30 / batch.temperature, "weight": 10 / batch.weight.sum()}
        scale = max(np.abs(expected[name]).max(), size.get(name, 0) * max(1, abs(expected_loss)))
        np.testing.assert_allclose(
            gradients[name], expected[name], rtol=0, atol=tolerance * scale, err_msg=name
        )


# --- the formula


def by_hand(query, candidate, item_row, log_q, temperature, known):
    """The mean of -log p(positive) over each row's softmax, one logit at a time."""
    losses = []
    for i in range(len(query)):
        logits, counted = {}, {item_row[i], *known[i]}
        for j in range(len(candidate)):
            if j == i or item_row[j] not in counted:
                logits[j] = float(query[i] @ candidate[j]) / temperature - float(log_q[j])
                counted.add(item_row[j])
        total = sum(np.exp(logit) for logit in logits.values())
        losses.append(-np.log(np.exp(logits[i]) / total))
    return float(np.mean(losses))


@pytest.mark.parametrize(
    ("item_row", "known"),
    [
        ([1, 2, 3, 4, 5], []),
        ([1, 2, 1, 2, 1], []),
        ([7, 7, 7, 7, 7], []),
        ([1, 2, 3, 4, 5, 6, 3, 9], []),
        ([1, 2, 3, 4, 5, 6, 6, 6], []),
        ([1, 2, 3, 4, 5, 6, 3, 9], [3]),
        ([1, 2, 3, 3, 5, 6, 6, 9], [6, 1, 6]),
        ([1, 2, 3, 4, 5, 6], [77, -1]),
        ([1, 2, 3], [1, 2, 3]),
    ],
    ids=[
        "distinct", "accidental hits", "one item only", "three negatives more",
        "one negative thrice", "one is known", "two are known", "known ones are elsewhere",
        "all are known",
    ],
)  # fmt: skip
def test_loss_is_the_softmax_over_the_set_of_candidates(kernels, item_row, known):
    rng = np.random.default_rng(0)
    item_row = np.array(item_row, np.int32)
    n_candidates, n_queries = len(item_row), min(5, len(item_row))
    query = rng.normal(size=(n_queries, 3)).astype(np.float32)
    candidate = rng.normal(size=(n_candidates, 3)).astype(np.float32)
    log_q = np.log(rng.uniform(1e-9, 0.5, n_candidates)).astype(np.float32)
    known = np.tile(np.array(known, np.int32), (n_queries, 1))

    def loss(query, candidate, item_row, log_q, known):
        return sampled_softmax(query, candidate, item_row, log_q, 0.2, known=known)

    found = jax.jit(loss)(query, candidate, item_row, log_q, known)
    assert float(found) == pytest.approx(
        by_hand(query, candidate, item_row, log_q, 0.2, known), rel=1e-5, abs=1e-6
    )


def test_a_candidate_drawn_ten_times_as_often_weighs_a_tenth(kernels):
    ones = np.ones((2, 4), np.float32)
    log_q = np.log(np.array([0.05, 0.5], np.float32))
    loss = jax.jit(sampled_softmax)(ones, ones, np.array([1, 2]), log_q, 1.0)
    # Odds of 10 : 1 for the rare candidate; one query wants it, the other the common one.
    assert float(loss) == pytest.approx((np.log(11 / 10) + np.log(11)) / 2)


def test_the_gradients_of_two_orthogonal_pairs_are_those_on_paper(kernels):
    # Logits (1, 0) and (0, 1) over temperature 1/2: p of the negative is 1 / (1 + e²).
    unit = np.eye(2, dtype=np.float32)
    item_row, log_q = np.array([1, 2], np.int32), np.zeros(2, np.float32)
    gradient = jax.jit(jax.grad(sampled_softmax, argnums=(0, 1)))
    d_query, d_candidate = gradient(unit, unit, item_row, log_q, 0.5)
    p = 1 / (1 + np.exp(2))
    # Half of each query's loss, twice the slope of a logit.
    expected = np.array([[-p, p], [p, -p]])
    np.testing.assert_allclose(d_query, expected, rtol=1e-6)
    np.testing.assert_allclose(d_candidate, expected, rtol=1e-6)


def test_row_zero_fills_lists_of_known_items_up_and_masks_nothing(kernels):
    ones, log_q = np.ones((2, 4), np.float32), np.zeros(2, np.float32)
    known = np.zeros((2, 3), np.int32)
    loss = jax.jit(sampled_softmax)(ones, ones, np.array([0, 1]), log_q, 1.0, known=known)
    assert float(loss) == pytest.approx(np.log(2))


# --- gradients


@pytest.mark.parametrize(
    ("n_queries", "n_candidates", "dim", "items", "known"),
    [
        (1, 30, 4, 5, 1),
        (9, 9, 3, 4, 2),
        (130, 300, 64, 250, 20),
        (24, 24, 1030, 30, 3),
    ],
    ids=["one query", "a block and one", "many known", "wider than C takes"],
)
def test_loss_and_gradients_are_those_in_float64(
    kernels, n_queries, n_candidates, dim, items, known
):
    assert_right(random_batch(n_queries, n_candidates, dim, items=items, spread=5, known=known))


@settings(max_examples=20)
@given(  # Of few shapes: each is compiled.
    n_queries=st.sampled_from([1, 20]),
    n_negatives=st.sampled_from([0, 12]),
    dim=st.just(9),
    items=st.integers(1, 30),
    known=st.just(4),
    weightless=st.floats(0, 0.9),
    spread=st.sampled_from([0.0, 0.1, 1.0, 10.0]),
    seed=st.integers(0, 2**32 - 1),
)
def test_any_batch_has_the_loss_and_gradients_in_float64(
    n_queries, n_negatives, dim, items, known, weightless, spread, seed
):
    n_candidates = n_queries + n_negatives
    batch = random_batch(n_queries, n_candidates, dim, items=items, seed=seed, known=known)
    weight = batch.weight.copy()
    weight[: int(weightless * n_queries)] = 0
    assert_right(batch._replace(query=batch.query * np.float32(spread), weight=weight), 1e-5)


@pytest.mark.parametrize("size", [1e4, -1e4])
def test_logits_of_ten_thousand_are_as_right_as_float32_has_them(kernels, size):
    # One dimension: logits are exact in float32, and differ by hundreds.
    n = 12
    batch = random_batch(n, n, 1, items=6)._replace(
        query=np.full((n, 1), size, np.float32),
        candidate=(1 + np.arange(n, dtype=np.float32)[:, None] / 32),
        log_q=np.zeros(n, np.float32),
        temperature=1.0,
    )
    assert_right(batch)


def test_the_largest_logit_may_be_masked(kernels):
    # Query 0 would see 1e4 at candidate 1, its own item: without it, -50 is the largest.
    query, log_q = np.array([[1.0], [0.0]], np.float32), np.zeros(3, np.float32)
    candidate = np.array([[-50.0], [1e4], [-51.0]], np.float32)
    item_row = np.array([3, 3, 4], np.int32)
    weight = np.array([1.0, 0.0], np.float32)
    loss = sampled_softmax(query, candidate, item_row, log_q, 1.0, weight)
    assert float(loss) == pytest.approx(np.log1p(np.exp(-1)), rel=1e-6)
    # And as an item that query 0 is known to like.
    item_row, known = np.array([3, 7, 4], np.int32), np.array([[0, 7], [0, 0]], np.int32)
    loss = sampled_softmax(query, candidate, item_row, log_q, 1.0, weight, known)
    assert float(loss) == pytest.approx(np.log1p(np.exp(-1)), rel=1e-6)


def test_where_everything_is_known_loss_and_gradients_are_zero(kernels):
    batch = random_batch(20, 30, 8, items=9)
    batch = batch._replace(known=np.tile(np.arange(9, dtype=np.int32), (20, 1)))
    batch = batch._replace(item_row=np.maximum(batch.item_row, 1))
    loss, gradients = loss_and_gradients(batch)
    assert float(loss) == 0
    for name, gradient in gradients.items():
        assert not np.any(gradient), name


# --- what is computed


def test_evaluation_computes_no_gradients(monkeypatch):
    monkeypatch.setenv("RECSYS_NATIVE", "0")
    args = arguments(random_batch(8, 8, 4))
    assert str(jax.make_jaxpr(loss_of)(*args)).count("dot_general") == 1
    assert str(jax.make_jaxpr(jax.grad(loss_of))(*args)).count("dot_general") == 3


# --- other backends


@pytest.mark.skipif(importlib.util.find_spec("tensorflow") is None, reason="needs TensorFlow")
def test_tensorflow_computes_it_without_jax():
    program = """
        import sys
        sys.modules["jax"] = None
        import numpy as np
        import tensorflow as tf
        from recsys.losses import SampledSoftmax
        query = tf.Variable(np.eye(2, dtype=np.float32))
        with tf.GradientTape() as tape:
            candidate = tf.concat([query, query, 9 * query], axis=0)
            loss = SampledSoftmax()(
                query, candidate, np.array([1, 2, 1, 2, 7, 7]), np.zeros(6, np.float32), 0.5,
                np.array([3.0, 0.0]), np.array([[0, 7], [0, 0]]),
            )
        print(float(loss), *tape.gradient(loss, query).numpy().ravel())
    """
    environment = {**os.environ, "KERAS_BACKEND": "tensorflow"}
    found = subprocess.run(
        [sys.executable, "-c", textwrap.dedent(program)],
        env=environment,
        check=True,
        capture_output=True,
        text=True,
        timeout=120,
    )
    loss, *gradient = (float(x) for x in found.stdout.split())
    p = 1 / (1 + np.exp(2))
    assert loss == pytest.approx(np.log1p(np.exp(-2)), rel=1e-5)
    # As query and as candidate.
    assert gradient == pytest.approx([-4 * p, 2 * p, 2 * p, 0], rel=1e-5)
