"""The sampled softmax against a loop in numpy, and against numbers worked out by hand."""

import jax
import numpy as np
import pytest

from recsys.losses import sampled_softmax


def by_hand(query, candidate, item_row, log_q, temperature):
    """The mean of -log p(positive) over each row's softmax, one logit at a time."""
    losses = []
    for i in range(len(query)):
        logits = {
            j: float(query[i] @ candidate[j]) / temperature - float(log_q[j])
            for j in range(len(candidate))
            if j == i or item_row[j] != item_row[i]
        }
        total = sum(np.exp(logit) for logit in logits.values())
        losses.append(-np.log(np.exp(logits[i]) / total))
    return float(np.mean(losses))


@pytest.mark.parametrize("jit", [False, True], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "item_row",
    [[1, 2, 3, 4, 5], [1, 2, 1, 2, 1], [7, 7, 7, 7, 7], [1, 2, 3, 4, 5, 6, 3, 9]],
    ids=["distinct", "accidental hits", "one item only", "three negatives more"],
)
def test_loss_is_the_softmax_over_the_candidates_without_accidental_hits(item_row, jit):
    rng = np.random.default_rng(0)
    item_row = np.array(item_row, np.int32)
    n_candidates = len(item_row)
    query = rng.normal(size=(5, 3)).astype(np.float32)
    candidate = rng.normal(size=(n_candidates, 3)).astype(np.float32)
    log_q = np.log(rng.uniform(1e-9, 0.5, n_candidates)).astype(np.float32)

    def loss(query, candidate, item_row, log_q):
        return sampled_softmax(query, candidate, item_row, log_q, 0.2)

    found = (jax.jit(loss) if jit else loss)(query, candidate, item_row, log_q)
    assert float(found) == pytest.approx(
        by_hand(query, candidate, item_row, log_q, 0.2), rel=1e-5, abs=1e-6
    )


def test_two_equal_candidates_cost_log_two():
    ones = np.ones((2, 4), np.float32)
    loss = sampled_softmax(ones, ones, np.array([1, 2]), np.zeros(2, np.float32), 1.0)
    assert float(loss) == pytest.approx(np.log(2))


def test_a_candidate_drawn_ten_times_as_often_weighs_a_tenth():
    ones = np.ones((2, 4), np.float32)
    log_q = np.log(np.array([0.05, 0.5], np.float32))
    loss = sampled_softmax(ones, ones, np.array([1, 2]), log_q, 1.0)
    # Odds of 10 : 1 for the rare candidate; one query wants it, the other the common one.
    assert float(loss) == pytest.approx((np.log(11 / 10) + np.log(11)) / 2)


def test_masked_candidates_get_no_gradient():
    rng = np.random.default_rng(1)
    query, candidate = rng.normal(size=(2, 2, 3)).astype(np.float32)

    def loss(candidate):
        same = np.array([5, 5], np.int32)
        return sampled_softmax(query, candidate, same, np.zeros(2, np.float32), 1.0)

    assert np.array_equal(np.asarray(jax.grad(loss)(candidate)), np.zeros((2, 3)))
