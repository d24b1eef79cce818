"""The best by a rough look: to the last bit what the kernel finds that looks at all in floats."""

import ctypes

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

import recsys.kernels.rank_jobs
from recsys import kernels
from recsys.index.search import Ranker
from recsys.kernels.rank_jobs import RankResults, RoundedItems, TopResults, rank_queries
from recsys.ragged import RaggedRows

pytestmark = pytest.mark.skipif(not kernels.status().available, reason=kernels.status().reason)


def normal(rng, *shape):
    return rng.standard_normal(shape, np.float32)


def in_clusters(rng, n, dim):
    """Items of one cluster differ in their last bits."""
    middles = normal(rng, 7, dim)
    return middles[rng.integers(7, size=n)] * (1 + np.float32(1e-6) * normal(rng, n, dim))


def of_all_sizes(rng, n, dim):
    return (normal(rng, n, dim) * 10.0 ** rng.integers(-18, 12, (n, 1))).astype(np.float32)


def one_hot(rng, n, dim):
    table = np.zeros((n, dim), np.float32)
    table[np.arange(n), rng.integers(dim, size=n)] = rng.choice(np.float32([1, -1, 0]), n)
    return table


def at_half_steps(rng, n, dim):
    """As far from whole numbers of steps as can be."""
    table = (rng.integers(-60, 60, (n, dim)) + 0.5) / 127
    table[:, 0] = 1
    return table.astype(np.float32)


TABLES = {
    "normal": normal,
    "whole": lambda rng, n, dim: rng.integers(-4, 5, (n, dim)).astype(np.float32),
    "clusters": in_clusters,
    "sizes": of_all_sizes,
    "one-hot": one_hot,
    "half-steps": at_half_steps,
    "equal": lambda rng, n, dim: np.ones((n, dim), np.float32),
    "zero": lambda rng, n, dim: np.zeros((n, dim), np.float32),
    "denormal": lambda rng, n, dim: np.float32(1e-42) * normal(rng, n, dim),
    "tiny": lambda rng, n, dim: np.float32(1e-20) * normal(rng, n, dim),
    "huge": lambda rng, n, dim: np.float32(1e14) * normal(rng, n, dim),
}


def case(rng, kind, n_queries, n_rows, dim):
    """Returns queries, items, which are items, and lists to hide, some of them long."""
    table = TABLES[kind](rng, n_rows, dim)
    query = normal(rng, n_queries, dim) * 10.0 ** rng.integers(-3, 4, (n_queries, 1))
    query = query.astype(np.float32)
    is_item = rng.random(n_rows) < 0.9
    sizes = rng.integers(0, 40, n_queries) * rng.integers(0, 2, n_queries)
    sizes[0] = n_rows // 3
    hidden = RaggedRows.of([rng.integers(0, n_rows, size) for size in sizes])
    return query, table, is_item, hidden


def by_floats(query, table, is_item, hidden, k):
    """Returns what the kernel finds that looks at all products of floats."""
    out = RankResults.empty(0, len(query), k)
    bias = np.where(is_item, np.float32(0), np.float32(np.nan))
    none = RaggedRows.empty(len(query))
    rank_queries(slice(0, len(query)), query, table, bias, none, hidden, out)
    return out.top, out.top_scores


def by_bytes(query, table, is_item, hidden, k, allowed=None):
    out = TopResults.empty(len(query), k)
    rounded = RoundedItems(table, is_item)
    rounded.best(slice(0, len(query)), query, hidden, rounded.masked(allowed), out)
    return out


def assert_same(found, expected, chosen=slice(None)):
    np.testing.assert_array_equal(found[0][chosen], expected[0][chosen])
    np.testing.assert_array_equal(
        found[1][chosen].view(np.uint32), expected[1][chosen].view(np.uint32)
    )


@settings(max_examples=100, deadline=None)
@given(
    seed=st.integers(0, 2**32),
    kind=st.sampled_from(sorted(TABLES)),
    n_queries=st.sampled_from([1, 2, 3, 4, 9, 30]),
    n_rows=st.integers(1, 1500),
    dim=st.integers(1, 140),
    k=st.sampled_from([1, 2, 7, 30, 100]),
)
def test_whoever_is_not_given_up_is_answered_to_the_last_bit(seed, kind, n_queries, n_rows, dim, k):
    rng = np.random.default_rng(seed)
    query, table, is_item, hidden = case(rng, kind, n_queries, n_rows, dim)
    allowed = rng.random(n_rows) < rng.choice([0.02, 0.5, 1])
    found = by_bytes(query, table, is_item, hidden, k, allowed)
    expected = by_floats(query, table, is_item & allowed, hidden, k)
    assert_same(found, expected, ~found.is_given_up)
    items = Ranker(table, is_item)
    assert_same(items.exact(query, hidden, k, allowed), expected)


@pytest.mark.parametrize("kind", ["normal", "sizes", "half-steps"])
@pytest.mark.parametrize("order", ["any", "rising", "falling"])
def test_of_ordinary_items_few_are_looked_at_twice_in_whatever_order_they_come(kind, order):
    rng = np.random.default_rng(0)
    query, table, is_item, hidden = case(rng, kind, 20, 20_000, 64)
    if order != "any":
        place = np.argsort(table @ query[3])
        table = np.ascontiguousarray(table[place if order == "rising" else place[::-1]])
    found = by_bytes(query, table, is_item, hidden, 100)
    assert not found.is_given_up.any()
    assert_same(found, by_floats(query, table, is_item, hidden, 100))


