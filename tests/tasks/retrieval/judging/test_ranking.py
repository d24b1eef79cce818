"""Ranks and top lists against sorting in plain Python, by the C kernel and on devices.

Candidates on the devices of a mesh are compared with an array in memory.
"""

import dataclasses

import hypothesis.strategies as st
import jax
import numpy as np
import pytest
from hypothesis import given
from jax.sharding import Mesh

from recsys import kernels
from recsys.errors import RecsysError
from recsys.ragged import RaggedRows
from recsys.tasks.retrieval.judging import ranking, ranking_devices
from recsys.tasks.retrieval.judging.ranking import rank, rank_sampled
from recsys.tasks.retrieval.judging.ranking_devices import ShardedCandidates, split, tile_rows
from recsys.tasks.retrieval.judging.scores import DotProducts

WAYS = ["native", "jax"]


def use(way, patch):
    """Ranks by the C kernel, or only by JAX."""
    if way == "jax":
        patch.setenv("RECSYS_NATIVE", "0")
    elif way == "native" and not kernels.status().available:
        pytest.skip(kernels.status().reason)


@pytest.fixture(params=WAYS)
def way(request, monkeypatch):
    use(request.param, monkeypatch)
    return request.param


@dataclasses.dataclass
class Given:
    array: np.ndarray

    def scores(self, block):
        return self.array[block]


def on_grid(scorer):
    """The same products, with candidates on a mesh of two axes."""
    mesh = Mesh(np.array(jax.devices()[:6]).reshape(2, 3), ("data", "model"))
    return dataclasses.replace(scorer, candidates=ShardedCandidates.of(scorer.candidates, mesh))


def ragged(lists):
    return RaggedRows.of([np.array(rows, np.int32) for rows in lists])


def by_sorting(scores, positives, seen, is_candidate):
    """The list that each user would see: best first, ties by row, nothing seen."""
    for query in range(len(positives)):
        rows = [row for row in np.flatnonzero(is_candidate) if row not in set(seen[query])]
        yield sorted(rows, key=lambda row: (-scores[query, row], row))


def assert_sorted(found, scores, positives, seen, is_candidate, k):
    """Asserts that `found` equals the result of sorting; no top list contains -inf."""
    k = min(k, is_candidate.sum())
    ranks, top, top_scores = [], [], []
    for query, order in enumerate(by_sorting(scores, positives, seen, is_candidate)):
        place = {row: i for i, row in enumerate(order)}
        ranks += [place.get(row, len(order)) + 1 for row in positives[query]]
        assert found.n_ranked[query] == len(order)
        shown = [row for row in order if scores[query, row] > -np.inf][:k]
        top.append(shown + [0] * (k - len(shown)))
        top_scores.append([*scores[query, shown], *[-np.inf] * (k - len(shown))])
    assert found.ranks.tolist() == ranks
    assert found.top.tolist() == top
    np.testing.assert_array_equal(found.top_scores, np.array(top_scores, np.float32))


@st.composite
def cases(draw):
    # Few sizes: each is compiled.
    n_rows, n_queries = draw(st.sampled_from([3, 20, 60])), draw(st.integers(3, 4))
    rows = st.sets(st.integers(0, n_rows - 1), min_size=1, max_size=8).map(sorted)
    positives = [draw(rows) for _ in range(n_queries)]
    seen = [draw(st.one_of(st.just([]), rows)) for _ in range(n_queries)]
    seen[0] = seen[0] * 2  # Twice is once.
    chosen = st.lists(st.booleans(), min_size=n_rows, max_size=n_rows)
    return positives, seen, np.array(draw(chosen)), draw(st.sampled_from([1, 5, 70]))


seeds = st.integers(0, 2**32 - 1)


@pytest.mark.parametrize("way", WAYS)
@given(cases(), seeds, st.sampled_from([1, 150, 2**24]))
def test_ranks_and_top_lists_equal_sorting(way, case, seed, block):
    positives, seen, is_candidate, k = case
    shape = len(positives), len(is_candidate)
    # Few distinct scores, so that ties are the rule.
    scores = np.random.default_rng(seed).choice([-np.inf, -1, -0.0, 0, 0.5, 2], shape)
    scores = scores.astype(np.float32)
    with pytest.MonkeyPatch.context() as patch:
        use(way, patch)
        patch.setattr(ranking, "_GIVEN_SCORES", block)
        patch.setattr(ranking_devices, "_CPU_SCORES", block)
        patch.setattr(ranking_devices, "_FEWEST_QUERIES", 2)
        found = rank(Given(scores), ragged(positives), ragged(seen), is_candidate, k)
    assert_sorted(found, scores, positives, seen, is_candidate, k)


