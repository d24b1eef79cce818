"""The blocks of the exact ranking, and short embeddings, against numpy."""

from unittest import mock

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from recsys.errors import RecsysError
from recsys.ragged import slices
from recsys.tasks.retrieval.serving import candidates
from recsys.tasks.retrieval.serving.candidates import check_parity, stored


@st.composite
def rankings(draw):
    """A ranking of small whole numbers: sums are exact, and many scores are equal."""
    n, b, dim = draw(st.integers(2, 40)), draw(st.integers(0, 4)), draw(st.integers(1, 3))
    rng = np.random.default_rng(draw(st.integers(0, 2**32)))
    return {
        "embeddings": rng.integers(-3, 4, (n, dim)).astype(np.float32),
        "query": rng.integers(-3, 4, (b, dim)).astype(np.float32),
        "is_item": np.append(False, rng.random(n - 1) < draw(st.sampled_from([1.0, 0.6]))),
        "popularity": rng.integers(0, 3, n).astype(np.float32),
        "by_popularity": rng.random(b) < 0.3,
        "hidden": [[0, *rng.integers(0, n, rng.integers(0, 6)).tolist()] for _ in range(b)],
        "allowed": rng.random((b, n)) < 0.7,
        "added": [(int(i), int(x)) for i, x in rng.integers(0, [n, 4], (5, 2))],
        "k": draw(st.integers(1, n)),
        "block": draw(st.integers(1, n + 1)),
        "most": draw(st.sampled_from([1, 3 * n])),
    }


def expected(case):
    """Returns scores and rows of the best, by sorting all; -inf behind them."""
    scores = case["query"] @ case["embeddings"].T
    for row, summand in case["added"]:  # The same for all queries; items may come twice.
        scores[:, row] += summand
    scores[case["by_popularity"]] = case["popularity"]
    scores[:, ~case["is_item"]] = -np.inf
    scores[~case["allowed"]] = -np.inf
    for row, hidden in zip(scores, case["hidden"], strict=True):
        row[hidden] = -np.inf
    order = np.argsort(-scores, axis=1, kind="stable")[:, : case["k"]]
    return np.take_along_axis(scores, order, axis=1), order


@settings(max_examples=25)
@given(case=rankings())
def test_blocks_of_any_size_find_the_best_of_all_and_the_first_of_equals(case):
    import tensorflow as tf

    hidden = tf.ragged.constant(case["hidden"], tf.int32, ragged_rank=1)
    by_popularity = tf.constant(case["by_popularity"], tf.bool)

    def allow(start, size):
        return tf.slice(tf.constant(case["allowed"]), [0, start], [-1, size])

    sizes = {"ONE_BLOCK_ROWS": 0, "BLOCK_ROWS": case["block"], "MOST_SCORES": case["most"]}
    items = stored(case["embeddings"], "float32"), case["is_item"], case["popularity"]
    with mock.patch.multiple(candidates, **sizes):
        one = candidates.GraphRanker(*items, case["k"])
        at, summands = (
            np.tile(x, (len(case["query"]), 1)) for x in zip(*case["added"], strict=True)
        )
        summands = np.where(case["by_popularity"][:, None], 0, summands)
        added = tf.constant(at, tf.int32), tf.constant(summands, tf.float32)
        scores, rows = one.best(tf.constant(case["query"]), by_popularity, hidden, allow, added)
    scores = np.where(scores.numpy() > candidates.NO_SCORE, scores.numpy(), -np.inf)
    best, order = expected(case)
    np.testing.assert_array_equal(scores, best)
    is_there = np.isfinite(best)
    np.testing.assert_array_equal(rows.numpy()[is_there], order[is_there])


@given(seed=st.integers(0, 2**32), rows=st.integers(0, 30), block=st.integers(1, 31))
def test_short_embeddings_are_within_half_a_step(seed, rows, block):
    rng = np.random.default_rng(seed)
    size = 10.0 ** rng.integers(-3, 4, (rows, 1)) * (rng.random((rows, 1)) < 0.8)
    numbers = (rng.standard_normal((rows, 5)) * size).astype(np.float32)
    with mock.patch.object(candidates, "BLOCK_ROWS", block):
        int8, half = stored(numbers, "int8"), stored(numbers, "float16")
    assert (int8.values.dtype, half.values.dtype) == (np.int8, np.float16)
    largest = np.abs(numbers).max(axis=1, initial=0)[:, None]
    everything = slice(None)
    # A step is a 127th of the row's largest; the scale is rounded, too.
    assert (np.abs(int8.floats(everything) - numbers) <= largest / 127 * (0.5 + 1e-4)).all()
    # Eleven bits, and below 2^-14 the steps are 2^-24.
    assert (np.abs(half.floats(everything) - numbers) <= np.abs(numbers) * 2**-11 + 2**-25).all()
    assert stored(numbers, "float32").values is numbers
    middle = slice(rows // 3, rows // 2)
    np.testing.assert_array_equal(int8.floats(middle), int8.floats(everything)[middle])


def test_what_a_float16_cannot_hold_is_refused():
    with pytest.raises(RecsysError, match="R539"):
        stored(np.full((3, 2), 70_000, np.float32), "float16")
    assert len(stored(np.full((3, 2), 65_504, np.float32), "float16")) == 3


@pytest.fixture(scope="module")
def ranked():
    """Queries, embeddings, items, and the rows of the exact best ten."""
    rng = np.random.default_rng(0)
    embeddings = rng.standard_normal((500, 6)).astype(np.float32)
    embeddings[7] = embeddings[300]  # Equal scores, in other blocks.
    query = rng.standard_normal((300, 6)).astype(np.float32)
    is_item = np.arange(500) % 9 > 0
    scores = np.where(is_item, query @ embeddings.T, -np.inf)
    return query, embeddings, is_item, np.argsort(-scores, axis=1)[:, :10]


@pytest.mark.parametrize("block", [64, 499, 500, 1000])
def test_parity_is_the_share_of_the_exact_best(ranked, block):
    query, embeddings, is_item, best = ranked

    def share(answers, least):
        is_asked = np.arange(len(answers)) < 290
        blocks = ((part, query @ embeddings[part].T) for part in slices(500, block))
        return check_parity(answers, is_asked, blocks, is_item, least)

    assert share(best, 1.0) == 1.0
    assert share(np.where(best == 7, 300, np.where(best == 300, 7, best)), 1.0) == 1.0
    some = best.copy()
    # The worst item in place of the last one, and no item in place of another's first one.
    some[:19, 9] = np.argmin(np.where(is_item, query[:19] @ embeddings.T, np.inf), axis=1)
    some[280:, 0] = 0
    assert share(some, 0.98) == 1 - 29 / 2900
    with pytest.raises(RecsysError, match=r"R538.*0\.9900"):
        share(some, 0.995)


def test_parity_of_nothing_is_whole(ranked):
    query, embeddings, is_item, best = ranked
    blocks = [(slice(0, 500), query @ embeddings.T)]
    assert check_parity(best, np.zeros(300, bool), blocks, is_item, 1.0) == 1.0
    assert check_parity(best, np.ones(300, bool), blocks, np.zeros(500, bool), 1.0) == 1.0
