"""The parts of a batch that processes build, joined, equal the batch to the bit."""

import dataclasses

import numpy as np
import pytest
from batch_sources import N_ITEMS, N_USERS, make, make_log, small_source
from hypothesis import given
from hypothesis import strategies as st

from recsys.config import TrainConfig
from recsys.data.catalogue import FeatureBags
from recsys.data.hold_out import KeptEvents
from recsys.data.shuffle import BatchPart
from recsys.models.config import SasRecConfig, TwoTowerConfig
from recsys.tasks.batch_parts import ReadCount
from recsys.tasks.retrieval.training.sequences import SequenceSource
from recsys.training.prefetch import read_ahead

SPLITS = [(2, 1), (2, 2), (4, 1), (4, 2)]
"""Processes, and devices of each."""

DROPPED = {"id_dropout": 0.3, "history_dropout": 0.2, "new_user_share": 0.3}
CASES = {
    "as shipped": {"uniform_negatives": 16},
    "dropped and known": {**DROPPED, "uniform_negatives": 8, "known_positives": 3},
    "negatives by popularity": {**DROPPED, "uniform_negatives": 24, "negative_power": 0.5},
    "weights of users and times": {**DROPPED, "user_balance": 0.5, "half_life": 0.3},
    "whole catalogue": {**DROPPED, "loss": "full_softmax", "uniform_negatives": 0},
    "others": {**DROPPED, "history_of": "others", "known_positives": 5},
    "features of histories": {"history_tower": True, "widths": (), "pooling": SasRecConfig()},
    "shard by shard": {**DROPPED, "shuffle": {"kind": "shards", "buffer": 40}},
    "in groups": {"uniform_negatives": 16, "negative_groups": 4},
}


def a_log():
    rng = np.random.default_rng(0)
    user, item = rng.integers(1, N_USERS, 103), rng.integers(1, N_ITEMS, 103)
    return make_log(user, item, rng.integers(0, 60, 103), rng.random(103).astype(np.float32))


def source_of(case):
    settings = {**CASES[case], "batch_size": 16}
    bags = np.random.default_rng(2).integers(0, 9, (N_USERS, 2)).astype(np.int32)
    source = make(a_log(), small_source().catalogue, [3, 40, 70], multiple=8, **settings)
    return dataclasses.replace(source, user_features=(FeatureBags("segment", 9, bags),))


def sequences(**changes):
    model = TwoTowerConfig(pooling=SasRecConfig(), history=6, **DROPPED)
    train = TrainConfig(batch_size=48, epochs=2, seed=3, known_positives=2, **changes)
    kept = KeptEvents(a_log(), np.array([3, 40, 70]))
    return SequenceSource(kept, small_source().catalogue, model, train, multiple=8)


def parts_of(source, processes, devices):
    """The sources of the processes, each of which has devices side by side."""
    n = processes * devices
    shards = [tuple(range(first, first + devices)) for first in range(0, n, devices)]
    return [dataclasses.replace(source, part=BatchPart(own, n)) for own in shards]


def assert_parts_are_the_batch(source, processes, devices):
    parts = parts_of(source, processes, devices)
    for step in (0, 2, len(source) - 1):
        whole, read = source[step], [part[step] for part in parts]
        for name, values in whole.items():
            together = np.concatenate([batch[name] for batch in read])
            assert {len(batch[name]) for batch in read} == {len(values) // processes}
            assert together.dtype == values.dtype
            np.testing.assert_array_equal(together, values)
        assert all(batch.keys() == whole.keys() for batch in read)


@pytest.mark.parametrize(("processes", "devices"), SPLITS)
@pytest.mark.parametrize("case", CASES)
def test_the_parts_together_are_the_batch(case, processes, devices):
    assert_parts_are_the_batch(source_of(case), processes, devices)


@pytest.mark.parametrize(("processes", "devices"), SPLITS)
@pytest.mark.parametrize(("negatives", "groups"), [(0, 1), (8, 1), (8, 2)])
def test_the_parts_of_sequences_together_are_the_batch(processes, devices, negatives, groups):
    source = sequences(uniform_negatives=negatives, user_balance=0.5, negative_groups=groups)
    assert_parts_are_the_batch(source, processes, devices)


def bytes_of(source):
    own = dataclasses.replace(source, reads=ReadCount())
    assert own.bytes_per_epoch == 0
    own.batches(0, 2)
    return own.bytes_per_epoch


@pytest.mark.parametrize("case", CASES)
def test_processes_read_nothing_twice(case):
    source = source_of(case)
    alone = bytes_of(source)
    assert sum(bytes_of(part) for part in parts_of(source, 4, 1)) == alone
    assert alone >= source.steps_per_epoch * source.batch_size * 4 * (2 + source.model.history)


def test_with_a_group_for_each_process_each_reads_as_much():
    """Its candidates are its own examples'; without groups the first processes read them all."""
    in_groups, together = (
        {bytes_of(part) for part in parts_of(source_of(case), 4, 1)}
        for case in ("in groups", "as shipped")
    )
    assert in_groups == {bytes_of(source_of("in groups")) // 4}
    assert len(together) == 2


@pytest.mark.parametrize("options", [{"uniform_negatives": 8}, {"loss": "full_softmax"}])
def test_processes_read_nothing_of_sequences_twice(options):
    source = sequences(**options)
    assert sum(bytes_of(part) for part in parts_of(source, 4, 1)) == bytes_of(source)


def test_a_part_read_ahead_in_blocks_is_that_of_the_batch_alone():
    for part in parts_of(source_of("dropped and known"), 2, 2):
        for step, (batch,) in enumerate(read_ahead(part, 1), start=1):
            for name, values in part[step].items():
                np.testing.assert_array_equal(batch[name], values)


@st.composite
def parts(draw):
    n_shards = draw(st.integers(1, 9))
    shards = draw(st.sets(st.integers(0, n_shards - 1), min_size=1))
    return BatchPart(tuple(sorted(shards)), n_shards)


@given(
    part=parts(),
    of_shard=st.integers(1, 4),
    width=st.lists(st.integers(0, 5), max_size=2),
    before=st.integers(0, 3),
    seed=st.integers(0, 2**32),
)
def test_the_numbers_of_a_part_are_rows_of_those_of_the_whole(part, of_shard, width, before, seed):
    """Also after an odd number of draws, which leaves the half of a step of PCG64."""
    n = of_shard * part.n_shards
    whole, own = np.random.default_rng(seed), np.random.default_rng(seed)
    for random in (whole, own):
        random.random(before, np.float32)
    rows = part.rows(n)
    assert len(rows) == part.size(n)
    numbers = whole.random((n, *width), np.float32)[rows]
    np.testing.assert_array_equal(part.uniform((len(rows), *width), own), numbers)
    # The next numbers are the same, too.
    np.testing.assert_array_equal(own.random(3), whole.random(3))
    np.testing.assert_array_equal(own.random(3, np.float32), whole.random(3, np.float32))
