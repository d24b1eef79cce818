"""Hard negatives: lists against brute force, and draws whose probability is known."""

import numpy as np
import pytest
from batch_sources import N_ITEMS, included, make, small_source

from recsys.config import HardNegativesConfig
from recsys.errors import RecsysError
from recsys.tasks.retrieval.training import epoch_work as hard_negatives
from recsys.tasks.retrieval.training.epoch_work import mine_hard_negatives
from recsys.tasks.retrieval.training.sampling import HardNegatives


@pytest.fixture(name="source")
def _source():
    return small_source()


def brute_force(vectors, is_item, config):
    """Each item's list, from all cosines in float64, by a loop."""
    unit = vectors / np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-30)
    lists = {}
    for row in np.flatnonzero(is_item):
        others = [other for other in np.flatnonzero(is_item) if other != row]
        others.sort(key=lambda other, row=row: (-float(unit[row] @ unit[other]), other))
        near = others[config.skip : config.skip + config.pool]
        lists[row] = [other for other in near if unit[row] @ unit[other] <= config.guard]
    return lists


@pytest.mark.parametrize(("n", "dim"), [(30, 4), (700, 8)])
@pytest.mark.parametrize("guard", [1.0, 0.8])
@pytest.mark.parametrize("block", [1, 50_000])
def test_lists_are_those_of_brute_force(monkeypatch, n, dim, guard, block):
    monkeypatch.setattr(hard_negatives, "_BLOCK_SCORES", block * 5)
    rng = np.random.default_rng(1)
    vectors = rng.normal(size=(n, dim))
    is_item = rng.random(n) > 0.1
    is_item[0] = False
    config = HardNegativesConfig(count=8, pool=12, skip=3, guard=guard)
    found = mine_hard_negatives(vectors.astype(np.float32), is_item, config)
    expected = brute_force(vectors, is_item, config)
    for row in range(n):
        assert found.rows[row, : found.lengths[row]].tolist() == expected.get(row, [])
    assert found.rows.dtype == np.int32
    assert guard == 1.0 or found.lengths[is_item].min() < 12
    assert not found.rows[~is_item].any()


def test_a_catalogue_too_small_for_the_first_few_gives_no_lists():
    config = HardNegativesConfig(count=8, pool=3, skip=5)
    found = mine_hard_negatives(np.eye(4), np.array([False, True, True, True]), config)
    assert not found.lengths.any()
    assert found.items.tolist() == [1, 2, 3]


@pytest.fixture
def lists():
    """Lists of all lengths from 0 to 4 over 20 item rows, row 0 none."""
    rng = np.random.default_rng(2)
    lengths = rng.integers(0, 5, N_ITEMS).astype(np.int32)
    lengths[0] = 0
    rows = np.zeros((N_ITEMS, 4), np.int32)
    for row, length in enumerate(lengths):
        rows[row, :length] = rng.choice(np.arange(1, N_ITEMS), length, replace=False)
    return HardNegatives(rows, lengths, np.arange(1, N_ITEMS, dtype=np.int32))


def test_draws_come_as_often_as_their_probability_says(lists):
    rng = np.random.default_rng(3)
    shares = rng.random(N_ITEMS)
    shares[0] = 0
    shares /= shares.sum()
    expected = np.zeros(N_ITEMS)
    for row, share in enumerate(shares):
        close = lists.rows[row, : lists.lengths[row]]
        close = close if len(close) else np.arange(1, N_ITEMS)
        expected[close] += share / len(close)
    probability = lists.probability(shares)
    assert np.allclose(probability, expected, atol=1e-15)
    assert probability.sum() == pytest.approx(1)
    n = 200_000
    positives = rng.choice(N_ITEMS, n, p=shares)
    counts = np.bincount(lists.draw(positives, n, rng), minlength=N_ITEMS)
    possible = expected > 0
    squares = (counts - n * expected)[possible] ** 2 / (n * expected[possible])
    # Chi-square of 18 degrees of freedom: 50 is passed once in 14,000 times.
    assert squares.sum() < 50
    assert not counts[~possible].any()


@pytest.mark.parametrize("groups", [1, 2])
def test_a_group_ends_with_a_close_item_of_each_of_its_first_positives(source, lists, groups):
    settings = {
        "uniform_negatives": 4,
        "hard_negatives": HardNegativesConfig(count=6),
        "negative_groups": groups,
    }
    hard = make(source.events.log, source.catalogue, hard=lists, **settings)
    for step in range(20):
        batch = hard[step]
        assert len(batch["item_row"]) == hard.n_candidates == 20
        for group in np.split(batch["item_row"], groups):
            n, first = 6 // groups, 14 // groups
            for positive, drawn in zip(group[:n], group[first:], strict=True):
                close = lists.rows[positive, : lists.lengths[positive]]
                assert drawn in close or (not len(close) and drawn > 0)
    counts = np.bincount(np.asarray(source.events.log.item_row), minlength=N_ITEMS)
    shares = counts / counts.sum()
    h = lists.probability(shares)
    draws = [n // groups for n in (10, 4, 6)]
    share = [
        included(*zip((shares[r], 1 / 19, h[r]), draws, strict=True)) for r in batch["item_row"]
    ]
    assert np.allclose(batch["log_q"], np.log(share), rtol=1e-6)


def test_before_there_are_lists_as_many_items_are_drawn_evenly(source):
    settings = {"hard_negatives": HardNegativesConfig(count=30)}
    none_yet = make(source.events.log, source.catalogue, **settings)
    drawn = np.concatenate([none_yet[step]["item_row"][10:] for step in range(20)])
    assert len(drawn) == 600
    assert set(drawn) == set(range(1, N_ITEMS))
    items = np.asarray(source.events.log.item_row)
    batch = none_yet[0]
    share = [included(((items == r).mean(), 10), (1 / 19, 30)) for r in batch["item_row"]]
    assert np.allclose(batch["log_q"], np.log(share), rtol=1e-6)


def test_new_lists_change_the_hard_negatives_alone(source, lists):
    settings = {"hard_negatives": HardNegativesConfig(count=10), "id_dropout": 0.3}
    before = make(source.events.log, source.catalogue, **settings)
    after = before.with_hard_negatives(lists)
    one, two = before[3], after[3]
    assert np.array_equal(one["user_row"], two["user_row"])
    assert np.array_equal(one["item_row"][:10], two["item_row"][:10])
    assert not np.array_equal(one["item_row"][10:], two["item_row"][10:])


def test_lists_come_back_from_their_file(tmp_path, lists):
    path = tmp_path / "hard.npz"
    lists.save(path)
    back = HardNegatives.load(path, N_ITEMS)
    for name in ("rows", "lengths", "items"):
        assert np.array_equal(getattr(back, name), getattr(lists, name))
    assert [file.name for file in tmp_path.iterdir()] == ["hard.npz"]


@pytest.mark.parametrize("damage", ["missing", "cut", "flipped", "of other items"])
def test_a_file_that_is_no_list_of_this_catalogue_is_refused(tmp_path, lists, damage):
    path = tmp_path / "hard.npz"
    lists.save(path)
    whole = bytearray(path.read_bytes())
    if damage == "missing":
        path.unlink()
    elif damage == "cut":
        path.write_bytes(whole[: len(whole) // 2])
    elif damage == "flipped":
        whole[300] ^= 1
        path.write_bytes(whole)
    with pytest.raises(RecsysError, match="R327"):
        HardNegatives.load(path, N_ITEMS + (damage == "of other items"))
