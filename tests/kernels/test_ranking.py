"""The ranking kernel against sorting in numpy, and what else it promises."""

import ctypes

import numpy as np
import pytest

import recsys.kernels.rank_jobs
from recsys import kernels
from recsys.kernels.rank_jobs import RankResults, rank_queries
from recsys.ragged import RaggedRows

pytestmark = pytest.mark.skipif(not kernels.status().available, reason=kernels.status().reason)


def lists(sizes, n_rows, random):
    return RaggedRows.of([random.integers(0, n_rows, n).astype(np.int32) for n in sizes])


def case(n_queries, n_rows, dim, seed=0):
    """Small integers, of which sums are exact; a tenth of the rows are no candidates."""
    random = np.random.default_rng(seed)
    query = random.integers(-4, 5, (n_queries, dim)).astype(np.float32)
    table = random.integers(-4, 5, (n_rows, dim)).astype(np.float32)
    bias = random.choice([np.nan, -1, *[0] * 8], n_rows).astype(np.float32)
    positives = lists(random.integers(0, 60, n_queries), n_rows, random)
    seen = lists(random.integers(0, 30, n_queries) * random.integers(0, 2), n_rows, random)
    return query, table, bias, positives, seen


def ranked(query, table, bias, positives, seen, k, blocks=None):
    n_queries = len(positives)
    out = RankResults.empty(len(positives.rows), n_queries, k)
    for start, stop in blocks or [(0, n_queries)]:
        block = slice(start, stop)
        part = table[block] if query is None else table
        rank_queries(
            block, None if query is None else query[block], part, bias, positives, seen, out
        )
    return out


def assert_right(found, scores, bias, positives, seen, k):
    """Asserts that `found` is what a stable sort of all scores finds."""
    offsets = positives.offsets
    for i in range(len(scores)):
        wanted = positives.rows[offsets[i] : offsets[i + 1]]
        own = scores[i] + bias
        own[seen.part(slice(i, i + 1)).rows] = np.nan
        order = np.argsort(-own, kind="stable")[: (~np.isnan(own)).sum()]
        place = np.full(len(bias), len(order))
        place[order] = np.arange(len(order))
        np.testing.assert_array_equal(found.ranks[offsets[i] : offsets[i + 1]], place[wanted] + 1)
        assert found.n_ranked[i] == len(order)
        n = min(k, len(order))
        np.testing.assert_array_equal(found.top[i], np.append(order[:n], np.zeros(k - n)))
        np.testing.assert_array_equal(found.top_scores[i, :n], own[order[:n]])
        assert (found.top_scores[i, n:] == -np.inf).all()


# Around the heights and widths of tiles (8, 6), strips (48, 16, 12) and panels (48).
SHAPES = [
    (1, 1, 1), (1, 48, 3), (2, 49, 64), (7, 47, 17), (8, 16, 1), (9, 97, 5), (24, 64, 64),
    (25, 65, 1000), (49, 1000, 20), (100, 63, 2),
]  # fmt: skip


@pytest.mark.parametrize("k", [1, 2, 30, 100])
@pytest.mark.parametrize(("n_queries", "n_rows", "dim"), SHAPES)
def test_ranks_and_lists_are_those_of_a_stable_sort(n_queries, n_rows, dim, k):
    query, table, bias, positives, seen = case(n_queries, n_rows, dim)
    scores = query @ table.T
    k = min(k, n_rows)
    for found in (
        ranked(query, table, bias, positives, seen, k),
        ranked(None, scores, bias, positives, seen, k),
    ):
        assert_right(found, scores, bias, positives, seen, k)


@pytest.mark.parametrize("order", ["rising", "falling", "equal"])
def test_the_best_are_found_in_whatever_order_they_come(order):
    scores = (
        np.arange(5000, dtype=np.float32)[None] * {"rising": 1, "falling": -1, "equal": 0}[order]
    )
    bias = np.zeros(5000, np.float32)
    none = RaggedRows.of([np.zeros(0, np.int32)])
    positives = RaggedRows.of([np.array([4999, 0, 2500], np.int32)])
    found = ranked(None, scores, bias, positives, none, 333)
    assert_right(found, scores, bias, positives, none, 333)


def test_zero_is_zero_whatever_its_sign():
    scores, bias = np.array([[-0.0, 0.0, -0.0]], np.float32), np.full(3, -0.0, np.float32)
    positives = RaggedRows.of([np.array([0, 1, 2], np.int32)])
    found = ranked(None, scores, bias, positives, RaggedRows.of([positives.rows[:0]]), 2)
    assert found.ranks.tolist() == [1, 2, 3]
    assert found.top.tolist() == [[0, 1]]


@pytest.mark.parametrize("highest", [np.inf, np.finfo(np.float32).max, 1e-45, 0, -1e-45, -np.inf])
def test_ties_are_exact_at_the_ends_of_what_a_number_can_be(highest):
    bias = np.zeros(400, np.float32)
    scores = np.random.default_rng(0).choice(np.float32([highest, -np.inf]), (2, 400))
    scores[:, [9, 100, 200, 350]] = highest
    lists = RaggedRows.of([np.array([9, 100, 350], np.int32), np.array([200], np.int32)])
    seen = RaggedRows.of([np.array([8, 399], np.int32)] * 2)
    assert_right(ranked(None, scores, bias, lists, seen, 0), scores, bias, lists, seen, 0)


def test_a_querys_results_do_not_depend_on_the_job_that_it_is_in():
    random = np.random.default_rng(0)
    *_, bias, positives, seen = case(100, 700, 1)
    query, table = (random.normal(size=(n, 33)).astype(np.float32) for n in (100, 700))
    whole = ranked(query, table, bias, positives, seen, 50)
    parts = ranked(query, table, bias, positives, seen, 50, [(0, 1), (1, 10), (10, 83), (83, 100)])
    for one, other in zip(whole, parts, strict=True):
        np.testing.assert_array_equal(one, other)


def test_given_scores_may_have_any_row_stride():
    _, _, bias, positives, seen = case(40, 130, 1)
    wide = np.random.default_rng(0).integers(0, 9, (40, 200)).astype(np.float32)
    scores = wide[:, 30:160]
    assert_right(ranked(None, scores, bias, positives, seen, 20), scores, bias, positives, seen, 20)
    same = np.broadcast_to(wide[0, :130], (40, 130))
    assert_right(ranked(None, same, bias, positives, seen, 20), same, bias, positives, seen, 20)


def test_a_score_that_is_nan_is_reported_unless_it_is_no_candidates():
    bias = np.zeros(100, np.float32)
    bias[3] = np.nan
    scores = np.zeros((3, 100), np.float32)
    scores[:, 3] = scores[1, 99] = np.nan
    none = RaggedRows.of([np.zeros(0, np.int32)] * 3)
    assert ranked(None, scores, bias, none, none, 5).not_a_number.tolist() == [-1, 99, -1]


@pytest.mark.parametrize("variant", kernels.built())
def test_every_width_of_vectors_finds_the_same(variant, monkeypatch):
    library = ctypes.CDLL(str(kernels.built()[variant]))
    monkeypatch.setattr(recsys.kernels.rank_jobs, "_library", lambda: library)
    for n_queries, n_rows, dim in SHAPES:
        test_ranks_and_lists_are_those_of_a_stable_sort(n_queries, n_rows, dim, min(9, n_rows))
