"""Ranks and top lists against sorting in plain Python."""

import hypothesis.strategies as st
import numpy as np
import pytest
from hypothesis import given

import recsys.evaluation.ranking
from recsys.evaluation.ranking import rank
from recsys.ragged import Ragged


def ragged(lists):
    return Ragged.of([np.array(rows, np.int32) for rows in lists])


def by_sorting(scores, positives, seen):
    """The list that each user would see: best first, ties by row, nothing seen."""
    for query, wanted in enumerate(positives):
        hidden = set(seen[query]) - set(wanted)
        rows = [r for r in range(1, scores.shape[1]) if r not in hidden]
        yield sorted(rows, key=lambda r: (-scores[query, r], r))


@st.composite
def cases(draw):
    n_rows, n_queries = draw(st.integers(3, 12)), draw(st.integers(1, 6))
    # Few distinct scores, so that ties are the rule.
    score = st.sampled_from([-1.0, 0.0, 0.5, 2.0])
    scores = [[draw(score) for _ in range(n_rows)] for _ in range(n_queries)]
    rows = st.sets(st.integers(1, n_rows - 1), min_size=1).map(sorted)
    positives = [draw(rows) for _ in range(n_queries)]
    seen = [draw(st.one_of(st.just([]), rows)) for _ in range(n_queries)]
    return np.array(scores, np.float32), positives, seen, draw(st.integers(1, n_rows + 2))


@given(cases(), st.sampled_from([1, 20, 2**24]))
def test_ranks_and_top_lists_equal_sorting(case, block):
    scores, positives, seen, k = case
    is_item = np.arange(scores.shape[1]) > 0
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(recsys.evaluation.ranking, "_BLOCK_SCORES", block)
        found = rank(lambda part: scores[part], ragged(positives), ragged(seen), is_item, k)
    expected = list(by_sorting(scores, positives, seen))
    ranks = [
        order.index(row) + 1
        for order, wanted in zip(expected, positives, strict=True)
        for row in wanted
    ]
    assert found.ranks.tolist() == ranks
    for query, order in enumerate(expected):
        top = found.top[query][found.top_scores[query] > -np.inf].tolist()
        assert top == order[: found.top.shape[1]]


def test_a_positive_that_no_vocabulary_knows_ranks_behind_every_item():
    scores = np.zeros((2, 5), np.float32)
    is_item = np.array([False, False, True, True, True])
    found = rank(lambda part: scores[part], ragged([[0], [1]]), ragged([[], []]), is_item, 2)
    assert found.ranks.tolist() == [5, 5]


def test_a_row_that_is_no_item_is_never_recommended():
    scores = np.array([[9.0, 1.0, 8.0, 2.0]], np.float32)
    is_item = np.array([False, True, False, True])
    found = rank(lambda part: scores[part], ragged([[1]]), ragged([[]]), is_item, 4)
    assert found.top.tolist() == [[3, 1]]
    assert found.ranks.tolist() == [2]
