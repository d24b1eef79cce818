"""Parquet files as Arrow batches, by row groups.

A dictionary lets a kilobyte stand for gigabytes, since each row names a text that stands
once. So what a file comes to is checked before its rows are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.sources.files import Section, file_size, got_shorter, is_remote, open_file
from recsys.data.sources.nested import Path, element_type, find_path, leaf_names, pick, pick_type
from recsys.data.sources.parquet_footer import check_footer
from recsys.data.sources.source import Piece, RawBatch, Source, missing_column
from recsys.data.sources.streams import Growth, bomb, most_bytes, most_rows
from recsys.errors import RecsysError
from recsys.registry import register_source

_ROWS_OF_A_BATCH = 1 << 17
_BYTES_OF_A_BATCH = 64 << 20
_SMALL_BYTES = 256 << 20


@register_source("parquet")
class ParquetSource(Source):
    """Parquet; columns inside of others are `a.b`."""

    title: ClassVar[str] = "Parquet"
    extensions: ClassVar[tuple[str, ...]] = (".parquet", ".pq")

    @classmethod
    def detects(cls, start: bytes) -> bool:
        """Returns whether bytes begin with Parquet's mark."""
        return start.startswith(b"PAR1")

    @classmethod
    def fits(cls, start: bytes) -> bool:
        """Returns whether bytes begin with Parquet's mark."""
        return cls.detects(start)

    def column_names(self, file: Piece) -> list[str]:
        """Returns the names of the columns that can be read, nested ones as `a.b`."""
        with _opened(file.file, file.size) as parquet:
            schema = parquet.schema_arrow
            paths = {name: find_path(schema, name) for name in leaf_names(schema)}
            return [
                name
                for name, path in paths.items()
                if path and not pa.types.is_map(pick_type(schema, path))
            ]

    def check(self, file: Piece) -> Piece:
        """Returns a file after a look at its footer.

        Raises:
            RecsysError: It is damaged, comes to too much, or lacks a column; or it is
                compressed as a whole.
        """
        if file.compression is not None:
            raise RecsysError(
                "R204",
                f"{file.file!r} must be a Parquet file as it is, not compressed as a whole.",
                "Unpack it; Parquet compresses its columns by itself.",
                "a compressed Parquet file",
            )
        with _opened(file.file, file.size) as parquet:
            _leaves_to_read(parquet, file)
        return file

    def split(self, file: Piece, piece_bytes: int) -> Iterable[Piece]:
        """Yields pieces of whole row groups."""
        first = n_before = n_bytes = n_rows = 0
        with _opened(file.file, file.size) as parquet:
            leaves = _leaves_to_read(parquet, file)
            metadata = parquet.metadata
            for at in range(metadata.num_row_groups):
                group = metadata.row_group(at)
                n_bytes += sum(group.column(leaf).total_uncompressed_size for leaf in leaves)
                n_rows += group.num_rows
                if n_bytes >= piece_bytes or at == metadata.num_row_groups - 1:
                    if n_rows:
                        yield dataclasses.replace(
                            file, start=first, stop=at + 1, first=n_before, n_bytes=n_bytes
                        )
                    first, n_before, n_bytes, n_rows = at + 1, n_before + n_rows, 0, 0

    def read(self, piece: Piece) -> Iterator[RawBatch]:
        """Yields the rows of some row groups."""
        position = piece.first + 1
        groups = range(piece.start, piece.stop)
        with _opened(piece.file, piece.size) as parquet:
            leaves = _leaves_to_read(parquet, piece)
            names = list(leaves.values())
            with _opened(piece.file, piece.size, by_dictionary=names) as by_dictionary:
                n_rows = _rows_of_a_batch(parquet, by_dictionary, groups, list(leaves))
            batches = parquet.iter_batches(
                n_rows, row_groups=list(groups), columns=names, use_threads=False
            )
            paths = [find_path(parquet.schema_arrow, name) for name in piece.columns]
            growth = Growth(piece.file, piece.size)
            for batch in batches:
                growth.add(batch.nbytes)
                yield RawBatch.of(piece, [pick(batch, path) for path in paths], position)
                position += batch.num_rows


