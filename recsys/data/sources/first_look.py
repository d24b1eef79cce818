"""A look at the start of each file of a source, before the work starts."""

from __future__ import annotations

import dataclasses
import functools

from recsys.config import CsvFormat, EventSource, SourceConfig
from recsys.data.sources import parquet_source, tfrecord
from recsys.data.sources.csv_fields import Dialect
from recsys.data.sources.csv_rows import Readable
from recsys.data.sources.csv_source import (
    check_header,
    check_width,
    header_names,
    missing_column,
)
from recsys.data.sources.detection import (
    START_BYTES,
    compression_of,
    format_of,
    holds_nothing,
    json_over_lines,
)
from recsys.data.sources.files import Section, SourceFile, match_files
from recsys.data.sources.jsonl import field_names, find_fields
from recsys.data.sources.piece import Piece, is_rest
from recsys.data.sources.text import (
    check_encoding,
    open_bytes,
    open_text,
    read_some,
    skip_lines,
    split_line,
)
from recsys.errors import RecsysError, UsageError

EMPTY = "R202"
"""Code of the error that a file without rows is; of several files one may be."""

_LOOK_BYTES = 8 << 20
# What compressed text comes to, about.
_GROWTH = 4


def look_at_files(source: SourceConfig, what: str, columns: tuple[str, ...]) -> list[Piece]:
    """Returns a piece for each file, the whole of it."""
    _check_dialect(source.csv, what)
    look = functools.cache(functools.partial(_look_at, source, columns))
    files = match_files(source, what)
    return [dataclasses.replace(look(file), file_index=at) for at, file in enumerate(files)]


def _look_at(source: SourceConfig, columns: tuple[str, ...], file: SourceFile) -> Piece:
    if file.size == 0:
        raise _empty(file.path)
    start = read_some(Section(file.path, 0, file.size), START_BYTES)
    compression = compression_of(file.path, start)
    if compression is not None:
        start = read_some(open_bytes(file.path, 0, file.size, compression), START_BYTES)
    if holds_nothing(start):
        raise _empty(file.path)
    format_ = format_of(file.path, start, source)
    if compression is not None and format_ == "parquet":
        raise _packed_parquet(file.path)
    n_bytes = file.size * (1 if compression is None else _GROWTH)
    head = Piece(
        file=file.path,
        file_index=0,
        format=format_,
        compression=compression,
        csv=source.csv,
        columns=columns,
        names=(),
        size=file.size,
        start=0,
        stop=file.size,
        first=1,
        n_bytes=n_bytes,
        explode=source.explode if isinstance(source, EventSource) else None,
    )
    if format_ == "csv":
        return dataclasses.replace(head, names=_check_csv(head))
    if format_ == "jsonl":
        _check_jsonl(head)
    elif format_ == "tfrecord":
        _check_tfrecord(head)
    return head


def _text_of(head: Piece) -> Readable:
    return open_text(head.file, 0, head.size, head.compression, head.csv.encoding)


def _below_skipped(head: Piece) -> Readable:
    return skip_lines(_text_of(head), head.csv.skip_rows)


def _check_csv(head: Piece) -> tuple[str, ...]:
    """Returns the names of the columns of a file."""
    stream, dialect, names = _below_skipped(head), Dialect.of(head.csv), head.csv.names
    if names:
        check_header("csv.names", names, head.columns, dialect)
        if not is_rest(head.explode, head.csv, names):
            check_width(head.file, stream, names, dialect)
        return names
    line, _ = split_line(stream, head.file)
    names = header_names(head.file, line, dialect)
    check_header(head.file, names, head.columns, dialect)
    return names


def _check_jsonl(head: Piece) -> None:
    """Raises an error if a column is in none of the first objects."""
    text = read_some(_text_of(head), _LOOK_BYTES)
    lines = text.split(b"\n")
    if len(text) == _LOOK_BYTES:
        lines.pop()
    found: dict[str, None] = {}
    missing = list(head.columns)
    for at in range(0, len(lines), 100):
        for row in find_fields(lines[at : at + 100]):
            found.update(dict.fromkeys(field_names(row)))
        missing = [name for name in missing if name not in found]
        if not missing:
            return
    if not found:
        raise json_over_lines(head.file, text[:START_BYTES])
    raise missing_column(head.file, missing[0], list(found), head.columns)


def _check_tfrecord(head: Piece) -> None:
    """Raises an error if a column is in none of the first records, if any is whole."""
    stream = open_bytes(head.file, 0, head.size, head.compression)
    batch = next(tfrecord.read_tfrecord(head.file, stream, head.columns))
    for name, column in zip(head.columns, batch.columns.columns, strict=True):
        if batch.columns.num_rows and column.null_count == len(column):
            raise missing_column(head.file, name, ["other features"], head.columns)


def has_rows(head: Piece) -> bool:
    """Returns whether there is anything behind the header."""
    if head.format == "parquet":
        file = SourceFile(head.file, head.size)
        return bool(parquet_source.plan_groups(file, head.columns, head.size))
    if head.format == "tfrecord":
        return True
    stream = _text_of(head)
    if head.format == "csv":
        stream = skip_lines(
            stream, head.csv.skip_rows + (0 if head.csv.names else 1), head.file
        )
    while data := stream.read(START_BYTES):
        if data.strip(b"\r\n"):
            return True
    return False


# --- errors


def _check_dialect(csv: CsvFormat, what: str) -> None:
    check_encoding(csv.encoding, what)
    quote, delimiter = csv.quote or "", csv.delimiter
    is_right = (
        quote.isascii()
        and quote not in ("\n", "\r", "\0")
        and not (quote and quote in delimiter)
        and not any(sign in delimiter for sign in "\n\r\0")
    )
    if not is_right:
        raise UsageError(
            "R256",
            f"data.{what}.csv must have a delimiter without line ends and quotes, "
            "and a quote that is an ASCII character.",
            "Correct csv.delimiter and csv.quote in the config.",
            {"delimiter": delimiter, "quote": csv.quote},
        )


def _empty(file: str) -> RecsysError:
    return RecsysError(
        EMPTY,
        f"{file!r} must hold rows.",
        "Write the data into it, or name another file.",
        "an empty file",
    )


def _packed_parquet(file: str) -> RecsysError:
    return RecsysError(
        "R204",
        f"{file!r} must be a Parquet file as it is, not compressed as a whole.",
        "Unpack it; Parquet compresses its columns by itself.",
        "a compressed Parquet file",
    )
