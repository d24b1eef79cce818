"""Shard by shard, shuffled within a buffer: every event once, at any step, from few shards."""

import dataclasses

import numpy as np
import pydantic
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from benchmarks.stores import sorted_shard
from recsys.config import TrainConfig
from recsys.data.batch_part import BatchPart
from recsys.data.catalogue import Catalogue
from recsys.data.config import ShuffleConfig
from recsys.data.event_log import EventLog
from recsys.data.kept_events import KeptEvents
from recsys.data.shuffle import Permutation, ShardShuffle, epoch_order
from recsys.models.config import SasRecConfig, TwoTowerConfig
from recsys.tasks.retrieval.training.batches import BatchSource
from recsys.tasks.retrieval.training.sequences import SequenceSource
from recsys.training.prefetch import read_ahead


@given(
    sizes=st.lists(st.integers(0, 30), min_size=1, max_size=8).filter(sum),
    buffer=st.integers(1, 60),
    seed=st.integers(0, 2**31),
    epoch=st.integers(0, 9),
    data=st.data(),
)
def test_each_entry_comes_once_and_a_run_of_places_is_a_piece_of_the_shards(
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
    """Of 40 shards of 20 events; a buffer has those of 4 batches."""
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
