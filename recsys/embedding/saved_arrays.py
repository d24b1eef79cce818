"""The arrays of a model folder: one `.npy` per variable, or several with ranges of its rows.

    3.npy                   variable 3, whole; a table in the order of its rows
    3/shard-0-of-8.npy      the same, the first of eight ranges of rows

If several processes train, each writes the parts of a large table that its own devices hold. Small
variables, and all variables of a single process, are one file each. The JSON that describes a
variable has the sizes and CRC-32 of its files. A reader gets one array in either case.
"""

from __future__ import annotations

import functools
import shutil
import zlib
from collections.abc import Iterator, Mapping, Sequence
from io import BytesIO
from pathlib import Path
from typing import Any, NamedTuple

import jax
import keras
import numpy as np
from jax.experimental import multihost_utils
from jax.sharding import NamedSharding

from recsys.distributed.coordination import agreed, ending_after, is_primary, jointly
from recsys.embedding.sharding import devices_of, in_ranges, range_of
from recsys.embedding.table import Table, logical_chunks
from recsys.system import manifest as manifests
from recsys.system.files import sync_file

_WHOLE_BYTES = 1 << 20
"""Maximum size of a table that is written as one file [bytes]."""


class SavedVariable(NamedTuple):
    """A variable to write.

    Attributes:
        variable: The variable.
        table: Table whose weights or slot it is; None for other variables.
        dtype: Dtype in the file.
    """

    variable: Any
    table: Table | None
    dtype: str = "<f4"

    @property
    def shape(self) -> tuple[int, ...]:
        """Shape without padding."""
        shape = tuple(self.variable.shape)
        return shape if self.table is None else (self.table.rows, shape[1])


class NpyFile:
    """A `.npy` file that is written in pieces.

    Not memory-mapped: a full disk raises an error in a write, but kills the process in a memory
    map.

    Args:
        path: Path of the file.
        shape: Shape of the whole array.
        dtype: Dtype of the array.
    """

    def __init__(self, path: Path, shape: Sequence[int], dtype: str = "<f4") -> None:
        self._dtype, self._size, self._crc = np.dtype(dtype), 0, 0
        self._file = path.open("wb")
        header = BytesIO()
        described = {"descr": dtype, "fortran_order": False, "shape": tuple(shape)}
        np.lib.format.write_array_header_1_0(header, described)
        self._add(header.getvalue())

    def write(self, values: np.ndarray) -> None:
        """Appends values."""
        self._add(np.ascontiguousarray(values, self._dtype).tobytes())

    def close(self) -> dict[str, Any]:
        """Closes the file; returns its size and checksum for a manifest.

        If several processes train, the file is flushed to disk.

        Raises:
            OSError: Writing failed.
        """
        self._file.close()
        if jax.process_count() > 1:
            sync_file(Path(self._file.name))
        return {"crc32": f"{self._crc:08x}", "size": self._size}

    def _add(self, content: bytes) -> None:
        self._file.write(content)
        self._size += len(content)
        self._crc = zlib.crc32(content, self._crc)


# --- writing


def write_variables(folder: Path, kept: Sequence[SavedVariable]) -> list[dict[str, Any]]:
    """Writes variables into a folder; returns their descriptions for JSON.

    All processes of a run must call it.

    Args:
        folder: The folder; made if missing.
        kept: The variables, in order.

    Returns:
        `path` and `shape` of each variable, and size and CRC-32 of its files by name relative to
        the folder, as `parts` or `whole`.

    Raises:
        OSError: The disk is full.
        RecsysError: The disk is full in another process.
    """
    numbers = [number for number, saved in enumerate(kept) if _is_in_parts(saved)]
    agreed(functools.partial(_make_room, folder, numbers))
    described = []
    for number, saved in enumerate(kept):
        entry = {"path": saved.variable.path, "shape": list(saved.shape)}
        if number in numbers:
            entry["parts"] = _write_parts(folder, number, saved)
        else:
            entry["whole"] = _write_whole(folder / f"{number}.npy", saved)
        described.append(entry)
    return described


def _make_room(folder: Path, in_parts: Sequence[int]) -> None:
    """Makes the folders of parts, and removes files of earlier writes."""
    folder.mkdir(parents=True, exist_ok=True)
    for path in folder.iterdir():
        if path.is_dir() and not path.is_symlink():
            shutil.rmtree(path)
    for number in in_parts:
        (folder / f"{number}.npy").unlink(missing_ok=True)
        (folder / str(number)).mkdir()


def _is_in_parts(saved: SavedVariable) -> bool:
    table, value = saved.table, saved.variable.value
    if table is None or jax.process_count() == 1 or not isinstance(value.sharding, NamedSharding):
        return False
    is_split = table.is_interleaved and not value.is_fully_replicated
    return is_split and 4 * int(np.prod(saved.shape)) > _WHOLE_BYTES


def _write_whole(path: Path, saved: SavedVariable) -> manifests.Files:
    """Writes a variable to one file, on process 0."""
    file = NpyFile(path, saved.shape, saved.dtype) if is_primary() else None
    for chunk in _chunks(saved):
        if file is not None:
            file.write(chunk)

    files: manifests.Files = agreed(lambda: {path.name: file.close()} if file else {})
    return files


