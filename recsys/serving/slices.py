"""Reading large arrays a slice at a time, without mapping their files into memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

import numpy as np

SLICE_BYTES = 16 << 20
"""Of a slice: as much is read at a time, by who writes a checkpoint and by who loads it."""


def slices(values: np.ndarray) -> Iterator[tuple[int, np.ndarray]]:
    """Yields the first row of each slice of `values` `[rows, ...]`, and the slice itself.

    Raises:
        OSError: The file of a memory map has become shorter.
    """
    n = max(1, SLICE_BYTES // _row_bytes(values))
    for start in range(0, len(values), n):
        stop = min(start + n, len(values))
        yield start, read_rows(values, start, stop)


def read_rows(values: np.ndarray, start: int, stop: int) -> np.ndarray:
    """Returns the rows `start` … `stop` of `values` `[rows, ...]`.

    Those of a memory map are read from its file: a mapped page that was touched counts as
    this process's memory.

    Raises:
        OSError: The file of a memory map has become shorter.
    """
    if not (isinstance(values, np.memmap) and values.flags.c_contiguous and values.filename):
        return np.ascontiguousarray(values[start:stop])
    shape = (stop - start, *values.shape[1:])
    count = int(np.prod(shape))
    with Path(values.filename).open("rb") as file:
        file.seek(values.offset + start * _row_bytes(values))
        found = np.fromfile(file, values.dtype, count)
    if len(found) < count:
        raise OSError(None, "the file has become shorter", str(values.filename))
    return found.reshape(shape)


def _row_bytes(values: np.ndarray) -> int:
    return max(1, values.itemsize * int(np.prod(values.shape[1:])))
