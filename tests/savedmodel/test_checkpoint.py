"""Variables that are written slice by slice, read back by TensorFlow's own loader."""

from __future__ import annotations

import ctypes
import gc
import resource
import shutil
import tempfile
from pathlib import Path

import numpy as np
import pytest

from recsys.embedding.saved_arrays import SavedRows
from recsys.errors import RecsysError

tf = pytest.importorskip("tensorflow")
from recsys.savedmodel import row_slices, variables  # noqa: E402
from recsys.savedmodel.signatures import load_saved_model  # noqa: E402
from recsys.savedmodel.variables import fill, filled_later, load_mapped  # noqa: E402


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
    """Returns what a saved model of `values` answers, loaded whole or mapped."""
    variables = {name: filled_later(*value) for name, value in values.items()}
    reader = Reader(**variables)
    tf.saved_model.save(reader, str(folder), signatures={"read": reader.read})
    fill(folder, reader.variables)
    loaded = tf.saved_model.load(str(folder))
    assert loaded.small.numpy().tolist() == [b"text", b"\xff\0"]
    whole = {name: value.numpy() for name, value in loaded.signatures["read"]().items()}
    with tempfile.TemporaryDirectory(dir=folder) as scratch:
        mapped = load_mapped(folder, Path(scratch)).signatures["read"]()
        assert {*mapped} == {*whole}
        for name, value in mapped.items():
            assert value.dtype == whole[name].dtype
            assert value.shape == whole[name].shape
            assert value.numpy().tobytes() == whole[name].tobytes()
    return whole


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
    # Slices of eight rows, and one of two.
    assert told == [(done, 600) for done in (96, 192, 288, 384, 480, 576, 600)]


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
        with pytest.raises(RecsysError, match=r"R526.*Free disk space"):
            fill(tmp_path, reader.variables)
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))


def test_only_a_large_constant_waits_for_its_rows():
    large = np.zeros(variables.SMALL_BYTES // 4 + 1, np.float32)
    assert variables.constant(large, tf.float32).shape.as_list() == [None]
    assert variables.constant(large[1:], tf.float32).shape.as_list() == [len(large) - 1]
    assert variables.constant(large[:5], tf.int32).dtype == tf.int32


class FirstRows(tf.Module):
    """Gives back a few rows of a table."""

    def __init__(self, table):
        super().__init__()
        self.table = filled_later(table, tf.float32)

    @tf.function(input_signature=[])
    def read(self):
        return {"rows": tf.gather(tf.convert_to_tensor(self.table), [0, 7])}


@pytest.fixture(scope="module")
def large(tmp_path_factory):
    """A SavedModel with a table of 64 MiB, and the table."""
    folder = tmp_path_factory.mktemp("large")
    table = np.random.default_rng(0).standard_normal((1 << 18, 64), np.float32)
    reader = FirstRows(table)
    tf.saved_model.save(reader, str(folder), signatures={"read": reader.read})
    fill(folder, [reader.table])
    return folder, table


class Mallinfo2(ctypes.Structure):
    """The result of glibc's `mallinfo2`; `hblkhd` is the size of mapped blocks [bytes]."""

    names = "arena ordblks smblks hblks hblkhd usmblks fsmblks uordblks fordblks keepcost"
    _fields_ = [(name, ctypes.c_size_t) for name in names.split()]


def bytes_of_large_blocks():
    """Returns what this process has in blocks of memory of more than 32 MiB each.

    Such a block is always a mapping, which is unmapped when it is freed. The whole process also
    keeps freed slices, and memory of other tests.
    """
    mallinfo2 = ctypes.CDLL("libc.so.6").mallinfo2
    mallinfo2.restype = Mallinfo2
    gc.collect()
    return mallinfo2().hblkhd


def test_a_mapped_table_is_no_memory_of_the_process(large, tmp_path):
    folder, table = large
    before = bytes_of_large_blocks()
    model = load_mapped(folder, tmp_path)
    np.testing.assert_array_equal(model.signatures["read"]()["rows"], table[[0, 7]])
    assert bytes_of_large_blocks() < before + table.nbytes // 2
    whole = load_saved_model(folder)
    np.testing.assert_array_equal(whole.signatures["read"]()["rows"], table[[0, 7]])
    assert bytes_of_large_blocks() >= before + table.nbytes


def test_a_flipped_bit_of_a_mapped_table_is_found(large, tmp_path):
    bent = shutil.copytree(large[0], tmp_path / "bent")
    path = max((bent / "variables").iterdir(), key=lambda path: path.stat().st_size)
    with path.open("rb+") as file:
        file.seek(path.stat().st_size // 2)
        bit = file.read(1)[0] ^ 1
        file.seek(-1, 1)
        file.write(bytes([bit]))
    (tmp_path / "scratch").mkdir()
    with pytest.raises(RecsysError, match="R543"):
        load_mapped(bent, tmp_path / "scratch")
