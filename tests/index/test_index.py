"""The index of a bundle: what it finds, what it leaves out, and what is refused."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from scipy import sparse

pytest.importorskip("faiss", reason="needs FAISS")

from recsys.errors import RecsysError
from recsys.index import search
from recsys.index.config import IndexConfig
from recsys.index.search import Ranker, build_index, choose_effort, read_index, recall_of
from recsys.ragged import RaggedRows

_N, _DIM, _K = 4000, 16, 20


def unit(rng, *shape):
    vectors = rng.standard_normal(shape).astype(np.float32)
    return vectors / np.linalg.norm(vectors, axis=-1, keepdims=True)


@pytest.fixture(scope="module")
def world():
    """Items in clusters, of whose rows some are none; and queries near the clusters."""
    rng = np.random.default_rng(3)
    middles = unit(rng, 40, _DIM)
    items = middles[rng.integers(40, size=_N + 1)] + 0.5 * unit(rng, _N + 1, _DIM)
    queries = middles[rng.integers(40, size=600)] + 0.5 * unit(rng, 600, _DIM)
    is_item = np.arange(_N + 1) % 7 != 0  # Row 0 among those that are none.
    return items.astype(np.float32), is_item, queries.astype(np.float32)


@pytest.fixture(scope="module")
def built(world, tmp_path_factory):
    folder = tmp_path_factory.mktemp("index")
    said = build_index(folder, *world, _K, IndexConfig(kind="ann", min_recall=0.9))
    return folder, said


@pytest.fixture(scope="module")
def ranker(world, built):
    """Asks the index, however many of its lists it looks through."""
    items, is_item, _ = world
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(search, "_MOST_LISTS", 1)
        return Ranker(items, is_item, *read_index(built[0], items, is_item))


def by_hand(world, query, hidden, k, allowed=None):
    """Returns the best rows, by sorting all scores."""
    items, is_item, _ = world
    scores = items.astype(np.float64) @ query
    candidates = is_item.copy() if allowed is None else is_item & allowed
    candidates[list(hidden)] = False
    rows = np.flatnonzero(candidates)
    return rows[np.argsort(-scores[rows], kind="stable")][:k]


def test_the_index_finds_what_was_asked_for_and_scores_are_exact(world, built, ranker):
    items, _, queries = world
    fresh = queries[::-1][:100] + np.float32(0.01)
    rows, scores = ranker.best(fresh, RaggedRows.empty(100), _K)
    exact = np.stack([by_hand(world, query, [], _K) for query in fresh])
    assert recall_of(rows, exact) > 0.88
    np.testing.assert_allclose(scores, np.einsum("qd,qkd->qk", fresh, items[rows]), atol=1e-5)
    assert (np.diff(scores, axis=1) <= 0).all()
    said = built[1]
    assert 0.9 <= said["recall"] <= 1
    assert 1 <= said["effort"] < said["lists"]
    assert said["items"] == world[1].sum()


def test_what_is_hidden_never_comes_back_and_makes_room_for_the_next(world, ranker):
    queries = world[2][:8]
    first, _ = ranker.best(queries, RaggedRows.empty(8), _K)
    hidden = RaggedRows.of([row[:number] for number, row in enumerate(first)])
    rows, _ = ranker.best(queries, hidden, _K)
    for number, row in enumerate(rows):
        assert not set(row) & set(first[number][:number])
        assert (row > 0).all()
        # The results are the same as before.
        assert list(row[: _K - number]) == list(first[number][number:])


def test_an_answer_is_exact_and_whole_where_the_index_finds_too_few(world, ranker):
    _, is_item, queries = world
    kept = np.flatnonzero(is_item)[::150]
    hidden = np.setdiff1d(np.flatnonzero(is_item), kept).astype(np.int32)
    rows, scores = ranker.best(queries[:2], RaggedRows.of([hidden, hidden[:0]]), len(kept) + 3)
    assert list(rows[0][: len(kept)]) == list(by_hand(world, queries[0], hidden, len(kept)))
    assert list(rows[0][len(kept) :]) == [0, 0, 0]
    assert np.isneginf(scores[0][len(kept) :]).all()
    assert (rows[1] > 0).all()


@pytest.mark.parametrize("share", [0.0, 0.01, 0.5])
@pytest.mark.parametrize("has_index", [True, False])
def test_allow_lists_are_exact_however_few_they_allow(world, ranker, share, has_index):
    items, is_item, queries = world
    allowed = np.random.default_rng(5).random(len(items)) < share
    asked = ranker if has_index else Ranker(items, is_item)
    hidden = RaggedRows.of([by_hand(world, queries[0], [], 3, allowed).astype(np.int32), []])
    rows, _ = asked.best(queries[:2], hidden, _K, allowed)
    for number in range(2):
        mine = by_hand(world, queries[number], hidden.part(slice(number, number + 1)).rows, _K,
                       allowed)  # fmt: skip
        assert list(rows[number][: len(mine)]) == list(mine)
        assert not rows[number][len(mine) :].any()


def test_an_index_that_takes_longer_than_a_look_at_all_is_not_asked(world, built):
    items, is_item, queries = world
    index, _ = read_index(built[0], items, is_item)
    by_effort = [Ranker(items, is_item, index, n) for n in (1, index.n_lists // 4)]
    can_look = Ranker(items, is_item).is_rounded
    assert [one.is_exact for one in by_effort] == [False, can_look]
    all_looked_at = Ranker(items, is_item).best(queries[:50], RaggedRows.empty(50), _K)[0]
    few, many = (recall_of(one.best(queries[:50], RaggedRows.empty(50), _K)[0], all_looked_at)
                 for one in by_effort)  # fmt: skip
    assert few < 0.9
    assert many == 1 or not can_look


def test_the_same_input_gives_the_same_files(world, built, tmp_path):
    build_index(tmp_path, *world, _K, IndexConfig(kind="ann", min_recall=0.9))
    for path in sorted((built[0] / "index").iterdir()):
        assert path.read_bytes() == (tmp_path / "index" / path.name).read_bytes(), path.name


@pytest.mark.parametrize(
    ("config", "is_built"),
    [
        (IndexConfig(), False),
        (IndexConfig(exact_up_to=3000), True),
        (IndexConfig(kind="exact", exact_up_to=1), False),
    ],
)
def test_auto_builds_an_index_where_there_are_too_many_items(world, tmp_path, config, is_built):
    said = build_index(tmp_path, *world, _K, config)
    assert (said is not None, (tmp_path / "index").exists()) == (is_built, is_built)


def blind(queries, effort):
    """Finds one of two best items, however hard it searches."""
    return np.tile([1, 9], (len(queries), 1))


def test_an_index_that_finds_too_little_is_refused_with_what_it_found():
    queries, exact = np.zeros((10, 2), np.float32), np.tile([1, 2], (10, 1))
    with pytest.raises(RecsysError, match=r"\[R581\].*95.0%.*0\.5000 at 50 of 100 lists"):
        choose_effort(blind, queries, exact, 100, 0.95)
    assert choose_effort(blind, queries, exact, 100, 0.3) == (1, 0.5)


def test_a_bundle_without_an_index_has_none(world, tmp_path):
    assert read_index(tmp_path, *world[:2]) is None


def test_without_faiss_the_error_names_what_to_install(world, tmp_path, monkeypatch):
    monkeypatch.setitem(__import__("sys").modules, "faiss", None)
    with pytest.raises(RecsysError, match=r"\[R580\].*Install the extra serve"):
        build_index(tmp_path, *world, _K, IndexConfig(kind="ann"))


@given(seed=st.integers(0, 2**32), k=st.integers(1, 12), is_batch=st.booleans())
def test_the_best_of_dot_products_and_summands_are_those_of_all_items(seed, k, is_batch):
    rng = np.random.default_rng(seed)
    items, queries = (rng.standard_normal((n, 4)).astype(np.float32) for n in (30, 6))
    is_item = rng.random(30) < 0.8
    is_item[0] = False
    summands = sparse.random_array((6, 30), density=0.2, rng=rng, dtype=np.float32).tocsr()
    hidden = RaggedRows.of([rng.integers(1, 30, 3).astype(np.int32) for _ in queries])
    allowed = (rng.random(30) < 0.7) if rng.random() < 0.5 else None
    one = Ranker(items, is_item)
    best = one.exact if is_batch else one.best
    rows, scores = one.with_added(best, queries, hidden, k, allowed, summands)
    expected = queries.astype(np.float64) @ items.T + summands.toarray()
    for query, of_all in enumerate(expected):
        of_all[~(is_item if allowed is None else is_item & allowed)] = -np.inf
        of_all[hidden.part(slice(query, query + 1)).rows] = -np.inf
        order = np.argsort(-of_all, kind="stable")[:k]
        kept = order[np.isfinite(of_all[order])]
        assert rows[query, : len(kept)].tolist() == kept.tolist()
        assert not rows[query, len(kept) :].any()
        np.testing.assert_allclose(scores[query, : len(kept)], of_all[kept], rtol=1e-5, atol=1e-6)
