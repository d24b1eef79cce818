"""Implicit ALS against the normal equations of dense matrices, in float64."""

import numpy as np
import pytest
from baseline_worlds import data_of, dense, lists_of, queries_of, random_histories, scores_of
from scipy import sparse

from recsys.tasks.retrieval.baselines import ials
from recsys.tasks.retrieval.baselines.ials import Ials, Objective, factorise, solve


def weights_of(taken, objective):
    """Returns the weight of each vector's squared length, written out."""
    frequency = [row.sum() + objective.unobserved * len(row) for row in taken]
    return [objective.regularisation * f for f in frequency]


def in_closed_form(taken, others, objective):
    """Returns each vector as `(Hᵀ C H + ridge)⁻¹ Hᵀ C p`, C and p as in Hu et al.

    A taken pair has the confidence 1 + unobserved, and a preference such that the
    weighted squares are those of the objective.
    """
    found = []
    for row, ridge in zip(taken, weights_of(taken, objective), strict=True):
        confidence = np.diag(row + objective.unobserved)
        preference = row / (row + objective.unobserved)
        left = others.T @ confidence @ others + ridge * np.eye(others.shape[1])
        found.append(np.linalg.solve(left, others.T @ confidence @ preference))
    return np.array(found)


def loss(taken, users, items, objective):
    """Returns the objective, pair by pair."""
    scores = users @ items.T
    squares = (taken * (scores - 1) ** 2).sum() + objective.unobserved * (scores**2).sum()
    for side, vectors in ((taken, users), (taken.T, items)):
        squares += weights_of(side, objective) @ (vectors**2).sum(axis=1)
    return squares


def a_world(seed=0):
    """Returns who took what `[40, 60]`, of 0 to 60 items each."""
    rng = np.random.default_rng(seed)
    return (rng.random((40, 60)) < np.linspace(0.0, 1.0, 40)[:, None]).astype(float)


@pytest.mark.parametrize("dim", [1, 7, 16])
@pytest.mark.parametrize("objective", [Objective(0.1, 0.01), Objective(0.5, 0.3)])
def test_a_half_step_solves_the_normal_equations(dim, objective, monkeypatch):
    monkeypatch.setattr(ials, "_CHUNK", 5)
    monkeypatch.setattr(ials, "_BLOCK_NUMBERS", 3 * dim * dim)
    taken = a_world()
    n_taken = taken.sum(axis=1)
    assert n_taken.min() == 0 < dim < n_taken.max() == 60
    others = np.random.default_rng(1).standard_normal((60, dim))
    found = solve(sparse.csr_array(taken), others.astype(np.float32), 60, objective)
    expected = in_closed_form(taken, others, objective)
    np.testing.assert_allclose(found, expected, rtol=1e-3, atol=1e-4)
    assert found.dtype == np.float32


def test_every_half_step_lowers_the_objective():
    taken, objective = a_world(), Objective(0.1, 0.01)
    rng = np.random.default_rng(2)
    items = (0.1 * rng.standard_normal((60, 6))).astype(np.float32)
    users = np.zeros((40, 6), np.float32)
    values = [loss(taken, users, items, objective)]
    for _ in range(5):
        users = solve(sparse.csr_array(taken), items, 60, objective)
        values.append(loss(taken, users, items, objective))
        items = solve(sparse.csr_array(taken.T), users, 40, objective)
        values.append(loss(taken, users, items, objective))
    assert (np.diff(values) < 0).all()
    # Much of what the zero vectors leave is explained.
    assert values[-1] < 0.7 * taken.sum()


def test_a_query_is_solved_as_a_training_user_of_the_same_history():
    histories = random_histories(4, n_users=30, n_items=20, longest=12)
    baseline = Ials(dim=5, sweeps=3).fit(data_of(histories, 24))
    # Training has the items of the histories, out of 23.
    known = np.unique(np.concatenate(histories))
    taken = dense(histories, 24)[:, known]
    density = taken.sum() / taken.size
    objective = Objective(10 * density if 10 * density < 1 else 1.0, 0.005)
    scorer = baseline.scorer(queries_of(histories))
    items = scorer.candidates[known, :5].astype(float)
    expected = in_closed_form(taken, items, objective)
    np.testing.assert_allclose(scorer.query[:, :5], expected, rtol=2e-3, atol=1e-4)
    scores = scores_of(baseline, histories)
    np.testing.assert_allclose(scores[:, known], expected @ items.T, rtol=2e-3, atol=1e-4)
    # Training never saw the rows behind; what was taken twice counts once.
    assert not scores[:, 21:].any()
    twice = scores_of(baseline, [items * 2 for items in histories])
    np.testing.assert_array_equal(twice, scores)


def test_the_weight_of_what_was_not_taken_follows_the_density():
    matrix = sparse.csr_array(np.eye(50))
    assert Ials(unobserved=10.0).objective(matrix).unobserved == 10 * 50 / 2500
    assert Ials(unobserved=10.0).objective(sparse.csr_array(np.eye(5))).unobserved == 1.0


def test_each_of_two_groups_is_recommended_what_its_group_takes():
    # Who takes one of 1 … 4 takes others of them, and so with 5 … 8.
    histories = [[1, 2, 3], [2, 3, 4], [1, 3, 4], [1, 2, 4]]
    histories += [[item + 4 for item in items] for items in histories]
    data = data_of(histories, 9)
    lists = lists_of(Ials().fit(data), data, [[1, 2], [7], [8, 5, 6]], 3)
    assert [set(lists[0][:2]), set(lists[1]), lists[2][0]] == [{3, 4}, {5, 6, 8}, 7]


def test_without_a_known_history_the_list_is_by_popularity():
    data = data_of([[1, 3], [3, 2], [3, 2], [4]], 6)
    lists = lists_of(Ials().fit(data), data, [[], [5], [0]], 5)
    assert lists == [[3, 2, 1, 4, 5], [3, 2, 1, 4, 0], [3, 2, 1, 4, 5]]


def test_blocks_of_queries_are_solved_as_all_at_once(monkeypatch):
    histories = random_histories(5, n_users=30, n_items=20, longest=12)
    baseline = Ials(dim=4).fit(data_of(histories, 21))
    expected = scores_of(baseline, histories)
    monkeypatch.setattr("recsys.tasks.retrieval.baselines.ials._BLOCK_ITEMS", 9)
    np.testing.assert_allclose(scores_of(baseline, histories), expected, rtol=1e-4, atol=1e-5)


def test_the_number_of_threads_changes_nothing(monkeypatch):
    matrix = sparse.csr_array(a_world())
    settings = Ials(dim=8, sweeps=2)
    expected = factorise(matrix, Objective(0.1, 0.01), settings)
    monkeypatch.setattr(ials, "_MOST_THREADS", 1)
    found = factorise(matrix, Objective(0.1, 0.01), settings)
    np.testing.assert_array_equal(found, expected)
