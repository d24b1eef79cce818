"""The order of events in an epoch: every event once, at any step, and from few shards."""

import dataclasses

import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.stores import sorted_shard
from recsys.config import TrainConfig
from recsys.data.catalogue import Catalogue
from recsys.data.config import ShuffleConfig
from recsys.data.event_log import EventLog
from recsys.data.hold_out import KeptEvents
from recsys.data.shuffle import BatchPart, Permutation, ShardShuffle, epoch_order
from recsys.models.config import SasRecConfig, TwoTowerConfig
from recsys.tasks.retrieval.training.batches import BatchSource
from recsys.tasks.retrieval.training.sequences import SequenceSource
from recsys.training.prefetch import read_ahead


@given(st.integers(1, 3000), st.integers(0, 2**31), st.integers(0, 100))
def test_every_number_comes_once(n, seed, epoch):
    shuffled = Permutation(n, (seed, 0, epoch))[np.arange(n)]
    assert np.array_equal(np.sort(shuffled), np.arange(n))


def test_a_million_numbers_come_once_in_any_blocks():
    n = 1_000_003
    permutation = Permutation(n, (3, 0, 1))
    whole = permutation[np.arange(n)]
    assert np.array_equal(np.bincount(whole, minlength=n), np.ones(n))
    some = np.random.default_rng(0).integers(0, n, 1000)
    assert np.array_equal(permutation[some], whole[some])


@pytest.mark.parametrize("n", [5, 7, 12])
def test_each_pair_goes_to_each_pair_equally_often(n):
    keys, pair = 100 * n * (n - 1), np.array([0, 1])
    seen = np.zeros((n, n))
    for key in range(keys):
        first, second = Permutation(n, (key, 0, 0))[pair]
        seen[first, second] += 1
    counts = seen[~np.eye(n, dtype=bool)]
    degrees = n * (n - 1) - 1
    chi_square = ((counts - 100) ** 2 / 100).sum()
    assert abs(chi_square - degrees) < 4 * np.sqrt(2 * degrees)