@pytest.mark.parametrize("way", [*WAYS, "grid"])
@given(cases(), seeds)
def test_dot_products_are_ranked_by_their_scores(way, case, seed):
    positives, seen, is_candidate, k = case
    random = np.random.default_rng(seed)
    # Small integers: every order of summing finds the same, and often the same scores.
    query = random.integers(-2, 3, (len(positives), 3)).astype(np.float32)
    candidates = random.integers(-2, 3, (len(is_candidate), 3)).astype(np.float32)
    scorer = DotProducts(query, candidates)
    scores = scorer.scores(slice(0, len(query)))
    with pytest.MonkeyPatch.context() as patch:
        use(way, patch)
        scorer = on_grid(scorer) if way == "grid" else scorer
        found = rank(scorer, ragged(positives), ragged(seen), is_candidate, k)
    assert_sorted(found, scores, positives, seen, is_candidate, k)


def large_case(seed):
    """Items in groups of equal embeddings, whose scores differ otherwise, and long lists."""
    random = np.random.default_rng(seed)
    distinct = random.normal(size=(700, 20)).astype(np.float32)
    which = random.integers(0, 700, 3001)
    query = random.normal(size=(60, 20)).astype(np.float32)
    scores = (query.astype(np.float64) @ distinct.astype(np.float64).T)[:, which]
    sizes = random.integers(1, 120, 60)
    positives = [sorted(random.choice(3001, n, replace=False)) for n in sizes]
    seen = [random.integers(0, 3001, n).tolist() for n in random.integers(0, 900, 60)]
    is_candidate = random.random(3001) < 0.9
    return DotProducts(query, distinct[which]), scores, positives, seen, is_candidate


@pytest.mark.parametrize("way", [*WAYS, "grid"])
@pytest.mark.parametrize("k", [100, pytest.param(1, marks=pytest.mark.thorough)])
def test_equal_embeddings_tie_wherever_they_stand(way, k, monkeypatch):
    use(way, monkeypatch)
    scorer, scores, positives, seen, is_candidate = large_case(0)
    scorer = on_grid(scorer) if way == "grid" else scorer
    found = rank(scorer, ragged(positives), ragged(seen), is_candidate, k)
    expected = list(by_sorting(scores, positives, seen, is_candidate))
    assert found.top.tolist() == [order[:k] for order in expected]
    places = [{row: i for i, row in enumerate(order)} for order in expected]
    assert found.ranks.tolist() == [
        place.get(row, len(place)) + 1
        for place, wanted in zip(places, positives, strict=True)
        for row in wanted
    ]
    exact = np.take_along_axis(scores, found.top, axis=1)
    np.testing.assert_allclose(found.top_scores, exact, rtol=0, atol=1e-5)


def test_a_row_that_is_no_item_is_never_recommended(way):
    # Nor is its score looked at.
    scores = np.array([[np.nan, 1.0, 8.0, 2.0]], np.float32)
    is_item = np.array([False, True, False, True])
    found = rank(Given(scores), ragged([[1]]), ragged([[]]), is_item, 4)
    assert found.top.tolist() == [[3, 1]]
    assert found.ranks.tolist() == [2]


def test_when_every_item_is_seen_the_list_is_empty(way):
    scores = np.arange(8, dtype=np.float32).reshape(2, 4)
    is_item = np.array([False, True, True, True])
    found = rank(Given(scores), ragged([[2], [3]]), ragged([[1, 2, 3], [3, 2, 1]]), is_item, 3)
    assert found.top.tolist() == [[0, 0, 0], [0, 0, 0]]
    assert (found.top_scores == -np.inf).all()
    assert found.ranks.tolist() == [1, 1]
    assert found.n_ranked.tolist() == [0, 0]


def test_without_any_item_there_is_nothing_to_rank(way):
    found = rank(Given(np.zeros((2, 3))), ragged([[1], []]), ragged([[2], []]), np.zeros(3), 5)
    assert found.ranks.tolist() == [1]
    assert found.n_ranked.tolist() == [0, 0]
    assert found.top.shape == (2, 0)


def test_without_queries_there_are_no_ranks(way):
    none = ragged([])
    for scorer in Given(np.zeros((0, 3))), DotProducts(np.zeros((0, 2)), np.zeros((3, 2))):
        found = rank(scorer, none, none, np.ones(3), 2)
        assert (len(found.ranks), found.top.shape) == (0, (0, 2))


