"""Transitions of items, and the scores that they give, against loops in Python."""

import numpy as np
from hypothesis import given
from hypothesis import strategies as st

from recsys.data.transitions import TransitionScores, transition_weights
from recsys.ragged import RaggedRows


def counted(lists, reach, shrinkage):
    """Returns the weight of each pair of items by a loop over all pairs of events."""
    weights, size = {}, {}
    for items in lists:
        for place, first in enumerate(items):
            size[first] = size.get(first, 0) + 1
            for distance, second in enumerate(items[place + 1 : place + 1 + reach], 1):
                if first != second:
                    weights[first, second] = weights.get((first, second), 0) + 1 / distance
    return {
        (i, j): count / (np.sqrt(size[i] * size[j]) + shrinkage)
        for (i, j), count in weights.items()
    }


@given(
    lists=st.lists(st.lists(st.integers(1, 6), max_size=8), min_size=1, max_size=5),
    reach=st.integers(1, 4),
    shrinkage=st.sampled_from([0.0, 10.0]),
)
def test_weights_are_those_of_all_pairs_of_events(lists, reach, shrinkage):
    rows = RaggedRows.of([np.array(items, np.int32) for items in lists])
    found = transition_weights(rows, 7, 7, reach, shrinkage).tocoo()
    found = dict(zip(zip(*found.coords, strict=True), found.data, strict=True))
    expected = counted(lists, reach, shrinkage)
    assert found.keys() == expected.keys()
    for pair, weight in expected.items():
        np.testing.assert_allclose(found[pair], weight, rtol=1e-5)


@given(seed=st.integers(0, 2**32), n=st.integers(1, 4), newest=st.integers(1, 4))
def test_scores_are_the_sums_over_the_newest_of_a_history(tmp_path_factory, seed, n, newest):
    rng = np.random.default_rng(seed)
    following = rng.integers(0, 9, (9, n)).astype(np.int32)
    weights = rng.random((9, n)).astype(np.float32) * (following > 0)
    weights[0] = 0
    history = rng.integers(0, 9, (5, 3)).astype(np.int32)
    scores = TransitionScores(following, weights, 0.5 ** np.arange(newest, dtype=np.float32))
    expected = np.zeros((5, 9))
    for query, items in enumerate(history.tolist()):
        for age, item in enumerate(items[:newest]):
            for other, weight in zip(following[item], weights[item], strict=True):
                expected[query, other] += 0.5**age * weight
    found = scores.of_histories(history)
    np.testing.assert_allclose(found.toarray(), expected, rtol=1e-5)
    folder = tmp_path_factory.mktemp("scores")
    assert TransitionScores.load(folder) is None
    scores.scaled(2.0).save(folder)
    again = TransitionScores.load(folder).of_histories(history)
    np.testing.assert_allclose(again.toarray(), 2 * expected, rtol=1e-5)
