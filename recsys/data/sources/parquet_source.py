"""Parquet files as Arrow batches, by row groups.

With a dictionary, a kilobyte can represent gigabytes, since rows refer to a text that is stored
once. So the unpacked size of a file is checked before its rows are read.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Iterator, Sequence
from contextlib import contextmanager
from typing import ClassVar

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.sources.nested import Path, element_type, find_path, leaf_names, pick, pick_type
from recsys.data.sources.source import Piece, RawBatch, Source, missing_column, moved
from recsys.data.sources.source_files import file_size, open_file
from recsys.data.sources.streams import check_growth
from recsys.errors import RecsysError

_BATCH_ROWS = 1 << 17
_BATCH_BYTES = 64 << 20
_SMALL_BYTES = 256 << 20
_MOST_PARTS, _MOST_DEEP = 8192, 100


class ParquetSource(Source):
    """Parquet; nested columns are `a.b`."""

    title: ClassVar[str] = "Parquet"
    extensions: ClassVar[tuple[str, ...]] = (".parquet", ".pq")

    @classmethod
    def detects(cls, start: bytes) -> bool:
        """Returns whether bytes begin with Parquet's magic number."""
        return start.startswith(b"PAR1")

    @classmethod
    def fits(cls, start: bytes) -> bool:
        """Returns whether bytes begin with Parquet's magic number."""
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
        """Returns a file after a check of its footer.

        Raises:
            RecsysError: It is damaged, unpacks to too much, or lacks a column; or the whole
                file is compressed.
        """
        if file.compression is not None:
            raise RecsysError(
                "R204",
                f"{file.file!r} must be a Parquet file as it is, not compressed as a whole.",
                "Decompress it; Parquet compresses its columns itself.",
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
        """Yields the rows of the piece's row groups."""
        position, groups = piece.first + 1, list(range(piece.start, piece.stop))
        with _opened(piece.file, piece.size) as parquet:
            leaves = _leaves_to_read(parquet, piece)
            group = parquet.metadata.row_group(groups[0])
            repeated = [name for at, name in leaves.items() if _repeats(name, group.column(at))]
            before = [parquet.metadata.row_group(at) for at in range(piece.start)]
            # There is a value for each event, and for each row without one.
            n_values = (max(group.column(leaf).num_values for leaf in leaves) for group in before)
            shift = sum(n_values) - piece.first
        names = list(leaves.values())
        with _opened(piece.file, piece.size, names) as parquet:
            widest = max(_widest(parquet, group, list(leaves)) for group in groups)
        n_rows = max(1, min(_BATCH_ROWS, _BATCH_BYTES // max(1, widest)))
        with _opened(piece.file, piece.size, repeated) as parquet:
            batches = parquet.iter_batches(
                n_rows, row_groups=groups, columns=names, use_threads=False
            )
            paths = [find_path(parquet.schema_arrow, name) for name in piece.columns]
            n_bytes = 0
            for batch in batches:
                n_bytes += sum(map(_decoded_bytes, batch.columns))
                check_growth(piece.file, piece.size, n_bytes)
                rows = RawBatch.of(piece, [pick(batch, path) for path in paths], position)
                yield rows if piece.explode is None else moved(rows, shift)
                position += batch.num_rows


def _leaves_to_read(parquet: pq.ParquetFile, file: Piece) -> dict[int, str]:
    """Returns the indices and full names of the leaf columns of `file.columns`.

    The full name includes the levels of lists, such as `events.list.element.id`.

    Raises:
        RecsysError: A column is missing, duplicated, or neither a plain value nor a list; or
            the data to read unpack to too much.
    """
    schema, metadata = parquet.schema_arrow, parquet.metadata
    paths = [_path(file, schema, name) for name in file.columns]
    names = [metadata.schema.column(at).path for at in range(metadata.num_columns)]
    leaves = {
        at: name for at, name in enumerate(names) if any(_is_in(path, name) for path in paths)
    }
    groups = [metadata.row_group(at) for at in range(metadata.num_row_groups)]
    chunks = [[group.column(leaf) for group in groups] for leaf in leaves]
    n_values = max((sum(c.num_values for c in column) for column in chunks), default=0)
    n_bytes = sum(c.total_uncompressed_size for column in chunks for c in column)
    if any(group.num_rows < 0 for group in groups):
        raise _damaged(file.file, file.size, "a negative number of rows")
    n_rows = max(metadata.num_rows, n_values)
    check_growth(file.file, file.size, n_rows, "rows or values")
    check_growth(file.file, file.size, n_bytes)
    return leaves


def _path(file: Piece, schema: pa.Schema, name: str) -> Path:
    path = find_path(schema, name)
    if path is None:
        raise missing_column(file.file, name, leaf_names(schema), file.columns)
    kind = pick_type(schema, path)
    if pa.types.is_struct(element_type(kind)) or pa.types.is_map(kind):
        raise RecsysError(
            "R254",
            f"The column {name!r} of {file.file!r} must hold plain values or lists of them.",
            f"Name a field in it: {name}.FIELD.",
            str(kind),
        )
    return path


def _is_in(path: Path, name: str) -> bool:
    """Returns whether a column with a full name is at a path, or below it."""
    parts, rest = ".".join(path).split("."), iter(name.split("."))
    return parts[0] == next(rest) and all(part in rest for part in parts[1:])


@contextmanager
def _opened(
    file: str, size: int, by_dictionary: Sequence[str] | None = None
) -> Iterator[pq.ParquetFile]:
    """Opens a file; texts in some columns may be read as dictionaries.

    Raises:
        RecsysError: It can't be read, is damaged, or changed since the plan; or it has too
            many or too deeply nested columns for Arrow, which would crash the process.
    """
    now = file_size(file)
    if now != size:
        raise RecsysError(
            "R253",
            f"{file!r} must not change while it is read: it had {size:,} bytes.",
            "Write it under another name and rename it when it is complete. Run again.",
            f"{now:,} bytes",
        )
    options = {"read_dictionary": by_dictionary, "thrift_container_size_limit": _MOST_PARTS}
    with open_file(file) as source:
        try:
            with pq.ParquetFile(source, **options) as parquet:
                columns = (parquet.schema.column(at) for at in range(len(parquet.schema.names)))
                if any(column.path.count(".") > _MOST_DEEP for column in columns):
                    raise _too_wide(file)
                yield parquet
        except (pa.ArrowException, OSError, EOFError, UnicodeDecodeError) as error:
            is_wide = "Exceeded size limit" in str(error)
            raise (_too_wide(file) if is_wide else _damaged(file, size, str(error))) from None


def _too_wide(file: str) -> RecsysError:
    return RecsysError(
        "R253",
        f"{file!r} must have at most {_MOST_PARTS:,} columns, nested at most {_MOST_DEEP} deep, and"
        f" {_MOST_PARTS:,} row groups.",
        "Write the columns that a run reads into a file of their own, with large row groups.",
    )


def _damaged(file: str, size: int, received: str) -> RecsysError:
    return RecsysError(
        "R253",
        f"{file!r} must be a whole Parquet file; it has {size:,} bytes.",
        "Its footer has the locations of the rows: without it no row can be read. Write it again.",
        received,
    )


def _repeats(name: str, chunk: pq.ColumnChunkMetaData) -> bool:
    """Returns whether a column has texts that repeat, which are read faster as a dictionary.

    A text that is stored for each row takes at least its four bytes of length.
    """
    is_flat_text = "." not in name and chunk.physical_type == "BYTE_ARRAY"
    return is_flat_text and chunk.total_uncompressed_size < 4 * chunk.num_values


def _decoded_bytes(column: pa.Array) -> int:
    """Returns the size of a column with a text for each row [bytes]."""
    if not pa.types.is_dictionary(column.type):
        return int(column.nbytes)
    return pc.sum(pc.binary_length(column.dictionary).take(column.indices)).as_py() or 0


def _widest(parquet: pq.ParquetFile, group: int, leaves: Sequence[int]) -> int:
    """Returns an estimate of the maximum size of a row in a row group [bytes].

    Args:
        parquet: The file, with texts read as dictionaries.
        group: Index of the row group.
        leaves: Indices of the columns to read.
    """
    described = parquet.metadata.row_group(group)
    n_rows = max(1, described.num_rows)
    chunks = [described.column(leaf) for leaf in leaves]
    widest = sum(chunk.total_uncompressed_size for chunk in chunks) // n_rows
    texts = [
        chunk
        for chunk in chunks
        if chunk.physical_type == "BYTE_ARRAY"
        and chunk.total_uncompressed_size * max(chunk.num_values, n_rows) > _SMALL_BYTES
    ]
    if not texts:
        return widest
    names = [chunk.path_in_schema for chunk in texts]
    batch = next(parquet.iter_batches(1, row_groups=[group], columns=names, use_threads=False))
    n_of_a_row = -(-max(chunk.num_values for chunk in texts) // n_rows)
    return max(widest, n_of_a_row * sum(map(_longest, batch.columns)))


def _longest(column: pa.Array) -> int:
    """Returns the length of the longest text in a column's dictionaries [bytes]."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return pc.max(pc.binary_length(column.dictionary)).as_py() or 0
    if pa.types.is_struct(kind):
        return sum(_longest(column.field(at)) for at in range(kind.num_fields))
    if pa.types.is_map(kind):
        return _longest(column.keys) + _longest(column.items)
    is_list = pa.types.is_list(kind) or pa.types.is_large_list(kind)
    return _longest(column.values) if is_list else 0
