"""Examples on disk: Parquet whose columns are lists of one value.

TensorFlow Data Validation and Transform take columns of lists of bytes or
numbers only; the rest of the project works on plain columns. These functions
turn one into the other.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

_ROWS_OF_A_GROUP = 1 << 20


def write_examples(table: pa.Table, sink: BinaryIO) -> None:
    """Writes a table of plain columns as examples."""
    pq.write_table(_as_lists(table), sink, row_group_size=_ROWS_OF_A_GROUP)


def read_examples(file: str, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yields the row groups of a file of examples, as plain columns."""
    parquet = pq.ParquetFile(file)
    for group in range(parquet.num_row_groups):
        yield _as_plain(parquet.read_row_group(group, columns=list(columns)))


def example_files(folder: Path) -> list[str]:
    """Returns the files of a split, sorted."""
    return sorted(str(file) for file in folder.glob("*.parquet"))


def read_split(folder: Path, columns: Sequence[str]) -> Iterator[pa.Table]:
    """Yields the row groups of a split, as plain columns."""
    for file in example_files(folder):
        yield from read_examples(file, columns)


def _as_lists(table: pa.Table) -> pa.Table:
    columns = {}
    for name in table.column_names:
        values = table[name].combine_chunks()
        if pa.types.is_string(values.type):
            values = values.cast(pa.large_binary())
        offsets = pa.array(np.arange(len(values) + 1))
        columns[name] = pa.LargeListArray.from_arrays(offsets, values)
    return pa.table(columns)


def _as_plain(table: pa.Table) -> pa.Table:
    columns = {}
    for name in table.column_names:
        values = pc.list_flatten(table[name])
        columns[name] = (
            values.cast(pa.string()) if pa.types.is_large_binary(values.type) else values
        )
    return pa.table(columns)
