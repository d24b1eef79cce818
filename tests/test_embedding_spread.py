"""Where rows lie: each place once, neighbours apart, alike on every mesh."""

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from recsys.embedding import spread

DEVICES = [n for n in range(1, 257) if spread.SLOTS % n == 0]


@pytest.mark.parametrize("rows", [1, 3840, 3841, 100_000])
def test_every_place_holds_one_row(rows):
    padded = spread.padded_rows(rows, 8)
    assert rows <= padded < rows + spread.SLOTS
    places = spread.places(np.arange(padded), padded)
    assert np.array_equal(np.sort(places), np.arange(padded))
    assert np.array_equal(spread.rows_at(places, padded), np.arange(padded))


@given(st.integers(1, 2**31 - 1 - 3840), st.data())
def test_places_and_rows_are_inverse_in_32_bits_too(rows, data):
    padded = spread.padded_rows(rows, 1)
    row = data.draw(st.integers(0, padded - 1))
    place = spread.places(row, padded)
    assert 0 <= place < padded
    assert spread.rows_at(place, padded) == row
    assert spread.places(np.array([row], np.int32), padded) == place
    assert spread.rows_at(np.array([place], np.int32), padded) == row


def devices_of(n_rows, n_devices):
    padded = spread.padded_rows(n_rows, n_devices)
    return spread.places(np.arange(n_rows), padded) // (padded // n_devices)


@pytest.mark.parametrize("n", DEVICES)
def test_the_first_rows_fall_on_all_devices_alike(n):
    """One device gets 2 of the first n rows at most, and is never 8 rows from its share."""
    device = devices_of(spread.SLOTS, n)
    counts = np.cumsum(device[:, None] == np.arange(n), axis=0)
    share = (np.arange(spread.SLOTS)[:, None] + 1) / n
    assert counts[n - 1].max() <= 2
    assert np.abs(counts - share).max() < 8
    assert np.array_equal(counts[-1], np.full(n, spread.SLOTS // n))


@pytest.mark.parametrize("n", [2, 8, 240])
def test_no_run_of_rows_is_on_one_device(n):
    """Also rows far into a table, and also 64 neighbours of them."""
    device = devices_of(50_000, n)
    for start in (0, 12_345, 49_936):
        most = np.bincount(device[start : start + 64], minlength=n).max()
        assert most <= 64 / n + 4


@pytest.mark.parametrize("rows", [7, 5000, 123_456])
def test_a_row_keeps_its_place_on_every_mesh_that_divides_the_slots(rows):
    assert {spread.padded_rows(rows, n) for n in DEVICES} == {spread.padded_rows(rows, 1)}


def test_other_numbers_of_devices_get_equal_shards_too():
    padded = spread.padded_rows(5000, 7)
    assert padded % 7 == 0
    places = spread.places(np.arange(5000), padded)
    assert len(set(places.tolist())) == 5000
    assert np.bincount(places // (padded // 7)).max() < 5000 / 7 * 1.05
