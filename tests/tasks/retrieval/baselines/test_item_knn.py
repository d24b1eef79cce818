"""Item-based nearest neighbours against loops over pairs of items."""

import math

import numpy as np
import pytest
from baseline_worlds import data_of, dense, lists_of, queries_of, random_histories, scores_of
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

from recsys.data import neighbours
from recsys.tasks.retrieval.baselines.item_knn import ItemKnn, nearest


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
    # Ties are told by float64 here and by float32 there, so which of them stay may differ.
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
