"""The feed: batches in order on the devices, its position, its end, and its errors."""

import gc
import weakref

import jax
import numpy as np
import pytest
from batch_sources import again, small_source
from jax.sharding import NamedSharding, PartitionSpec

from recsys.data.shuffle import held_part
from recsys.embedding import (
    TableConfig,
    activate,
    device_mesh,
    table_layout,
)
from recsys.tasks.retrieval.training.batches import BatchSource
from recsys.training.prefetch import BatchIterator, part_of_process

RANDOM = {"id_dropout": 0.3, "new_user_share": 0.3, "uniform_negatives": 6, "known_positives": 2}


@pytest.fixture(name="source")
def _source():
    return small_source()


def assert_batch(found, expected):
    assert found.keys() == expected.keys()
    for name, values in expected.items():
        assert isinstance(found[name], jax.Array)
        assert found[name].dtype == values.dtype
        assert np.array_equal(found[name], values)


@pytest.mark.parametrize("first_step", [0, 7, 10, 19, 20])
def test_batches_come_in_order_from_any_step_to_the_end(source, first_step):
    random = again(source, **RANDOM)
    with BatchIterator(random, first_step) as feed:
        steps = []
        for (batch,) in feed:
            steps.append(feed.step - 1)
            assert_batch(batch, random[feed.step - 1])
    assert steps == list(range(first_step, 20))
    assert feed.waited_s > 0 or first_step == 20


def test_the_position_is_that_of_the_batches_taken_not_of_those_read_ahead(source):
    with BatchIterator(source) as feed:
        batches = iter(feed)
        assert feed.step == 0
        for _ in range(13):
            next(batches)
        assert feed.step == 13
        (expected,) = next(batches)
    with BatchIterator(source, 13) as feed:
        (found,) = next(iter(feed))
    assert_batch(found, {name: np.asarray(x) for name, x in expected.items()})


def test_what_stops_early_leaves_no_thread(source):
    feed = BatchIterator(source)

    def take_one_and_fail():
        with feed:
            next(iter(feed))
            raise KeyError("mine")

    with pytest.raises(KeyError, match="mine"):
        take_one_and_fail()
    feed.close()


def test_a_feed_that_is_dropped_leaves_no_thread(source):
    feed = BatchIterator(source)
    next(iter(feed))
    gone = weakref.ref(feed)
    del feed
    gc.collect()
    assert gone() is None


class Broken(BatchSource):
    """A source whose file goes away after two batches."""

    def batches(self, first, end):
        if end > 2:
            raise OSError("the disk went away")
        return super().batches(first, end)


def test_an_error_of_the_reader_comes_to_the_taker_with_its_words(source, monkeypatch):
    monkeypatch.setattr("recsys.training.prefetch._BLOCK_EXAMPLES", 10)
    broken = Broken(source.events, source.catalogue, source.model, source.train)
    feed = BatchIterator(broken)
    batches = iter(feed)
    next(batches), next(batches)
    with pytest.raises(OSError, match="the disk went away"):
        next(batches)
    assert feed.step == 2


@pytest.mark.parametrize("n_model", [None, 2], ids=["one axis", "two axes"])
def test_each_device_gets_its_rows(source, n_model):
    wide = again(source, batch_size=16, uniform_negatives=8)
    layout = table_layout([TableConfig("t", 64, 8)], mesh=device_mesh(model=n_model))
    activate(layout)
    mesh = layout.device_mesh.backend_mesh
    with BatchIterator(wide) as feed:
        (batch,) = next(iter(feed))
    for name, values in wide[0].items():
        expected = NamedSharding(mesh, PartitionSpec(mesh.axis_names[0]))
        assert batch[name].sharding.is_equivalent_to(expected, values.ndim)
        assert len(batch[name].sharding.device_set) == 8
        n = len(values) // mesh.shape[mesh.axis_names[0]]
        for shard in batch[name].addressable_shards:
            assert shard.data.shape[0] == n
        assert np.array_equal(batch[name], values)


def test_the_part_of_a_process_is_what_its_devices_hold():
    """As seen by the one of two processes whose devices lie second and fourth."""
    devices = jax.devices()
    mesh = jax.sharding.Mesh(np.array(devices[:4]), ("x",))
    sharding = NamedSharding(mesh, PartitionSpec("x"))

    class Half:
        def addressable_devices_indices_map(self, shape):
            every = sharding.addressable_devices_indices_map(shape)
            return {device: every[device] for device in (devices[3], devices[1])}

    assert held_part(Half(), 4).rows(12).tolist() == [3, 4, 5, 9, 10, 11]
    assert held_part(sharding, 4).is_whole


@pytest.mark.parametrize("n_model", [None, 2], ids=["one axis", "two axes"])
def test_one_process_builds_whole_batches(n_model):
    assert part_of_process(device_mesh(model=n_model)).is_whole
