"""The sampled softmax converges to the full softmax, exactly or within the stated error."""

import itertools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from softmax_reference import use_kernels

from recsys.losses import SampledSoftmax
from recsys.tasks.retrieval.training.sampling import inclusion_log_probability

sampled_softmax = SampledSoftmax()

# --- the full softmax


def full_softmax(query, table, positive, weight, temperature):
    """Returns the mean of -log softmax at the positives, and its gradients, in float64."""
    query, table = (np.asarray(x, np.float64) for x in (query, table))
    shares = np.asarray(weight, np.float64) / np.sum(weight, dtype=np.float64)
    each, logits = np.arange(len(query)), query @ table.T / temperature
    p = np.exp(logits - logits.max(axis=1, keepdims=True))
    p /= p.sum(axis=1, keepdims=True)
    slopes = p.copy()
    slopes[each, positive] -= 1
    slopes *= shares[:, None]
    d_temperature = -(slopes * logits).sum() / temperature
    gradients = slopes @ table / temperature, slopes.T @ query / temperature, d_temperature
    return -shares @ np.log(p[each, positive]), gradients


@pytest.mark.parametrize("kernels", ["native", "blocks"])
@pytest.mark.parametrize("n_items", [1, 300])
def test_with_the_whole_catalogue_as_negatives_it_is_the_full_softmax(
    monkeypatch, kernels, n_items
):
    use_kernels(kernels, monkeypatch)
    rng = np.random.default_rng(n_items)
    query = rng.normal(size=(40, 12)).astype(np.float32)
    table = rng.normal(size=(n_items, 12)).astype(np.float32)
    positive = rng.integers(0, n_items, 40)
    weight = rng.uniform(0, 3, 40).astype(np.float32)
    row = np.concatenate([positive, np.arange(n_items)]).astype(np.int32)

    def loss(query, table, temperature):
        log_q = jnp.zeros(len(row))
        return sampled_softmax(query, table[row], row + 5, log_q, temperature, weight)

    found, gradients = jax.jit(jax.value_and_grad(loss, argnums=(0, 1, 2)))(
        query, table, np.float32(2.0)
    )
    expected, closed_forms = full_softmax(query, table, positive, weight, 2.0)
    assert float(found) == pytest.approx(expected, rel=1e-6, abs=1e-7)
    for gradient, closed_form in zip(gradients, closed_forms, strict=True):
        np.testing.assert_allclose(gradient, closed_form, atol=2e-6)


# --- the correction, over all sets that can be drawn

ZIPF = 1 / np.arange(1, 7) ** 2.0
POPULARITY = ZIPF / ZIPF.sum()
N_ITEMS = len(POPULARITY)
SETS = np.array(list(itertools.product([False, True], repeat=N_ITEMS)))


def independent(inclusion):
    """Returns the probability of each set whose members are drawn independently."""
    return np.prod(np.where(SETS, inclusion, 1 - inclusion), axis=1)


def with_replacement(n_draws):
    """Returns the probability that `n_draws` of `POPULARITY` give each set."""
    of_subsets = (SETS @ POPULARITY) ** n_draws  # All draws are in the set, not all of it drawn.
    is_subset = ~(SETS[None, :, :] & ~SETS[:, None, :]).any(axis=2)
    n_left_out = SETS.sum(axis=1)[:, None] - SETS.sum(axis=1)[None, :]
    return np.where(is_subset, (-1.0) ** n_left_out * of_subsets, 0).sum(axis=1)


def expected_gradient(probability, log_q):
    """Returns the gradient of scores `[items]` over all sets and positives, as a function.

    One call has every set around every positive as a query; items outside of the set are "known".
    `probability` is the probability of each set; positives are drawn by `POPULARITY`.
    """
    positive = np.tile(np.arange(N_ITEMS), len(SETS))
    members = np.repeat(SETS, N_ITEMS, axis=0)
    item = np.arange(1, N_ITEMS + 1, dtype=np.int32)
    known = np.where(members, 0, item).astype(np.int32)
    weight = np.repeat(probability, N_ITEMS) * POPULARITY[positive]
    each = np.eye(N_ITEMS, dtype=np.float32)[positive]

    def loss(scores):
        query = jnp.broadcast_to(scores, (len(positive), N_ITEMS))
        of_candidates = np.float32(log_q)[positive]
        return sampled_softmax(query, each, item[positive], of_candidates, 1.0, weight, known)

    return jax.jit(jax.grad(loss))


TRUTH = np.log(POPULARITY).astype(np.float32)


def test_sets_of_independent_members_have_the_full_softmax_as_their_optimum():
    inclusion = np.array([0.999, 0.5, 0.9, 0.01, 0.2, 0.7])
    at_truth = expected_gradient(independent(inclusion), np.log(inclusion))(TRUTH)
    np.testing.assert_allclose(at_truth, 0, atol=3e-7)
    uncorrected = expected_gradient(independent(inclusion), np.zeros(N_ITEMS))(TRUTH)
    assert np.abs(uncorrected).max() > 0.05


def farthest_log_odds(gradient):
    """Returns how far the scores that a gradient leads to are from the truth at the most."""
    scores = TRUTH
    for _ in range(2000):
        slope = gradient(scores)
        scores = scores - 0.3 * slope / POPULARITY
    assert np.abs(slope).max() < 1e-5
    off = np.asarray(scores, np.float64) - TRUTH
    return np.abs(off - off.mean()).max()


@pytest.mark.parametrize("n_draws", [1, 4, 64])
def test_draws_with_replacement_lead_near_the_full_softmax(n_draws):
    probability = with_replacement(n_draws)
    assert probability.sum() == pytest.approx(1)
    log_q = inclusion_log_probability((POPULARITY, n_draws))
    by_inclusion = farthest_log_odds(expected_gradient(probability, log_q))
    by_one_draw = farthest_log_odds(expected_gradient(probability, np.log(POPULARITY)))
    assert by_inclusion < 0.05  # A probability is off by a twentieth at the most.
    if n_draws > 1:
        assert by_one_draw > 0.5
