"""Candidates on the devices of a mesh equal an array in memory."""

import jax
import numpy as np
import pytest
from jax.sharding import Mesh

from recsys.ragged import RaggedRows
from recsys.tasks.retrieval.judging.ranking import rank_sampled
from recsys.tasks.retrieval.judging.scores import DotProducts
from recsys.tasks.retrieval.judging.sharded_candidates import ShardedCandidates, split, tile_rows

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
