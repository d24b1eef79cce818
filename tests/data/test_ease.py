"""EASE by vectors, against its closed form in numpy."""

import numpy as np
import pytest
from baseline_worlds import log_of
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.ease import as_candidates, ease_vectors, token_means
from recsys.data.hold_out import KeptEvents

_ITEMS = 9


def weights_of(histories, is_item, strength):
    """Returns Steck's weights of pairs `[item rows, item rows]`, by the inverse."""
    x = np.zeros((len(histories), _ITEMS))
    for user, items in enumerate(histories):
        x[user, items] = 1.0
    x[:, ~is_item] = 0.0
    inverse = np.linalg.inv(x.T @ x + strength * np.eye(_ITEMS))
    weights = -inverse / np.diag(inverse)
    np.fill_diagonal(weights, 0.0)
    return weights


def by_vectors(vectors):
    """Returns the weights of pairs that vectors stand for."""
    weights = vectors @ (vectors / (1.0 - np.square(vectors).sum(axis=1, keepdims=True))).T
    np.fill_diagonal(weights, 0.0)
    return weights


@given(
    histories=st.lists(st.lists(st.integers(0, _ITEMS - 1), max_size=6), min_size=1, max_size=12),
    strength=st.sampled_from([0.5, 20.0]),
    missing=st.integers(1, _ITEMS - 1),
)
def test_products_of_vectors_are_the_weights_of_the_closed_form(histories, strength, missing):
    is_item = ~np.isin(np.arange(_ITEMS), [0, missing])
    events = KeptEvents(log_of(histories))
    vectors = ease_vectors(events, is_item, _ITEMS + 2, strength)
    expected = weights_of(histories, is_item, strength)
    np.testing.assert_allclose(by_vectors(vectors), expected, atol=2e-5)
    assert not vectors[~is_item].any()


@pytest.mark.parametrize("is_tall", [True, False])
def test_short_vectors_keep_the_largest_singular_values(is_tall):
    rng = np.random.default_rng(0)
    n_users, n_items = (300, 120) if is_tall else (120, 300)
    group = rng.integers(0, 5, n_users)
    x = rng.random((n_users, n_items)) < np.where(
        np.arange(n_items) % 5 == group[:, None], 0.5, 0.05
    )
    events = KeptEvents(log_of([np.flatnonzero(row) for row in x]))
    found = ease_vectors(events, np.ones(n_items, bool), 20, 10.0)
    _, values, turns = np.linalg.svd(x.astype(float), full_matrices=False)
    expected = turns[:20].T * (values[:20] / np.sqrt(values[:20] ** 2 + 10.0))
    # Vectors are equal up to a rotation, so their products are compared.
    np.testing.assert_allclose(found @ found.T, expected @ expected.T, atol=0.02)
    np.testing.assert_allclose(np.square(found).sum(), np.square(expected).sum(), rtol=1e-3)


def test_tokens_have_the_mean_of_the_events_with_them():
    rng = np.random.default_rng(0)
    vectors = rng.uniform(-0.3, 0.3, (5, 3)).astype(np.float32)
    candidates = as_candidates(vectors)
    counts, bags = np.array([0, 4, 1, 0, 3]), np.array([[0, 0], [1, 2], [2, 0], [3, 1], [2, 2]])
    means, weights = token_means(candidates, counts, bags, 5)
    # Token 2 twice in an item counts once; token 3 has no event, token 4 no item.
    expected = np.zeros((5, 3))
    expected[1] = candidates[1]
    expected[2] = (4 * candidates[1] + candidates[2] + 3 * candidates[4]) / 8
    np.testing.assert_allclose(means, expected, atol=1e-6)
    np.testing.assert_allclose(weights, [0, np.log(2), 0, 0, 0], atol=1e-6)