def _leaves_to_read(parquet: pq.ParquetFile, file: Piece) -> dict[int, str]:
    """Returns the places and full names of the columns that make up `file.columns`.

    Raises:
        RecsysError: A column is missing, or what is read comes to too much.
    """
    schema = parquet.schema_arrow
    _check_schema(file.file, schema, file.columns)
    paths = [find_path(schema, name) for name in file.columns]
    leaves = dict(_leaves(parquet.metadata, paths))
    check_amounts(file.file, file.size, parquet.metadata, leaves)
    return leaves


def _check_schema(file: str, schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raises an error if a file lacks a column, has it twice, or it is no plain value or list."""
    for name in columns:
        path = find_path(schema, name)
        if path is None:
            raise missing_column(file, name, leaf_names(schema), columns)
        kind = pick_type(schema, path)
        if pa.types.is_struct(element_type(kind)) or pa.types.is_map(kind):
            raise RecsysError(
                "R254",
                f"The column {name!r} of {file!r} must hold plain values or lists of them.",
                f"Name a field in it: {name}.FIELD.",
                str(kind),
            )


def _leaves(metadata: pq.FileMetaData, paths: Sequence[Path | None]) -> list[tuple[int, str]]:
    """Returns the places and the full names of the columns of a file that make up `paths`.

    In the full name lists stand between the parts of a path, as `events.list.element.id`.
    """
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    by_top: dict[str, list[Path]] = {}
    for path in paths:
        if path:
            by_top.setdefault(path[0].partition(".")[0], []).append(path)
    return [
        (at, name)
        for at, name in enumerate(names)
        if any(_is_in(path, name.split(".")) for path in by_top.get(name.partition(".")[0], ()))
    ]


def _is_in(path: Path, name: Sequence[str]) -> bool:
    """Returns whether a column lies at a path, or below it."""
    parts = iter([part for whole in path for part in whole.split(".")])
    rest = iter(name)
    return next(parts) == next(rest) and all(part in rest for part in parts)


@contextmanager
def _opened(
    file: str, size: int, by_dictionary: Sequence[str] | None = None
) -> Iterator[pq.ParquetFile]:
    now = file_size(file)
    if now < size:
        raise got_shorter(file, size, now)
    if now > size:
        raise RecsysError(
            "R253",
            f"{file!r} must not change while it is read: it had {size:,} bytes.",
            "Write it under another name and rename it when it is whole. Run again.",
            f"{now:,} bytes",
        )
    check_footer(file, size)
    source = pa.PythonFile(open_file(file), "r") if is_remote(file) else _local(file)
    try:
        with pq.ParquetFile(source, read_dictionary=by_dictionary) as parquet:
            yield parquet
    except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
        raise _damaged(file, size, error) from None
    finally:
        source.close()


def _local(file: str) -> pa.NativeFile:
    Section(file, 0, 0).close()  # Raises what people read if it can't be opened.
    return pa.OSFile(file)


def _damaged(file: str, size: int, error: Exception) -> RecsysError:
    with Section(file, max(0, size - 4), size) as section:
        is_cut = section.read() != b"PAR1"
    received = "no footer: the file is cut off" if is_cut else str(error)
    return RecsysError(
        "R253",
        f"{file!r} must be a whole Parquet file; it has {size:,} bytes.",
        "Its footer says where the rows are: without it none can be read. Write it again."
        if is_cut
        else "Write it again.",
        received,
    )


# --- what a file may come to


def check_amounts(file: str, size: int, metadata: pq.FileMetaData, leaves: Iterable[int]) -> None:
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


def _rows_of_a_batch(
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
