"""Baselines: what they learn from, item-kNN against loops, and iALS against dense algebra."""

import math

import numpy as np
import pytest
import yaml
from baseline_worlds import (
    DAY_S,
    data_of,
    dense,
    fit,
    lists_of,
    log_of,
    queries_of,
    random_histories,
    scores_of,
)
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from recsys import registry
from recsys.data import neighbours
from recsys.tasks.config import TrainStage
from recsys.tasks.judging_side import LeftOutError
from recsys.tasks.retrieval.judging import baselines
from recsys.tasks.retrieval.judging.baselines import Ials, Objective, factorise, solve
from recsys.tasks.retrieval.judging.item_baselines import Ease, ItemKnn, Transitions, nearest

LEARNING = ["item_knn", "transitions", "ease", "ials"]
ALL = ["popularity", "recent_popularity", *LEARNING]


def test_popularity_orders_by_training_positives_and_then_by_row():
    # Rows 0 and 1 are shared by many items, which can't be recommended.
    counts = np.array([90, 70, 1, 3, 2, 3, 0])
    data = data_of([[2]], 7, is_item=[False] * 2 + [True] * 5, counts=counts)
    popularity = fit("popularity", data)
    assert lists_of(popularity, data, [[], [3, 4]], 5) == [[3, 5, 4, 2, 6], [5, 2, 6, 0, 0]]
    assert scores_of(popularity, [[]])[0].tolist() == [0, 0, 2, 4, 3, 4, 1]


def test_popularity_distinguishes_counts_that_float32_does_not():
    counts = np.array([0, 2**24, 2**24 + 1, 2**24])
    data = data_of([[1]], 4, counts=counts)
    assert lists_of(fit("popularity", data), data, [[]], 3) == [[2, 1, 3]]


def test_recent_popularity_counts_the_last_days_before_the_cut():
    # Item 1 leads in all, item 2 in the last two days, whose first second counts.
    cut = 10 * DAY_S
    log = log_of(
        [[1, 1, 1, 2], [4, 2, 1]],
        times=[[0, 1, 2, cut - 5], [cut - 2 * DAY_S - 1, cut - 2 * DAY_S, cut - 1]],
    )
    data = data_of(None, 5, log=log, cut=cut, recent_days=2)
    recent = fit("recent_popularity", data)
    # Equal ones, as 3 and 4, by their events of all time.
    assert lists_of(recent, data, [[]], 4) == [[2, 1, 4, 3]]


def test_recent_popularity_goes_back_to_the_newest_event_where_nothing_is_recent():
    # Two days up to the newest event of an item: that on the border is too old.
    log = log_of([[1, 1, 2, 3, 0]], times=[[0, 10, 10 + 1, 10 + 2 * DAY_S, 20 * DAY_S]])
    data = data_of(None, 5, log=log, cut=21 * DAY_S, recent_days=2)
    recent = fit("recent_popularity", data)
    assert lists_of(recent, data, [[]], 4) == [[2, 3, 1, 4]]


@pytest.mark.parametrize("name", ALL)
@pytest.mark.parametrize("histories", [[], [[0, 1, 1]]], ids=["no-event", "unknown-items"])
def test_without_events_of_known_items_a_baseline_is_left_out(name, histories):
    log = log_of(histories, n_shards=max(1, len(histories)))
    data = data_of(None, 4, is_item=[False, False, True, True], log=log)
    with pytest.raises(LeftOutError, match=r"^(No|There is no) .*training .*\.$"):
        fit(name, data)


@pytest.mark.parametrize("name", ALL)
def test_scores_are_finite_numbers_and_the_same_each_time(name):
    histories = random_histories(0, n_users=40, n_items=30, longest=20)
    data = data_of(histories, 32)
    asked = [[], [31], [0], *histories[:5]]
    scores = scores_of(fit(name, data), asked)
    assert scores.shape == (8, 32)
    assert scores.dtype == np.float32
    assert np.isfinite(scores).all()
    np.testing.assert_array_equal(scores, scores_of(fit(name, data), asked))


@pytest.mark.parametrize("name", ALL)
def test_histories_stay_as_they_are(name):
    queries = queries_of([[5, 3, 5, 1], [2, 1]])
    # SciPy would sort the indices in place.
    object.__setattr__(queries.seen, "offsets", queries.seen.offsets.astype(np.int32))
    fit(name, data_of([[5, 3, 1], [2, 1]], 6)).scorer(queries).scores(slice(0, 2))
    assert queries.seen.rows.tolist() == [5, 3, 5, 1, 2, 1]


