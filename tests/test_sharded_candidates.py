"""Candidates that lie on the devices of a mesh, against NumPy on all of them."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from recsys.evaluation.ranking import rank, rank_sampled
from recsys.evaluation.scores import DotProducts
from recsys.evaluation.sharded_candidates import ShardedCandidates, split, tile_rows
from recsys.ragged import RaggedRows

N_ROWS, DIM = 2500, 12


def mesh(*shape):
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    return Mesh(devices, ("data", "model")[: len(shape)])


def placed(embeddings, on, own_rows=None):
    """Embeddings `[rows, dim]` as a model would embed them in place."""

    def embed(rows):
        return jax.device_put(embeddings[rows], split(on))

    rows = np.arange(len(embeddings)) if own_rows is None else own_rows
    return ShardedCandidates.embedded(embed, rows, on)


@pytest.fixture(scope="module")
def world():
    """Candidates of few values, so that many scores are equal; queries; positives and seen."""
    draw = np.random.default_rng(1)
    candidates = draw.integers(-2, 3, (N_ROWS, DIM)).astype(np.float32)
    query = draw.integers(-2, 3, (40, DIM)).astype(np.float32)
    lists = [draw.integers(0, N_ROWS, n).astype(np.int32) for n in draw.integers(0, 30, 80)]
    is_candidate = draw.random(N_ROWS) < 0.9
    is_candidate[0] = False
    return candidates, query, RaggedRows.of(lists[:40]), RaggedRows.of(lists[40:]), is_candidate


def by_numpy(world, k):
    """Ranks of the positives, and the lists, by sorting all scores; whole numbers are exact."""
    candidates, query, positives, seen, is_candidate = world
    ranks, tops = [], []
    for n, scores in enumerate(query @ candidates.T):
        is_ranked = is_candidate.copy()
        is_ranked[seen.rows[seen.offsets[n] : seen.offsets[n + 1]]] = False
        order = np.lexsort((np.arange(N_ROWS), -scores))
        order = order[is_ranked[order]]
        place = np.full(N_ROWS, len(order) + 1)
        place[order] = np.arange(1, len(order) + 1)
        ranks += place[positives.rows[positives.offsets[n] : positives.offsets[n + 1]]].tolist()
        tops.append(order[:k])
    return ranks, np.array(tops)


@pytest.mark.parametrize("shape", [(1,), (3,), (8,), (2, 4)], ids=str)
def test_ranks_and_lists_are_those_of_sorting_all_scores(world, shape):
    candidates, query, positives, seen, is_candidate = world
    on_devices = placed(candidates, mesh(*shape))
    assert on_devices.table.sharding.num_devices == np.prod(shape)
    found = rank(DotProducts(query, on_devices), positives, seen, is_candidate, 50)
    ranks, top = by_numpy(world, 50)
    assert found.ranks.tolist() == ranks
    np.testing.assert_array_equal(found.top, top)
    scores = np.take_along_axis(query @ candidates.T, top, axis=1)
    np.testing.assert_array_equal(found.top_scores, scores)


def test_no_device_holds_more_than_its_tiles(world):
    on_devices = placed(world[0], mesh(8))
    held = {shard.data.nbytes for shard in on_devices.table.addressable_shards}
    assert tile_rows(N_ROWS) == 256
    assert held == {2 * 256 * DIM * 4}


@pytest.mark.parametrize("shape", [(8,), (2, 4)], ids=str)
def test_rows_scores_and_magnitudes_come_from_where_they_lie(world, shape):
    candidates, query = world[0].copy(), world[1]
    candidates[7, 3] = np.nan
    on_devices = placed(candidates, mesh(*shape))
    rows = np.random.default_rng(2).integers(0, N_ROWS, (300, 40))
    np.testing.assert_array_equal(on_devices[rows], candidates[rows])
    np.testing.assert_array_equal(np.asarray(on_devices), candidates)
    np.testing.assert_array_equal(on_devices.largest_of_rows, np.abs(candidates).max(axis=1))
    np.testing.assert_array_equal(on_devices.scores(query), query @ candidates.T)
    assert on_devices.shape == candidates.shape
    left_out = np.arange(N_ROWS) % 3 == 0
    expected = np.where(left_out[:, None], 0, candidates)
    np.testing.assert_array_equal(np.asarray(on_devices.without(left_out)), expected)


def test_a_model_of_other_rows_is_asked_for_its_own(world):
    own_rows = np.random.default_rng(3).integers(0, N_ROWS, 700)
    on_devices = placed(world[0], mesh(8), own_rows)
    np.testing.assert_array_equal(np.asarray(on_devices), world[0][own_rows])


def test_ranks_among_sampled_items_are_those_of_candidates_in_memory(world):
    candidates, query, positives, seen, is_candidate = world
    args = positives, seen, is_candidate, is_candidate, 20, 5
    here = rank_sampled(DotProducts(query, candidates), *args)
    there = rank_sampled(DotProducts(query, placed(candidates, mesh(8))), *args)
    assert here.ranks.tolist() == there.ranks.tolist()