def _chunks(saved: SavedVariable) -> Iterator[np.ndarray]:
    """Yields a variable in chunks, the rows of a table in logical order.

    All processes must iterate: each chunk is gathered from their devices.
    """
    table, value = saved.table, saved.variable.value
    for chunk in [value] if table is None else logical_chunks(table, saved.variable):
        if jax.process_count() == 1 or getattr(chunk, "is_fully_replicated", True):
            yield keras.ops.convert_to_numpy(chunk)
        else:
            yield _gathered(chunk)


def _gathered(value: jax.Array) -> np.ndarray:
    with ending_after():
        whole: np.ndarray = multihost_utils.process_allgather(value, tiled=True)
    return whole


def _write_parts(folder: Path, number: int, saved: SavedVariable) -> manifests.Files:
    """Writes the row ranges of this process's devices, one file per device."""
    value = saved.variable.value
    n_parts = devices_of(value.sharding)
    rows, width = saved.shape
    bounds = [range_of(rows, part, n_parts) for part in range(n_parts)]
    files: dict[int, NpyFile] = {}
    for before, chunk in in_ranges(value, rows):
        n_rows = chunk.shape[0] // n_parts
        with ending_after():
            jax.block_until_ready(chunk)
        for shard in chunk.addressable_shards:
            if shard.replica_id:
                continue
            part = (shard.index[0].start or 0) // n_rows
            length = bounds[part][1] - bounds[part][0]
            if part not in files:
                path = folder / _name(number, part, n_parts)
                files[part] = NpyFile(path, (length, width), saved.dtype)
            files[part].write(np.asarray(shard.data)[: max(0, length - before)])

    parts = jointly(lambda: {_name(number, p, n_parts): file.close() for p, file in files.items()})
    return {name: entry for own in parts for name, entry in sorted(own.items())}


def _name(number: int, part: int, n_parts: int) -> str:
    return f"{number}/shard-{part}-of-{n_parts}.npy"


# --- reading


class SavedRows:
    """Rows `[rows, width]` of several memory-mapped files as one array.

    Args:
        parts: Arrays of the files, in order.

    Attributes:
        parts: Arrays of the files.
        shape: Shape of the whole array.
        dtype: Dtype of the array.
    """

    def __init__(self, parts: Sequence[np.ndarray]) -> None:
        self.parts = tuple(parts)
        self._starts = np.cumsum([0, *(len(part) for part in parts)])
        self.shape = (int(self._starts[-1]), *parts[0].shape[1:])
        self.dtype = parts[0].dtype

    @property
    def size(self) -> int:
        """Number of entries."""
        return int(np.prod(self.shape))

    @property
    def itemsize(self) -> int:
        """Bytes of an entry."""
        return self.dtype.itemsize

    def __len__(self) -> int:
        """Returns the number of rows."""
        return self.shape[0]

    def pieces(self, start: int, stop: int) -> Iterator[tuple[np.ndarray, int, int]]:
        """Yields the parts with rows `start` … `stop`, and the bounds of the rows in each."""
        for first, part in zip(self._starts[:-1].tolist(), self.parts, strict=True):
            low, high = max(start - first, 0), min(stop - first, len(part))
            if low < high:
                yield part, low, high

    def __getitem__(self, rows: slice | np.ndarray) -> np.ndarray:
        """Returns the rows of a slice or of non-negative indices `[n]`, in memory."""
        if isinstance(rows, slice):
            start, stop, step = rows.indices(len(self))
            read = [part[low:high] for part, low, high in self.pieces(start, stop)]
            return np.concatenate([np.empty((0, *self.shape[1:]), self.dtype), *read])[::step]
        out = np.empty((len(rows), *self.shape[1:]), self.dtype)
        owner = np.searchsorted(self._starts, rows, side="right") - 1
        for number, part in enumerate(self.parts):
            here = owner == number
            out[here] = part[rows[here] - self._starts[number]]
        return out

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns the whole array, in memory."""
        return np.asarray(self[:], dtype)


def files_of(described: Mapping[str, Any]) -> manifests.Files:
    """Returns the files of a variable by name, from its description by `write_variables`."""
    return {**described.get("parts", {}), **described.get("whole", {})}


def path_of(folder: Path, number: int, described: Mapping[str, Any]) -> Path:
    """Returns the path of a variable: a file, or the folder of its parts.

    Args:
        folder: Folder of all variables.
        number: Index of the variable.
        described: Its description by `write_variables`.
    """
    return folder / (str(number) if described.get("parts") else f"{number}.npy")


def open_variable(path: Path) -> np.ndarray | SavedRows:
    """Returns a variable, memory-mapped.

    Args:
        path: Result of `path_of`.

    Raises:
        OSError: A file is missing or can't be read.
        ValueError: A file is not a `.npy` file, or the shapes of the parts differ.
    """
    if path.suffix == ".npy":
        return np.load(path, mmap_mode="r", allow_pickle=False)
    n_parts = max([int(name.stem.rpartition("-")[2]) for name in path.glob("shard-*-of-*.npy")])
    names = [path.parent / _name(int(path.name), part, n_parts) for part in range(n_parts)]
    parts = [np.load(name, mmap_mode="r", allow_pickle=False) for name in names]
    if len({(part.shape[1:], part.dtype) for part in parts}) > 1:
        raise ValueError(f"the parts in {path} have several widths or types")
    return SavedRows(parts)