def test_scores_that_are_the_same_for_all_users_need_no_memory(way):
    everybody = np.broadcast_to(np.array([9, 2, 3, 3], np.int64), (3, 4))
    is_item = np.array([False, True, True, True])
    found = rank(Given(everybody), ragged([[1], [2], [3]]), ragged([[], [], [2]]), is_item, 2)
    assert found.ranks.tolist() == [3, 1, 1]
    assert found.top.tolist() == [[2, 3], [2, 3], [3, 1]]


@pytest.mark.parametrize("products", [False, True])
def test_ranking_reports_its_progress(way, products, monkeypatch):
    monkeypatch.setattr(ranking, "_MOST_QUERIES", 24)
    monkeypatch.setattr(ranking, "_FEWEST_QUERIES", 24)
    monkeypatch.setattr(ranking, "_GIVEN_SCORES", 24 * 5)
    monkeypatch.setattr(ranking_devices, "_CPU_SCORES", 16 * 128)
    scorer = DotProducts(np.ones((50, 2)), np.ones((5, 2)))
    scorer = scorer if products else Given(scorer.scores(slice(0, 50)))
    told = []
    rank(scorer, ragged([[1]] * 50), ragged([[]] * 50), np.ones(5), 2, lambda *x: told.append(x))
    step = 24 if way == "native" else 16
    assert told == [(done, 50) for done in [*range(step, 50, step), 50]]


@pytest.mark.parametrize(("most", "ranks"), [(2 * 3 * 4, "host"), (2 * 3 * 4 - 1, "devices")])
def test_a_host_ranks_what_takes_less_than_a_gpu_takes_to_compile(monkeypatch, most, ranks):
    use("native", monkeypatch)
    monkeypatch.setattr(kernels, "available", lambda: False)  # Where JAX computes on a GPU.
    monkeypatch.setattr(ranking, "_FEW_PRODUCTS", most)
    on_devices, called = ranking_devices.rank_on_devices, []
    monkeypatch.setattr(
        ranking_devices, "rank_on_devices", lambda *x: called.append(x) or on_devices(*x)
    )
    scorer = DotProducts(np.ones((2, 4)), np.arange(12.0).reshape(3, 4))
    found = rank(scorer, ragged([[1], [2]]), ragged([[], []]), np.array([False, True, True]), 2)
    assert found.ranks.tolist() == [2, 1]
    assert bool(called) == (ranks == "devices")


def test_blocks_with_few_and_with_many_seen_items_are_ranked_by_one_program(monkeypatch):
    use("jax", monkeypatch)
    monkeypatch.setattr(ranking_devices, "_CPU_SCORES", 16 * 128)
    program, programs = ranking_devices.program, set()
    monkeypatch.setattr(
        ranking_devices, "program", lambda *x: programs.add(program(*x)) or program(*x)
    )
    program.cache_clear()
    scorer = DotProducts(np.ones((50, 2)), np.ones((100, 2)))
    seen = ragged([range(query) for query in range(50)])
    rank(scorer, ragged([[60]] * 20 + [range(30, 90)] * 30), seen, np.ones(100), 2)
    assert [compiled._cache_size() for compiled in programs] == [1]


# --- what is refused


def test_a_score_that_is_nan_is_refused_and_named(way):
    scores = np.zeros((400, 300), np.float32)
    scores[[300, 301, 301], [7, 0, 299]] = np.nan
    is_item = np.arange(300) > 0
    lists = ragged([[1]] * 400)
    with pytest.raises(RecsysError, match=r"R405.*NaN for 2 of 400 queries; query 300, item row 7"):
        rank(Given(scores), lists, lists, is_item, 3)


NAN, INF = np.nan, np.inf


@pytest.mark.parametrize(
    ("query", "candidates", "what"),
    [
        ([1, NAN, 1], [5, 1, 1], r"1 of 3 embeddings, query 1 first"),
        ([1, 1, 1], [5, 1, -INF], r"1 of 3 embeddings, item row 2 first"),
        ([1, 1e20, 1], [5, 1, -4e18], r"query 1 · item row 2 may exceed 3e\+38"),
    ],
    ids=["nan", "infinite", "too large"],
)
def test_products_that_may_be_no_numbers_are_refused_and_named(query, candidates, what):
    scorer = DotProducts(np.array([query]).T, np.array([candidates]).T)
    lists = ragged([[1]] * 3)
    with pytest.raises(RecsysError, match=f"R405.*{what}"):
        rank(scorer, lists, lists, np.array([False, True, True]), 3)


def test_rows_without_an_item_may_have_any_embedding(way):
    scorer = DotProducts(np.full((1, 2), 1e30), np.array([[NAN, 1], [3, 4], [5, 6]]))
    found = rank(scorer, ragged([[1]]), ragged([[]]), np.array([False, True, True]), 3)
    assert found.ranks.tolist() == [2]


