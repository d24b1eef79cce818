"""Rows in parts: brought into order by the devices, and read as one array."""

import itertools

import jax
import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from recsys.embedding import sharding as module
from recsys.embedding.saved_arrays import SavedRows, open_variable
from recsys.embedding.sharding import (
    in_ranges,
    logical_rows,
    padded_rows,
    range_of,
)


@pytest.mark.parametrize(
    ("shape", "axes", "rows"),
    [
        ((8,), ("devices",), 20_000),
        ((2,), ("devices",), 9_001),
        ((7,), ("devices",), 11_525),
        ((2, 4), ("data", "model"), 16_000),
        ((8,), ("devices",), 9),
    ],
    ids=["8", "2", "7", "2×4", "few rows"],
)
def test_each_device_gets_its_range_of_the_rows_bit_for_bit(shape, axes, rows, monkeypatch):
    monkeypatch.setattr(module, "_CHUNK_BYTES", 1)  # As few rows at a time as there may be.
    n, width = shape[-1], 3
    values = np.random.default_rng(0).normal(size=(rows, width)).astype(np.float32)
    values[::5, 0], values[1::5, 1] = -0.0, 1e-42  # What arithmetic might lose.
    n_places = padded_rows(rows, n)
    row = logical_rows(np.arange(n_places), n_places)
    lying = np.where(row[:, None] < rows, values[np.minimum(row, rows - 1)], 7).astype(np.float32)
    devices = np.array(jax.devices()[: int(np.prod(shape))]).reshape(shape)
    sharding = NamedSharding(Mesh(devices, axes), PartitionSpec(axes[-1], None))
    placed = jax.device_put(lying, sharding)
    ranges = [np.zeros((0, width), np.float32) for _ in range(n)]
    for before, chunk in in_ranges(placed, rows):
        for part, more in enumerate(np.asarray(chunk).reshape(n, -1, width)):
            first, end = range_of(rows, part, n)
            ranges[part] = np.concatenate([ranges[part], more[: max(0, end - first - before)]])
        shard = chunk.addressable_shards[0].data
        assert shard.shape[0] == len(chunk) // n
    assert np.concatenate(ranges).tobytes() == values.tobytes()


def test_the_ranges_hold_each_row_once():
    ends = [range_of(2**31 - 1, part, 12) for part in range(12)]
    assert ends[0][0] == 0
    assert ends[-1][1] == 2**31 - 1
    assert all(before[1] == after[0] for before, after in itertools.pairwise(ends))


@given(
    lengths=st.lists(st.integers(0, 6), min_size=1, max_size=5).filter(sum),
    draw=st.data(),
)
def test_parts_are_read_as_one_array(lengths, draw):
    whole = np.arange(2 * sum(lengths)).reshape(-1, 2)
    rows = SavedRows(np.split(whole, np.cumsum(lengths)[:-1]))
    assert (rows.shape, rows.dtype, len(rows), rows.size) == (
        whole.shape,
        whole.dtype,
        len(whole),
        whole.size,
    )
    chosen = draw.draw(st.lists(st.integers(0, len(whole) - 1)))
    chosen = np.array(chosen, np.int64)
    assert np.array_equal(rows[chosen], whole[chosen])
    part = draw.draw(st.slices(len(whole)).filter(lambda part: (part.step or 1) > 0))
    assert np.array_equal(rows[part], whole[part])
    assert np.array_equal(np.asarray(rows), whole)
    start, stop, _ = part.indices(len(whole))
    pieces = [array[low:high] for array, low, high in rows.pieces(start, stop)]
    assert np.array_equal(np.concatenate([whole[:0], *pieces]), whole[start : max(start, stop)])


def test_parts_of_several_widths_are_refused(tmp_path):
    (tmp_path / "4").mkdir()
    for k in range(2):
        np.save(tmp_path / "4" / f"shard-{k}-of-2.npy", np.zeros((3, 2 + k)))
    with pytest.raises(ValueError, match="several widths"):
        open_variable(tmp_path / "4")
    (tmp_path / "4" / "shard-1-of-2.npy").unlink()
    with pytest.raises(OSError, match="shard-1-of-2"):
        open_variable(tmp_path / "4")