@pytest.mark.parametrize("kind", ["equal", "zero", "clusters"])
def test_items_that_are_too_alike_are_left_to_the_other_kernel(kind):
    rng = np.random.default_rng(0)
    query, table, is_item, hidden = case(rng, kind, 20, 20_000, 64)
    found = by_bytes(query, table, is_item, hidden, 100)
    assert found.is_given_up.all()
    items = Ranker(table, is_item)
    assert_same(items.exact(query, hidden, 100), by_floats(query, table, is_item, hidden, 100))


def test_a_sample_that_is_not_fair_is_noticed():
    rng = np.random.default_rng(0)
    table, query = normal(rng, 48 * 400, 20), np.abs(normal(rng, 9, 20))
    best = np.arange(len(table)) % 400 < 4  # What is looked at first.
    table[best] = 9 + np.abs(table[best])
    is_item, hidden = np.ones(len(table), bool), RaggedRows.empty(9)
    assert by_bytes(query, table, is_item, hidden, 100).is_given_up.all()
    found = Ranker(table, is_item).exact(query, hidden, 100)
    assert_same(found, by_floats(query, table, is_item, hidden, 100))


@pytest.mark.parametrize("bad", [0, np.nan, np.inf, -np.inf, 1e20, 1e-30])
def test_a_query_that_cannot_be_rounded_is_left_to_the_other_kernel(bad):
    rng = np.random.default_rng(0)
    query, table, is_item, hidden = case(rng, "normal", 9, 3000, 20)
    query[4] = bad
    found = by_bytes(query, table, is_item, hidden, 10)
    assert found.is_given_up.tolist() == [number == 4 for number in range(9)]
    expected = by_floats(query, table, is_item, hidden, 10)
    assert_same(found, expected, ~found.is_given_up)


@pytest.mark.parametrize("bad", [np.nan, np.inf, -1e16])
def test_items_that_cannot_be_rounded_are_refused_unless_they_are_none(bad):
    rng = np.random.default_rng(0)
    query, table, is_item, hidden = case(rng, "normal", 5, 3000, 20)
    is_item[7], is_item[9] = False, True
    table[7, 3] = bad
    expected = by_floats(query, table, is_item, hidden, 10)
    assert_same(by_bytes(query, table, is_item, hidden, 10), expected)
    table[9, 3] = bad
    with pytest.raises(ValueError, match="rounded"):
        RoundedItems(table, is_item)
    assert not Ranker(table, is_item).is_rounded


def test_more_dimensions_than_sums_are_exact_for_are_refused():
    rng = np.random.default_rng(0)
    query, table, is_item, hidden = case(rng, "normal", 5, 300, 1024)
    table[5] = query[0] = 1  # The largest sum that can be.
    is_item[5] = True
    found = by_bytes(query, table, is_item, hidden, 3)
    assert_same(found, by_floats(query, table, is_item, hidden, 3))
    with pytest.raises(ValueError, match="rounded"):
        RoundedItems(np.ones((99, 1025), np.float32), np.ones(99, bool))


def test_one_of_a_few_and_of_many_queries_is_answered_alike_by_any_number_of_threads():
    rng = np.random.default_rng(0)
    query, table, is_item, hidden = case(rng, "normal", 120, 5000, 33)
    items = Ranker(table, is_item)
    whole = items.exact(query, hidden, 20)
    assert_same(items.exact(query, hidden, 20, threads=3), whole)
    for start, stop in ((0, 1), (1, 4), (4, 60)):
        part = items.exact(query[start:stop], hidden.part(slice(start, stop)), 20)
        assert_same(part, [x[start:stop] for x in whole])


def test_the_table_may_have_any_row_stride():
    rng = np.random.default_rng(0)
    query, table, is_item, hidden = case(rng, "normal", 9, 3000, 20)
    wide = np.zeros((3000, 32), np.float32)
    wide[:, 5:25] = table
    found = by_bytes(query, wide[:, 5:25], is_item, hidden, 10)
    assert_same(found, by_floats(query, table, is_item, hidden, 10))


@pytest.mark.parametrize("variant", kernels.built())
def test_every_kind_of_processor_finds_the_same(variant, monkeypatch):
    loaded = ctypes.CDLL(str(kernels.built()[variant]))
    loaded.recsys_round_items.argtypes = [ctypes.c_void_p]
    loaded.recsys_top.argtypes = [ctypes.c_void_p, ctypes.c_void_p]
    monkeypatch.setattr(recsys.kernels.rank_jobs, "_library", lambda: loaded)
    rng = np.random.default_rng(0)
    for kind in TABLES:
        query, table, is_item, hidden = case(rng, kind, 13, 1700, 70)
        found = by_bytes(query, table, is_item, hidden, 20)
        expected = by_floats(query, table, is_item, hidden, 20)
        assert_same(found, expected, ~found.is_given_up)
    assert loaded.recsys_top_is_fast() == (variant != "generic")