@pytest.mark.parametrize(
    ("query", "candidates", "positives", "seen", "what"),
    [
        ((2, 4), (3, 4), [[1], [3]], [[], []], r"Item rows must lie in 0 … 2.*\(1, 3\)"),
        ((2, 4), (3, 4), [[1], [2]], [[-1], []], r"Item rows must lie in 0 … 2.*\(-1, -1\)"),
        ((2, 4), (3, 4), [[1], [2]], [[]], r"must be of the same queries.*\(2, 1\)"),
        ((2, 4), (3, 5), [[1], [2]], [[], []], r"must be \[2, 5\].*\(2, 4\)"),
        ((1, 4), (3, 4), [[1], [2]], [[], []], r"must be \[2, 4\].*\(1, 4\)"),
        ((2, 4), (4, 4), [[1], [2]], [[], []], r"Candidates must be 3.*4"),
    ],
)
def test_inconsistent_sizes_are_refused(query, candidates, positives, seen, what):
    scorer = DotProducts(np.ones(query), np.ones(candidates))
    with pytest.raises(RecsysError, match=f"R410.*{what}"):
        rank(scorer, ragged(positives), ragged(seen), np.ones(3), 3)


def test_a_scorer_that_returns_others_than_asked_for_is_refused(way):
    lists = ragged([[1]] * 2)
    with pytest.raises(RecsysError, match=r"R410.*must return \(2, 3\).*\(2, 4\)"):
        rank(Given(np.zeros((2, 4))), lists, lists, np.ones(3), 3)


N_ROWS, DIM = 2500, 12


def mesh(*shape):
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, ("data", "model")[: len(shape)])


def placed(embeddings, on):
    """Embeddings `[rows, dim]` as a model would embed them in place."""

    def embed(rows):
        return jax.device_put(embeddings[rows], split(on))

    return ShardedCandidates.embedded(embed, len(embeddings), on)


@pytest.fixture(scope="module")
def candidates():
    return np.random.default_rng(1).integers(-2, 3, (N_ROWS, DIM)).astype(np.float32)


def test_no_device_holds_more_than_its_tiles(candidates):
    on_devices = placed(candidates, mesh(8))
    held = {shard.data.nbytes for shard in on_devices.table.addressable_shards}
    assert tile_rows(N_ROWS) == 256
    assert held == {2 * 256 * DIM * 4}


@pytest.mark.parametrize("shape", [(1,), (8,), (2, 4)], ids=str)
def test_rows_scores_and_magnitudes_are_those_of_an_array(candidates, shape):
    candidates = candidates.copy()
    candidates[7, 3] = np.nan
    query = np.random.default_rng(2).integers(-2, 3, (40, DIM)).astype(np.float32)
    for split_up in (
        placed(candidates, mesh(*shape)),
        ShardedCandidates.of(candidates, mesh(*shape)),
    ):
        assert split_up.table.sharding.num_devices == np.prod(shape)
        rows = np.random.default_rng(2).integers(0, N_ROWS, (300, 40))
        np.testing.assert_array_equal(split_up[rows], candidates[rows])
        np.testing.assert_array_equal(np.asarray(split_up), candidates)
        np.testing.assert_array_equal(split_up.largest_of_rows, np.abs(candidates).max(axis=1))
        np.testing.assert_array_equal(split_up.scores(query), query @ candidates.T)
        assert split_up.shape == candidates.shape
        taken = split_up.taken(rows[0])
        np.testing.assert_array_equal(np.asarray(taken), candidates[rows[0]])
        joined = np.full_like(candidates, 9)
        for own, part in split_up.own_parts():
            joined[own] = part
        np.testing.assert_array_equal(joined, candidates)
        left_out = np.arange(N_ROWS) % 3 == 0
        expected = np.where(left_out[:, None], 0, candidates)
        np.testing.assert_array_equal(np.asarray(split_up.without(left_out)), expected)


def test_ranks_among_sampled_items_are_those_of_candidates_in_memory(candidates):
    draw = np.random.default_rng(3)
    query = draw.integers(-2, 3, (40, DIM)).astype(np.float32)
    lists = [draw.integers(0, N_ROWS, n).astype(np.int32) for n in draw.integers(0, 30, 80)]
    is_item = np.arange(N_ROWS) % 10 > 0
    args = RaggedRows.of(lists[:40]), RaggedRows.of(lists[40:]), is_item, is_item, 20, 5
    here = rank_sampled(DotProducts(query, candidates), *args)
    there = rank_sampled(DotProducts(query, placed(candidates, mesh(8))), *args)
    assert here.ranks.tolist() == there.ranks.tolist()
