"""Room for large arrays in a file without a name: gone with the process, however it ends."""

from __future__ import annotations

import os
import tempfile
from pathlib import Path
from typing import Any, BinaryIO

import numpy as np

_IN_MEMORY_BYTES = 64 << 20
_ALIGNMENT = 64


class Scratch:
    """Gives out arrays; in memory where all of them are small, else in a file.

    Args:
        folder: Folder of the file; the system's own where it can't be written.
        n_bytes: Bytes of all arrays that will be asked for, about.
    """

    def __init__(self, folder: Path, n_bytes: int) -> None:
        self._at = 0
        self._file = None if n_bytes <= _IN_MEMORY_BYTES else _nameless(folder)

    def empty(self, length: int, dtype: Any) -> np.ndarray:
        """Returns an array `[length]` without values.

        Raises:
            OSError: The disk has no room for it.
        """
        if self._file is None or not length:
            return np.empty(length, dtype)
        n_bytes = length * np.dtype(dtype).itemsize
        # Room that is found missing while a map is written would end the process.
        os.posix_fallocate(self._file.fileno(), self._at, n_bytes)
        mapped = np.memmap(self._file, dtype, "r+", self._at, (length,))
        self._at += -(-n_bytes // _ALIGNMENT) * _ALIGNMENT
        # A plain view: indexing a `np.memmap` takes longer. It keeps the map alive.
        return np.asarray(mapped)

    def close(self) -> None:
        """Closes the file; the arrays stay."""
        if self._file is not None:
            self._file.close()


def _nameless(folder: Path) -> BinaryIO:
    where = folder if os.access(folder, os.W_OK) else None
    return tempfile.TemporaryFile(dir=where)
