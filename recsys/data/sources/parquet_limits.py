"""What a Parquet file may come to, told before its rows are read.

A dictionary lets a kilobyte stand for gigabytes: each row names a text that stands once.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.sources.limits import bomb, most_bytes, most_rows

_ROWS_OF_A_BATCH = 1 << 17
_BYTES_OF_A_BATCH = 64 << 20
_SMALL_BYTES = 256 << 20


def check_amounts(
    file: str, size: int, metadata: pq.FileMetaData, leaves: Iterable[int]
) -> None:
    """Raises an error if a file says that it comes to far more than it is.

    Args:
        file: The file.
        size: Its size [bytes].
        metadata: What it says.
        leaves: The columns that are read.

    Raises:
        RecsysError: Rows, values or bytes are too many for the size.
    """
    for rows in range(metadata.num_row_groups):
        if metadata.row_group(rows).num_rows < 0:
            raise bomb(file, size, f"{metadata.row_group(rows).num_rows:,} rows")
    chunks = [list(_chunks(metadata, leaf)) for leaf in leaves]
    n_values = max((sum(c.num_values for c in column) for column in chunks), default=0)
    n_bytes = sum(c.total_uncompressed_size for column in chunks for c in column)
    if max(metadata.num_rows, n_values) > most_rows(size):
        raise bomb(file, size, f"{max(metadata.num_rows, n_values):,} rows or values")
    if n_bytes > most_bytes(size):
        raise bomb(file, size, f"{n_bytes:,} bytes")


def rows_of_a_batch(
    parquet: pq.ParquetFile, by_dictionary: pq.ParquetFile, groups: Sequence[int], leaves: list[int]
) -> int:
    """Returns how many rows are read at a time, so that they fit in memory.

    Args:
        parquet: The file.
        by_dictionary: The same, whose texts are read as dictionaries.
        groups: Row groups that are read.
        leaves: Columns that are read.
    """
    widest = max((_widest(parquet, by_dictionary, group, leaves) for group in groups), default=1)
    return max(1, min(_ROWS_OF_A_BATCH, _BYTES_OF_A_BATCH // max(1, widest)))


def _widest(
    parquet: pq.ParquetFile, by_dictionary: pq.ParquetFile, group: int, leaves: list[int]
) -> int:
    """Returns the most bytes that a row of a group may take, about."""
    described = parquet.metadata.row_group(group)
    n_rows = max(1, described.num_rows)
    chunks = {described.column(leaf).path_in_schema: described.column(leaf) for leaf in leaves}
    widest = sum(chunk.total_uncompressed_size for chunk in chunks.values()) // n_rows
    texts = [
        path
        for path, chunk in chunks.items()
        if chunk.physical_type == "BYTE_ARRAY"
        and chunk.total_uncompressed_size * max(chunk.num_values, n_rows) > _SMALL_BYTES
    ]
    if not texts:
        return widest
    first = by_dictionary.iter_batches(1, row_groups=[group], columns=texts, use_threads=False)
    for batch in first:
        n_values = max(chunks[path].num_values for path in texts)
        longest = sum(map(_longest, batch.columns))
        return max(widest, longest * -(-n_values // n_rows))
    return widest


def _longest(column: pa.Array) -> int:
    """Returns the bytes of the longest text that a column's dictionaries have."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        texts = column.dictionary
        return (pc.max(pc.binary_length(texts)).as_py() or 0) if len(texts) else 0
    if pa.types.is_struct(kind):
        return sum(_longest(column.field(at)) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _longest(column.keys) + _longest(column.items)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return _longest(column.values)
    return 0


def _chunks(metadata: pq.FileMetaData, leaf: int) -> Iterator[pq.ColumnChunkMetaData]:
    for group in range(metadata.num_row_groups):
        yield metadata.row_group(group).column(leaf)