@pytest.mark.parametrize("name", LEARNING)
def test_unknown_items_and_shared_rows_are_no_evidence(name):
    histories = random_histories(1, n_users=30, n_items=10, longest=6)
    known = [[item + 1 for item in items] for items in histories]
    # Rows 0 and 1 in between, at random.
    noisy = [[0, 1, *items[:2], 0, 1, 1, *items[2:]] for items in known]
    is_item = np.arange(12) > 1
    counts = np.bincount(np.concatenate(known), minlength=12)
    expected = scores_of(fit(name, data_of(known, 12, is_item, counts=counts)), known[:5])
    data = data_of(noisy, 12, is_item, counts=np.where(is_item, counts, 1000))
    baseline = fit(name, data)
    np.testing.assert_allclose(scores_of(baseline, noisy[:5])[:, 2:], expected[:, 2:], atol=1e-6)


@pytest.mark.parametrize("name", LEARNING)
def test_only_the_newest_events_are_learned_from_and_counted(name):
    histories = random_histories(2, n_users=30, n_items=20, longest=15)
    new = [items[len(items) // 2 :] for items in histories]
    # The first half of each history is long ago.
    times = [
        [at + (10**6 if at >= len(items) // 2 else 0) for at in range(len(items))]
        for items in histories
    ]
    n_new = sum(len(items) for items in new)
    data = data_of(None, 21, log=log_of(histories, times, n_shards=3), max_events=n_new)
    baseline = fit(name, data)
    expected = fit(name, data_of(None, 21, log=log_of(new), counts=data.counts))
    np.testing.assert_array_equal(scores_of(baseline, new), scores_of(expected, new))


def test_users_who_share_a_row_are_learned_from_separately():
    apart = data_of([[1, 2], [3, 4]], 5)
    shared = data_of(None, 5, log=log_of([[1, 2], [3, 4]], user_rows=[7, 7]))
    for name in LEARNING:
        expected = scores_of(fit(name, apart), [[1], [4]])
        np.testing.assert_array_equal(scores_of(fit(name, shared), [[1], [4]]), expected)


def by_loops(histories, n_rows, n, shrinkage):
    """Returns the similarity of each item to its `n` nearest, 0 to the others."""
    users = [{user for user, items in enumerate(histories) if i in items} for i in range(n_rows)]
    found = np.zeros((n_rows, n_rows))
    for i in range(1, n_rows):
        pairs = []
        for j in range(1, n_rows):
            common = len(users[i] & users[j])
            if i != j and common:
                length = math.sqrt(len(users[i]) * len(users[j]))
                pairs.append((-common / (length + shrinkage), j))
        for similarity, j in sorted(pairs)[:n]:
            found[i, j] = -similarity
    return found


@given(st.integers(0, 10**6), st.integers(1, 12), st.sampled_from([0.0, 10.0]), st.integers(1, 90))
def test_neighbours_are_those_that_loops_over_all_pairs_find(seed, n, shrinkage, pairs):
    histories = random_histories(seed, n_users=12, n_items=9, longest=7)
    taken = sparse.csr_array(dense(histories, 11).astype(np.float32))
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(neighbours, "_BLOCK_PAIRS", pairs)
        found = nearest(taken, n, shrinkage)
    expected = by_loops(histories, 11, n, shrinkage)
    # Ties are broken by float64 here and by float32 there, so different ones may be kept.
    np.testing.assert_allclose(np.sort(found.toarray()), np.sort(expected), rtol=1e-5)
    assert (np.diff(found.indptr) <= n).all()


def test_of_equal_neighbours_those_with_the_smaller_rows_stay():
    taken = sparse.csr_array(np.ones((3, 5), np.float32))
    found = nearest(taken, 2, 0.0).toarray()
    assert [np.flatnonzero(row).tolist() for row in found] == [[1, 2], [0, 2], *[[0, 1]] * 3]
    assert set(found[found > 0].tolist()) == {1.0}


def test_the_score_is_the_sum_of_the_similarities_to_what_was_taken():
    # 1 and 2 share two users of 3 and 2; 1 and 3 share one of 3 and 2; 4 shares none.
    data = data_of([[1, 2], [2, 1], [1, 3], [3], [4]], 6)
    baseline = ItemKnn(neighbours=5, shrinkage=1.0).fit(data)
    scores = scores_of(baseline, [[1], [2, 3, 3]])
    near, far = 2 / (math.sqrt(6) + 1), 1 / (math.sqrt(6) + 1)
    np.testing.assert_allclose(scores[0, [2, 3]], [near, far], rtol=1e-6)
    # A repeated event counts once.
    np.testing.assert_allclose(scores[1, 1], near + far, rtol=1e-6)
    assert lists_of(baseline, data, [[1], [2, 3]], 4) == [[2, 3, 4, 5], [1, 4, 5, 0]]


def test_items_without_a_similarity_come_last_by_popularity():
    data = data_of([[1, 2], [3], [4], [4], [4], [3]], 6)
    baseline = ItemKnn(shrinkage=1000.0).fit(data)
    assert lists_of(baseline, data, [[1], [], [5]], 5) == [
        [2, 4, 3, 5, 0],
        [4, 3, 1, 2, 5],
        [4, 3, 1, 2, 0],
    ]


def test_blocks_of_queries_are_scored_as_all_at_once():
    histories = random_histories(3, n_users=20, n_items=15, longest=9)
    scorer = ItemKnn().fit(data_of(histories, 16)).scorer(queries_of(histories))
    parts = [scorer.scores(slice(start, min(start + 7, 20))) for start in range(0, 20, 7)]
    np.testing.assert_array_equal(np.concatenate(parts), scorer.scores(slice(0, 20)))


def test_the_newest_events_of_a_long_history_are_learned_from():
    baseline = ItemKnn(events_of_user=2).fit(data_of([[1, 2, 3], [4, 1], [5]], 6))
    expected = ItemKnn().fit(data_of([[2, 3], [4, 1], [5]], 6))
    for item in range(1, 6):
        found = scores_of(baseline, [[item]]) > 0
        np.testing.assert_array_equal(found, scores_of(expected, [[item]]) > 0)


@given(st.integers(0, 2**16))
def test_transitions_are_counted_as_by_loops(seed):
    histories, n = random_histories(seed, n_users=6, n_items=7, longest=9), 8
    options = {"reach": 3, "newest": 4, "decay": 0.5, "neighbours": n, "shrinkage": 2.0}
    taken = [item for items in histories for item in items]
    weight = np.zeros((n, n))
    for items in histories:
        for i, first in enumerate(items):
            for distance, second in enumerate(items[i + 1 : i + 4], 1):
                size = math.sqrt(taken.count(first) * taken.count(second)) + 2.0
                weight[first, second] += (first != second) / distance / size
    asked = random_histories(seed + 1, n_users=5, n_items=7, longest=6)
    expected = [
        sum(0.5**age * weight[item] for age, item in enumerate(reversed(items[-4:])))
        for items in asked
    ]
    baseline = Transitions(**options).fit(data_of(histories, n))
    found = scores_of(baseline, asked)
    np.testing.assert_allclose(np.where(found < 0, 0, found), expected, rtol=1e-5, atol=1e-7)
    # Without a transition, by popularity.
    unseen = scores_of(baseline, [[]])[0, 1:]
    assert (unseen < 0).all()
    assert np.argmax(unseen) + 1 == np.argmax(np.bincount(taken, minlength=n)[1:]) + 1


@pytest.mark.parametrize("name", ALL)
def test_a_cure_is_part_of_a_config(name):
    cure = registry.get("baseline", name).cure
    stage = TrainStage.model_validate(yaml.safe_load(cure or "{}"), strict=False)
    assert bool(cure) == (stage != TrainStage())


def test_transitions_need_an_order():
    with pytest.raises(LeftOutError):
        Transitions().fit(data_of([[1, 2]], 3, order="none"))


@pytest.mark.parametrize("n_users", [5, 40])
def test_ease_has_the_smallest_squared_error_without_self_weights(n_users):
    histories = random_histories(5, n_users=n_users, n_items=9, longest=6)
    x = dense(histories, 10)[:, 1:]
    taken = np.flatnonzero(x.any(axis=0))
    # Each column is a ridge regression on the other columns (Steck 2019, eq. 4).
    expected = np.zeros((9, 9))
    for item in taken:
        others = [other for other in taken if other != item]
        system = x[:, others].T @ x[:, others] + 3.0 * np.eye(len(others))
        expected[others, item] = np.linalg.solve(system, x[:, others].T @ x[:, item])
    scores = scores_of(Ease(regularisation=3.0).fit(data_of(histories, 10)), histories[:8])
    found = scores[:, 1:][:, taken]
    np.testing.assert_allclose(found, (x[:8] @ expected)[:, taken], atol=2e-5)
    with pytest.raises(LeftOutError, match="most_items"):
        Ease(most_items=2).fit(data_of(histories, 10))


def weights_of(taken, objective):
    """Returns the weight of each vector's squared length, written out."""
    frequency = [row.sum() + objective.unobserved * len(row) for row in taken]
    return [objective.regularisation * f for f in frequency]


def in_closed_form(taken, others, objective):
    """Returns each vector as `(Hᵀ C H + ridge)⁻¹ Hᵀ C p`, C and p as in Hu et al.

    A taken pair has the confidence 1 + unobserved, and a preference such that the weighted squares
    equal the objective's.
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
    monkeypatch.setattr(baselines, "_CHUNK", 5)
    monkeypatch.setattr(baselines, "_BLOCK_NUMBERS", 3 * dim * dim)
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
    monkeypatch.setattr("recsys.tasks.retrieval.judging.baselines._BLOCK_ITEMS", 9)
    np.testing.assert_allclose(scores_of(baseline, histories), expected, rtol=1e-4, atol=1e-5)


def test_the_number_of_threads_changes_nothing(monkeypatch):
    matrix = sparse.csr_array(a_world())
    settings = Ials(dim=8, sweeps=2)
    expected = factorise(matrix, Objective(0.1, 0.01), settings)
    monkeypatch.setattr(baselines, "_MOST_THREADS", 1)
    found = factorise(matrix, Objective(0.1, 0.01), settings)
    np.testing.assert_array_equal(found, expected)
