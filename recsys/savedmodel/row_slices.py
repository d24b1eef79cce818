"""Reads large arrays slice by slice from their files, so that no table is in memory."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import TYPE_CHECKING

import numpy as np

if TYPE_CHECKING:  # The process of the parity checks has no `recsys.models`.
    from recsys.embedding.saved_arrays import SavedRows

SLICE_BYTES = 16 << 20
"""Size of a slice, which is read at a time to write or load a checkpoint [bytes]."""


def slice_bounds(n_rows: int, row_bytes: int) -> Iterator[tuple[int, int]]:
    """Yields the start and end of each slice of `n_rows` rows."""
    n = max(1, SLICE_BYTES // max(1, row_bytes))
    for start in range(0, n_rows, n):
        yield start, min(start + n, n_rows)


def read_rows(values: np.ndarray | SavedRows, start: int, stop: int) -> np.ndarray:
    """Returns the rows `start` … `stop` of `values` `[rows, ...]`.

    Rows of a memory map are read from its file, because touched pages of a map count as memory of
    this process.

    Raises:
        OSError: The file of a memory map has become shorter.
    """
    if not isinstance(values, np.ndarray):
        pieces = values.pieces(start, stop)
        return np.concatenate([read_rows(part, low, high) for part, low, high in pieces])
    if not (isinstance(values, np.memmap) and values.flags.c_contiguous and values.filename):
        return np.ascontiguousarray(values[start:stop])
    shape = (stop - start, *values.shape[1:])
    count = int(np.prod(shape))
    with Path(values.filename).open("rb") as file:
        file.seek(values.offset + start * values.strides[0])
        content = np.fromfile(file, values.dtype, count)
    if len(content) < count:
        raise OSError(None, "the file has become shorter", str(values.filename))
    return content.reshape(shape)