def test_neighbours_go_apart_as_in_a_drawn_permutation():
    n = 200_000
    shuffled = Permutation(n, (1, 0, 0))[np.arange(n)]
    steps = np.histogram((shuffled[1:] - shuffled[:-1]) % n, 100, (0, n))[0]
    expected = (n - 1) / 100
    assert ((steps - expected) ** 2 / expected).sum() < 99 + 6 * np.sqrt(2 * 99)
    # Which numbers a batch holds is even too: the first tenth has as many of each part.
    first = np.histogram(shuffled[: n // 10], 100, (0, n))[0]
    assert ((first - 200) ** 2 / 200).sum() < 99 + 6 * np.sqrt(2 * 99)


def test_epochs_and_seeds_have_different_shuffles():
    n = 10_000
    shuffles = [Permutation(n, key)[np.arange(n)] for key in [(0, 0, 0), (0, 0, 1), (1, 0, 0)]]
    for one in range(3):
        for other in range(one):
            # Two random permutations agree in one place on average.
            assert (shuffles[one] == shuffles[other]).sum() < 10


def test_a_permutation_of_many_billions_stays_in_its_range():
    n = 10**11 + 7
    places = np.concatenate([np.arange(1000), n - 1 - np.arange(1000)])
    shuffled = Permutation(n, (0, 0, 0))[places]
    assert shuffled.min() >= 0
    assert shuffled.max() < n
    assert len(np.unique(shuffled)) == 2000


def test_the_shuffle_of_a_seed_is_the_same_for_good():
    shuffled = Permutation(10, (3, 0, 0))[np.arange(10)]
    assert shuffled.tolist() == [7, 9, 1, 0, 3, 5, 6, 8, 2, 4]


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(sum),
    buffer=st.integers(1, 60),
    seed=st.integers(0, 2**31),
    epoch=st.integers(0, 9),
    data=st.data(),
)
def test_each_entry_comes_once_and_a_run_of_positions_is_a_piece_of_the_shards(
    sizes, buffer, seed, epoch, data
):
    starts = np.cumsum([0, *sizes])
    n = int(starts[-1])
    shuffle = ShardShuffle(starts, buffer, (seed, 3, epoch))
    order = shuffle[np.arange(n)]
    assert sorted(order.tolist()) == list(range(n))
    assert len(shuffle) == n
    # The same again, in any order of asking.
    some = np.array(data.draw(st.lists(st.integers(0, n - 1), max_size=20)), np.int64)
    again = ShardShuffle(starts, buffer, (seed, 3, epoch))
    assert again[some].tolist() == order[some].tolist()
    # A buffer's entries lie side by side, but where a shard, or all of them, end.
    for first in range(0, n, buffer):
        inside = np.sort(order[first : first + buffer])
        breaks = (inside[1:] != inside[:-1] + 1).sum()
        shards = np.unique(np.searchsorted(starts, inside, side="right"))
        assert breaks <= len(shards)


def test_the_default_is_the_even_shuffle_of_all():
    order = epoch_order(np.array([0, 40, 100]), ShuffleConfig(), seed=5, epoch=2)
    expected = Permutation(100, (5, 0, 2))
    assert np.array_equal(order[np.arange(100)], expected[np.arange(100)])


def shard_of(first_user, n_users, per_user, first_item):
    """A shard whose every event is of an item of its own."""
    user = np.repeat(np.arange(n_users), per_user)
    n = len(user)
    columns = (user + first_user, first_item + np.arange(n), np.arange(n))
    return sorted_shard(user, *columns, n_users)


def source_of(n_shards=6, per_user=5, users=4, buffer=30, pooling=None, held=(), **changes):
    n = users * per_user
    shards = [shard_of(1 + s * users, users, per_user, 1 + s * n) for s in range(n_shards)]
    ids = ["", *(f"i{item}" for item in range(n_shards * n))]
    model = TwoTowerConfig(history=4, id_dropout=0.0, new_user_share=0.0)
    if pooling is not None:
        model = model.model_copy(update={"pooling": pooling, "history": 5})
    options = {"batch_size": 8, "uniform_negatives": 0, "epochs": 3, **changes}
    train = TrainConfig(shuffle={"kind": "shards", "buffer": buffer}, **options)
    kept = KeptEvents(EventLog(tuple(shards)), np.array(sorted(held), np.int64))
    kind = BatchSource if pooling is None else SequenceSource
    return kind(kept, Catalogue(ids, ids, ()), model, train, multiple=2)


@settings(max_examples=30, deadline=None)
@given(
    buffer=st.integers(8, 150),
    batch=st.integers(1, 8),
    held=st.sets(st.integers(0, 119), max_size=30),
    seed=st.integers(0, 2**31 - 1),
)
def test_an_epoch_has_every_kept_event_once_but_for_the_partial_batch(buffer, batch, held, seed):
    source = source_of(buffer=buffer, batch_size=batch, held=held, seed=seed)
    kept = set((np.delete(np.arange(120), sorted(held)) + 1).tolist())
    orders = []
    for epoch in range(3):
        steps = range(epoch * source.steps_per_epoch, (epoch + 1) * source.steps_per_epoch)
        items = np.concatenate([source[step]["item_row"] for step in steps]).tolist()
        assert len(items) == len(set(items)) == len(kept) // batch * batch
        assert set(items) <= kept
        orders.append(items)
    assert orders[0] != orders[1] != orders[2]


@pytest.mark.parametrize("pooling", [None, SasRecConfig()], ids=["towers", "sequences"])
@pytest.mark.parametrize("first_step", [0, 5, 17, 30])
def test_a_run_goes_on_at_any_step_with_the_same_batches_in_parts_too(pooling, first_step):
    source = source_of(pooling=pooling, uniform_negatives=4)
    parts = [dataclasses.replace(source, part=BatchPart((n,), 2)) for n in range(2)]
    read = [[batch for (batch,) in read_ahead(s, first_step)] for s in (source, *parts)]
    assert len(read[0]) == len(source) - first_step
    for step, batch, *halves in zip(range(first_step, len(source)), *read, strict=True):
        for name, values in source[step].items():
            np.testing.assert_array_equal(batch[name], values)
            np.testing.assert_array_equal(np.concatenate([h[name] for h in halves]), values)


def test_rows_of_sequences_come_once_an_epoch():
    source = source_of(pooling=SasRecConfig())
    for epoch in range(3):
        steps = range(epoch * source.steps_per_epoch, (epoch + 1) * source.steps_per_epoch)
        items = np.concatenate([source[step]["item_row"] for step in steps]).tolist()
        assert len(items) == len(set(items)) == source.steps_per_epoch * source.batch_size
        assert len(items) > 120 - source.new - source.batch_size


@pytest.mark.parametrize("pooling", [None, SasRecConfig()], ids=["towers", "sequences"])
def test_consecutive_batches_read_the_rows_of_few_shards_side_by_side(pooling):
    """40 shards of 20 events; a buffer holds 4 batches."""
    source = source_of(n_shards=40, buffer=32, pooling=pooling)
    even = TrainConfig(**{**source.train.model_dump(), "shuffle": ShuffleConfig()})
    evenly = dataclasses.replace(source, train=even)

    def shards_of(source):
        """The shards that each eight batches in a row read."""
        items = [source[step]["item_row"] for step in range(source.steps_per_epoch)]
        runs = [np.concatenate(items[first : first + 8]) for first in range(len(items) - 7)]
        return np.array([len(np.unique((run - 1) // 20)) for run in runs])

    # Three buffers at the most, 96 events: of 6 shards, one more where the turn is; a row of
    # sequences may begin in one shard and end in the next.
    assert shards_of(source).max() <= (7 if pooling is None else 11)
    assert shards_of(source).mean() < 0.6 * shards_of(evenly).mean()


def test_a_buffer_smaller_than_a_batch_is_refused():
    shuffle = {"kind": "shards", "buffer": 100}
    with pytest.raises(pydantic.ValidationError, match=r"shuffle\.buffer must be at least"):
        TrainConfig(shuffle=shuffle, batch_size=128)
