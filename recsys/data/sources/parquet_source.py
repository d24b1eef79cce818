"""Parquet files as Arrow batches, by row groups."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.dead_letters import dead_letters
from recsys.data.sources.csv_columns import NOT_TEXT
from recsys.data.sources.csv_source import missing_column
from recsys.data.sources.files import (
    Section,
    SourceFile,
    file_size,
    got_shorter,
    is_remote,
    open_file,
)
from recsys.data.sources.limits import Growth
from recsys.data.sources.nested import Path, element_type, find_path, leaf_names, pick, pick_type
from recsys.data.sources.parquet_footer import check_footer
from recsys.data.sources.parquet_limits import check_amounts, rows_of_a_batch
from recsys.data.sources.raw_batch import RawBatch
from recsys.errors import RecsysError

def plan_groups(
    file: SourceFile, columns: Sequence[str], piece_bytes: int
) -> list[tuple[int, int, int, int]]:
    """Returns parts of a file: first row group, one past the last, rows before, and bytes.

    Raises:
        RecsysError: The file is damaged, or lacks a column.
    """
    with _opened(file.path, file.size) as parquet:
        check_columns(file.path, parquet.schema_arrow, columns)
        metadata = parquet.metadata
        paths = [find_path(parquet.schema_arrow, name) for name in columns]
        wanted = [at for at, _ in _leaves(metadata, paths)]
        check_amounts(file.path, file.size, metadata, wanted)
        parts, first, n_before, n_bytes, n_rows = [], 0, 0, 0, 0
        for at in range(metadata.num_row_groups):
            group = metadata.row_group(at)
            n_bytes += sum(group.column(c).total_uncompressed_size for c in wanted)
            n_rows += group.num_rows
            if n_bytes >= piece_bytes or at == metadata.num_row_groups - 1:
                if n_rows:
                    parts.append((first, at + 1, n_before, n_bytes))
                first, n_before, n_bytes, n_rows = at + 1, n_before + n_rows, 0, 0
    return parts


def column_names(file: SourceFile) -> list[str]:
    """Returns the names of the columns of a file that can be read, nested ones as `a.b`.

    Raises:
        RecsysError: The file is damaged.
    """
    with _opened(file.path, file.size) as parquet:
        schema = parquet.schema_arrow
        paths = {name: find_path(schema, name) for name in leaf_names(schema)}
        return [n for n, path in paths.items() if path and not _is_map(pick_type(schema, path))]


def check_columns(file: str, schema: pa.Schema, columns: Sequence[str]) -> None:
    """Raises an error if a file lacks a column, has it twice, or it is no plain value or list."""
    for name in columns:
        path = find_path(schema, name)
        if path is None:
            raise missing_column(file, name, leaf_names(schema), columns)
        kind = pick_type(schema, path)
        if pa.types.is_struct(element_type(kind)) or _is_map(kind):
            raise RecsysError(
                "R254",
                f"The column {name!r} of {file!r} must hold plain values or lists of them.",
                f"Name a field in it: {name}.FIELD.",
                str(kind),
            )


def _is_map(kind: pa.DataType) -> bool:
    return bool(pa.types.is_map(kind))


def read_groups(
    file: str, size: int, columns: Sequence[str], groups: range, n_before: int
) -> Iterator[RawBatch]:
    """Yields the rows of some row groups.

    Args:
        file: The file.
        size: Its size in the plan [bytes].
        columns: Columns to return, nested ones as `a.b`.
        groups: The row groups.
        n_before: Rows of the file before them.

    Raises:
        RecsysError: The file is damaged, got shorter, or is another than in the plan.
    """
    position = n_before + 1
    with _opened(file, size) as parquet:
        schema = parquet.schema_arrow
        check_columns(file, schema, columns)
        paths = [find_path(schema, name) for name in columns]
        leaves = dict(_leaves(parquet.metadata, paths))
        check_amounts(file, size, parquet.metadata, leaves)
        with _opened(file, size, by_dictionary=list(leaves.values())) as by_dictionary:
            n_rows = rows_of_a_batch(parquet, by_dictionary, groups, list(leaves))
        batches = parquet.iter_batches(
            n_rows,
            row_groups=list(groups),
            columns=list(leaves.values()),
            use_threads=False,
        )
        growth = Growth(file, size)
        for batch in batches:
            growth.add(batch.nbytes)
            picked = [pick(batch, path) for path in paths]
            yield text_checked(file, picked, columns, position)
            position += batch.num_rows


def text_checked(
    file: str, picked: Sequence[pa.Array], columns: Sequence[str], position: int
) -> RawBatch:
    """Returns rows whose text is UTF-8; the others as dead letters.

    Args:
        file: The file.
        picked: The columns `[n]`.
        columns: Their names.
        position: Number of the first row, from 1 on.
    """
    picked = [column if _is_text(column) else _unpacked(column) for column in picked]
    batch = pa.RecordBatch.from_arrays(picked, names=list(columns))
    numbers = position + np.arange(batch.num_rows)
    bad = np.zeros(batch.num_rows, bool)
    for column in picked:
        if not _is_text(column):
            bad |= _bad_rows(column)
    whole = RawBatch(file, batch, numbers, dead_letters([], file, [], []))
    if not bad.any():
        return whole
    rejected = _as_binary(whole).reject(pa.array(bad), [NOT_TEXT] * int(bad.sum()))
    return RawBatch(file, batch.filter(pa.array(~bad)), numbers[~bad], rejected)


def _is_text(column: pa.Array) -> bool:
    """Returns whether all text in a column is UTF-8."""
    if pa.types.is_dictionary(column.type):
        return _is_text(column.dictionary)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _is_text(column.flatten())
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return True
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _unpacked(column: pa.Array) -> pa.Array:
    """Returns a column with each value in its row, where it may be in a dictionary."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return column.cast(kind.value_type)
    if pa.types.is_list(kind) and pa.types.is_dictionary(kind.value_type):
        return column.cast(pa.list_(kind.value_type.value_type))
    return column


def _bad_rows(column: pa.Array) -> np.ndarray:
    """Returns the rows with text that isn't UTF-8 `[n]` bool."""
    return np.array([not _is_text(column.slice(at, 1)) for at in range(len(column))], bool)


def _as_binary(batch: RawBatch) -> RawBatch:
    """Returns rows whose text may be shown, however damaged."""
    columns = [_binary(column) for column in batch.columns.columns]
    shown = pa.RecordBatch.from_arrays(columns, names=batch.columns.schema.names)
    return RawBatch(batch.file, shown, batch.position, batch.rejected)


def _binary(column: pa.Array) -> pa.Array:
    if pa.types.is_string(column.type):
        return column.view(pa.binary())
    if pa.types.is_large_string(column.type):
        return column.view(pa.large_binary())
    if pa.types.is_list(column.type) and pa.types.is_string(column.type.value_type):
        return column.cast(pa.list_(pa.binary()))
    return column


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
    found = "no footer: the file is cut off" if is_cut else str(error)
    return RecsysError(
        "R253",
        f"{file!r} must be a whole Parquet file; it has {size:,} bytes.",
        "Its footer says where the rows are: without it none can be read. Write it again."
        if is_cut
        else "Write it again.",
        found,
    )
