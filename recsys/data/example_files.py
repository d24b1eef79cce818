"""Examples on disk: Parquet files whose columns are lists.

TensorFlow Data Validation and Transform only accept columns of lists of bytes or numbers. TFDV
counts null as a missing value, an empty list as no values. The rest of the project uses plain
columns. These functions convert between the two. Columns that hold lists originally are marked, so
that a list of one value is not read as a plain value.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.sources.values import is_list, last_values, list_lengths

_GROUP_ROWS = 1 << 20
_MANY = {b"recsys:values": b"many"}


def write_examples(table: pa.Table, sink: BinaryIO) -> None:
    """Writes a table as examples.

    Args:
        table: Columns of text, of numbers, or of lists of them; null means missing.
        sink: A binary file.
    """
    pq.write_table(_as_lists(table), sink, row_group_size=_GROUP_ROWS)


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
    columns, fields = [], []
    for name in table.column_names:
        values = table[name].combine_chunks()
        is_many = is_list(values.type)
        column = _listed(values) if is_many else _of_one(values)
        columns.append(column)
        fields.append(pa.field(name, column.type, metadata=_MANY if is_many else None))
    return pa.Table.from_arrays(columns, schema=pa.schema(fields))


def _listed(values: pa.Array) -> pa.Array:
    """Converts lists to large lists; null becomes an empty list."""
    return _lists(list_lengths(values), pc.list_flatten(values))


def _of_one(values: pa.Array) -> pa.Array:
    """Puts each value into a list of its own; null stays null."""
    if values.null_count == 0:
        return _lists(np.ones(len(values), np.int64), values)
    is_there = values.is_valid().to_numpy(zero_copy_only=False)
    return _lists(is_there, values.drop_null(), values.is_null())


def _lists(length: np.ndarray, values: pa.Array, is_null: pa.Array | None = None) -> pa.Array:
    if pa.types.is_string(values.type) or pa.types.is_large_string(values.type):
        values = values.cast(pa.large_binary())
    offsets = np.zeros(len(length) + 1, np.int64)
    np.cumsum(length, out=offsets[1:])
    return pa.LargeListArray.from_arrays(pa.array(offsets), values, mask=is_null)


def _as_plain(table: pa.Table) -> pa.Table:
    columns = {}
    for field in table.schema:
        column = table[field.name].combine_chunks()
        is_many = (field.metadata or {}).items() >= _MANY.items()
        columns[field.name] = _texts(column) if is_many else _values(column)
    return pa.table(columns)


def _texts(lists: pa.Array) -> pa.Array:
    is_text = pa.types.is_large_binary(lists.type.value_type)
    return lists.cast(pa.large_list(pa.string())) if is_text else lists


def _values(lists: pa.Array) -> pa.Array:
    """Returns the single value of each list; null for an empty list."""
    is_whole = len(lists.flatten()) == len(lists)
    values = lists.flatten() if is_whole else last_values(lists, list_lengths(lists) == 0)
    return values.cast(pa.string()) if pa.types.is_large_binary(values.type) else values
