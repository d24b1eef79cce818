"""Variables that are written slice by slice, read back by TensorFlow's own loader."""

from __future__ import annotations

import resource

import numpy as np
import pytest

from recsys.errors import RecsysError
from recsys.models.saved_arrays import SavedRows

tf = pytest.importorskip("tensorflow")
from recsys.bundles import row_slices, variables  # noqa: E402
from recsys.bundles.variables import fill, filled_later  # noqa: E402


class Reader(tf.Module):
    """Gives back all that it holds."""

    def __init__(self, **variables):
        super().__init__()
        self.held = variables
        self.small = tf.Variable([b"text", b"\xff\0"], trainable=False)

    @tf.function(input_signature=[])
    def read(self):
        # As tensors: nothing here knows how many rows there are.
        return {name: tf.identity(value) for name, value in self.held.items()}


def saved(folder, **values):
    """Returns what a saved model of `values` answers."""
    variables = {name: filled_later(*value) for name, value in values.items()}
    reader = Reader(**variables)
    tf.saved_model.save(reader, str(folder), signatures={"read": reader.read})
    fill(folder, reader.variables)
    loaded = tf.saved_model.load(str(folder))
    assert loaded.small.numpy().tolist() == [b"text", b"\xff\0"]
    return {name: value.numpy() for name, value in loaded.signatures["read"]().items()}


@pytest.fixture
def slices_of_100_bytes(monkeypatch):
    monkeypatch.setattr(row_slices, "SLICE_BYTES", 100)


@pytest.mark.parametrize("rows", [0, 1, 8, 9, 24, 100])
@pytest.mark.usefixtures("slices_of_100_bytes")
def test_rows_come_back_as_they_were(tmp_path, rows):
    rng = np.random.default_rng(rows)
    table = rng.standard_normal((rows, 3), np.float32)
    np.save(tmp_path / "table.npy", table)
    counts = rng.integers(-(2**60), 2**60, rows)
    ends = [0, rows // 3, rows // 2, rows]
    for part in range(3):
        np.save(tmp_path / f"{part}.npy", table[ends[part] : ends[part + 1]])
    parts = SavedRows([np.load(tmp_path / f"{part}.npy", mmap_mode="r") for part in range(3)])
    found = saved(
        tmp_path / "model",
        mapped=(np.load(tmp_path / "table.npy", mmap_mode="r"), tf.float32),
        parts=(parts, tf.float32),
        held=(table, tf.float32),
        turned=(np.asfortranarray(table), tf.float32),
        halves=(table, tf.bfloat16),
        counts=(counts, tf.int64),
        flags=(counts > 0, tf.bool),
    )
    for name in ("mapped", "parts", "held", "turned"):
        np.testing.assert_array_equal(found[name], table)
    np.testing.assert_array_equal(found["halves"], tf.cast(table, tf.bfloat16).numpy())
    np.testing.assert_array_equal(found["counts"], counts)
    np.testing.assert_array_equal(found["flags"], counts > 0)
    assert not [
        path for path in (tmp_path / "model" / "variables").iterdir() if "-rest" in str(path)
    ]


@pytest.mark.usefixtures("slices_of_100_bytes")
def test_progress_ends_with_all_bytes(tmp_path):
    reader = Reader(a=filled_later(np.ones((50, 3), np.float32), tf.float32))
    tf.saved_model.save(reader, str(tmp_path), signatures={"read": reader.read})
    told = []
    fill(tmp_path, reader.variables, lambda *progress: told.append(progress))
    assert told[-1] == (600, 600)
    assert len(told) == 2  # Seven slices of eight rows, in files of four.


def test_a_file_that_becomes_shorter_is_an_error(tmp_path):
    np.save(tmp_path / "table.npy", np.ones((100, 3), np.float32))
    mapped = np.load(tmp_path / "table.npy", mmap_mode="r")
    reader = Reader(a=filled_later(mapped, tf.float32))
    tf.saved_model.save(reader, str(tmp_path / "model"), signatures={"read": reader.read})
    with (tmp_path / "table.npy").open("rb+") as file:
        file.truncate(700)
    with pytest.raises(OSError, match="shorter") as caught:
        fill(tmp_path / "model", reader.variables)
    assert caught.value.filename == str(tmp_path / "table.npy")


def test_a_full_disk_is_an_error_with_a_cure(tmp_path):
    reader = Reader(a=filled_later(np.ones((10_000, 3), np.float32), tf.float32))
    tf.saved_model.save(reader, str(tmp_path), signatures={"read": reader.read})
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, hard))
    try:
        with pytest.raises(RecsysError, match=r"R526.*Free some space"):
            fill(tmp_path, reader.variables)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_only_a_large_constant_waits_for_its_rows():
    large = np.zeros(variables.SMALL_BYTES // 4 + 1, np.float32)
    assert variables.constant(large, tf.float32).shape.as_list() == [None]
    assert variables.constant(large[1:], tf.float32).shape.as_list() == [len(large) - 1]
    assert variables.constant(large[:5], tf.int32).dtype == tf.int32
