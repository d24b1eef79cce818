"""Where rows lie: each place once, neighbours apart, alike on every mesh."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.embedding import sharding

DEVICES = [n for n in range(1, 257) if sharding.SLOTS % n == 0]


@pytest.mark.parametrize("rows", [1, 3840, 3841, 100_000])
def test_every_position_holds_one_row(rows):
    padded = sharding.padded_rows(rows, 8)
    assert rows <= padded < rows + sharding.SLOTS
    places = sharding.physical_rows(np.arange(padded), padded)
    assert np.array_equal(np.sort(places), np.arange(padded))
    assert np.array_equal(sharding.logical_rows(places, padded), np.arange(padded))


@given(st.integers(1, 2**31 - 1 - 3840), st.data())
def test_positions_and_rows_are_inverse_in_32_bits_too(rows, data):
    padded = sharding.padded_rows(rows, 1)
    row = data.draw(st.integers(0, padded - 1))
    place = sharding.physical_rows(row, padded)
    assert 0 <= place < padded
    assert sharding.logical_rows(place, padded) == row
    assert sharding.physical_rows(np.array([row], np.int32), padded) == place
    assert sharding.logical_rows(np.array([place], np.int32), padded) == row


def devices_of(n_rows, n_devices):
    padded = sharding.padded_rows(n_rows, n_devices)
    return sharding.physical_rows(np.arange(n_rows), padded) // (padded // n_devices)


@pytest.mark.parametrize("n", DEVICES)
def test_the_first_rows_fall_on_all_devices_alike(n):
    """One device gets 2 of the first n rows at most, and is never 8 rows from its share."""
    device = devices_of(sharding.SLOTS, n)
    counts = np.cumsum(device[:, None] == np.arange(n), axis=0)
    share = (np.arange(sharding.SLOTS)[:, None] + 1) / n
    assert counts[n - 1].max() <= 2
    assert np.abs(counts - share).max() < 8
    assert np.array_equal(counts[-1], np.full(n, sharding.SLOTS // n))


@pytest.mark.parametrize("rows", [7, 5000, 123_456])
def test_a_row_keeps_its_position_on_every_mesh_that_divides_the_slots(rows):
    assert {sharding.padded_rows(rows, n) for n in DEVICES} == {sharding.padded_rows(rows, 1)}


def test_other_numbers_of_devices_get_equal_shards_too():
    padded = sharding.padded_rows(5000, 7)
    assert padded % 7 == 0
    places = sharding.physical_rows(np.arange(5000), padded)
    assert len(set(places.tolist())) == 5000
    assert np.bincount(places // (padded // 7)).max() < 5000 / 7 * 1.05
