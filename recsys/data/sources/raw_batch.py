"""Rows of one file, as columns, and the dead letters of those that could not be placed."""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Callable, Sequence

import numpy as np
import pyarrow as pa

from recsys.data.dead_letters import dead_letters

RawRows = Callable[[np.ndarray], list[bytes]]
"""Returns the rows at places `[k]` among the whole ones, as they stand in the file."""


@dataclasses.dataclass(frozen=True)
class RawBatch:
    """Rows of one file.

    Attributes:
        file: The file.
        columns: The asked columns of the rows that are whole, in the types that the
            format gives: text for CSV.
        position: Line of each of them, or its row number `[n]` int64, from 1 on.
        rejected: Dead letters of the rows that are not.
        raw_rows: Returns rows as they stand in the file; `None` where the format has
            no text: the asked columns as JSON take its place.
        element: Place of each event in the list of its row `[n]`, from 0 on; `None` where
            a row is an event.
        n_empty: Rows whose list of events is empty; they are not among the read ones.
    """

    file: str
    columns: pa.RecordBatch
    position: np.ndarray
    rejected: pa.RecordBatch
    raw_rows: RawRows | None = None
    element: np.ndarray | None = None
    n_empty: int = 0

    @property
    def n_read(self) -> int:
        """Rows of the batch, whole or not."""
        return len(self.position) + self.rejected.num_rows

    def reject(self, bad: pa.Array, reasons: Sequence[str]) -> pa.RecordBatch:
        """Returns the dead letters of the batch, then those of its whole rows that are `bad`.

        Args:
            bad: Which of the whole rows break a rule `[n]` bool.
            reasons: What is wrong with each of them, as many as `bad` has.
        """
        at = np.flatnonzero(bad.to_numpy(zero_copy_only=False))
        if len(at) == 0:
            return self.rejected
        raw = self._as_json(at) if self.raw_rows is None else self.raw_rows(at)
        letters = dead_letters(reasons, self.file, self.position[at], raw)
        return one_batch([self.rejected, letters])

    def _as_json(self, at: np.ndarray) -> list[bytes]:
        rows = self.columns.take(pa.array(at)).to_pylist()
        return [as_json(row) for row in rows]


def as_json(row: object) -> bytes:
    """Returns a row as JSON; what JSON has no word for is written as text."""
    return json.dumps(row, ensure_ascii=False, default=_as_text).encode("utf-8", "replace")


def _as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def one_batch(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns batches of one schema, at least one, as one batch."""
    if len(batches) == 1:
        return batches[0]
    joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined[0] if joined else batches[0]
