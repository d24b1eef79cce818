"""Texts by row, in a file until one is asked for."""

from __future__ import annotations

import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.errors import RecsysError

_BATCH = 65_536


class Texts(Sequence[str]):
    """A column of a Parquet file: one array of Arrow, read when the first text is asked for.

    As a list of Python a text would take 64 bytes more.

    Args:
        path: The file.
        column: Name of the column.
        n: Texts that there are.
        first: Row of the first text in the file; those before are empty.
        cure: What to do about a file that is damaged.
    """

    def __init__(self, path: Path, column: str, n: int, *, first: int = 0, cure: str) -> None:
        self._path, self._column, self._n = path, column, n
        self._first, self._cure = first, cure

    def __len__(self) -> int:
        return self._n

    def __getitem__(self, row: Any) -> Any:
        """Returns the text of a row, or the list of a slice.

        Raises:
            RecsysError: The file is damaged, or has another number of texts (R230).
        """
        texts = self._texts[row]
        return texts.to_pylist() if isinstance(row, slice) else texts.as_py()

    def __iter__(self) -> Iterator[str]:
        for start in range(0, self._n, _BATCH):
            yield from self[start : start + _BATCH]

    def batches(self) -> Iterator[pa.Array]:
        """Yields all texts, some at a time, of which it holds none.

        Raises:
            RecsysError: The file is damaged, or has another number of texts (R230).
        """
        n = self._first
        yield pa.array([""] * n, pa.large_string())
        try:
            with pq.ParquetFile(self._path) as file:
                for batch in file.iter_batches(_BATCH, columns=[self._column]):
                    n += len(batch)
                    yield batch.column(self._column).cast(pa.large_string())
        except (OSError, ValueError, KeyError) as error:
            raise self._damaged(f"{type(error).__name__}: {error}") from None
        if n != self._n:
            raise self._damaged(f"{n - self._first} texts of {self._n - self._first}")

    @functools.cached_property
    def _texts(self) -> pa.Array:
        return pa.concat_arrays([*self.batches()])

    def _damaged(self, received: str) -> RecsysError:
        rule = f"{str(self._path)!r} must hold a column {self._column!r} of texts."
        return RecsysError("R230", rule, self._cure, received)


def are_filled(texts: Sequence[str]) -> np.ndarray:
    """Returns which of `texts` `[n]` bool aren't empty."""
    batches = texts.batches() if isinstance(texts, Texts) else [pa.array(texts, pa.large_string())]
    filled = [pc.not_equal(batch, "").to_numpy(zero_copy_only=False) for batch in batches]
    return np.concatenate(filled).astype(bool)
