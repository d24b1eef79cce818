"""The parts of files that workers read, planned after a look at the start of every file."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

import pyarrow as pa

from recsys.config import CsvFormat, SourceConfig
from recsys.data.dead_letters import dead_letters
from recsys.data.sources import parquet_source, tfrecord
from recsys.data.sources.csv_columns import Layout
from recsys.data.sources.csv_fields import Dialect
from recsys.data.sources.csv_rows import Readable
from recsys.data.sources.csv_source import (
    check_header,
    check_width,
    header_names,
    missing_column,
    read_csv,
)
from recsys.data.sources.detection import (
    START_BYTES,
    Compression,
    Format,
    compression_of,
    format_of,
)
from recsys.data.sources.files import Section, SourceFile, file_size, is_remote, match_files
from recsys.data.sources.jsonl import find_fields, read_jsonl
from recsys.data.sources.line_cuts import cut_lines
from recsys.data.sources.raw_batch import RawBatch
from recsys.data.sources.text import (
    check_encoding,
    is_splittable,
    open_bytes,
    open_text,
    read_some,
    split_line,
)
from recsys.errors import RecsysError, UsageError

UNFINISHED = "still being written: the file grew behind it"

_PIECE_BYTES = 64 << 20
_LOOK_BYTES = 8 << 20
# What compressed text comes to, about.
_GROWTH = 4


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a file that one worker reads.

    Attributes:
        file: The file.
        file_index: Its place among the files of the source.
        format: How it is written.
        compression: How it is compressed.
        csv: How the rows of CSV are written.
        columns: The asked columns.
        names: Columns of CSV, in their order.
        size: Bytes of the file, as the plan saw it; no more are read.
        start: First byte of text, or first row group of Parquet.
        stop: One past the last.
        first: Line that the part begins at, or rows before it, from 1 or 0 on.
        n_bytes: Bytes of its rows, about.
    """

    file: str
    file_index: int
    format: Format
    compression: Compression | None
    csv: CsvFormat
    columns: tuple[str, ...]
    names: tuple[str, ...]
    size: int
    start: int
    stop: int
    first: int
    n_bytes: int


def plan_pieces(
    source: SourceConfig, what: str, columns: Sequence[str], piece_bytes: int = _PIECE_BYTES
) -> list[Piece]:
    """Returns the parts that the files of a source are read in.

    The start of every file is looked at. Text that is neither remote nor compressed is
    read once, to find the lines where it can be cut.

    Args:
        source: What to read.
        what: The part of `data` in the config that it is, for errors.
        columns: Columns to read.
        piece_bytes: Bytes of a part, about.

    Raises:
        RecsysError: A file is missing, can't be read, is empty, is of another format,
            or lacks a column; or no file has rows.
        UsageError: The config describes no format or no span.
    """
    wanted = tuple(dict.fromkeys(columns))
    heads = _look(source, what, wanted)
    pieces = [piece for head in heads for piece in _cut(head, piece_bytes)]
    if not pieces:
        raise _no_rows(heads[0].file)
    return pieces


def check_files(source: SourceConfig, what: str, columns: Sequence[str]) -> list[SourceFile]:
    """Returns the files of a source after a look at the start of each.

    Raises:
        RecsysError: As `plan_pieces`.
        UsageError: As `plan_pieces`.
    """
    heads = _look(source, what, tuple(dict.fromkeys(columns)))
    if not any(_has_rows(head) for head in heads):
        raise _no_rows(heads[0].file)
    return [SourceFile(head.file, head.size) for head in heads]


def read_piece(piece: Piece) -> Iterator[RawBatch]:
    """Yields the rows of a piece.

    Raises:
        RecsysError: The file is damaged, or got shorter since the plan.
    """
    if piece.format == "parquet":
        groups = range(piece.start, piece.stop)
        yield from parquet_source.read_groups(
            piece.file, piece.size, piece.columns, groups, piece.first
        )
    elif piece.format == "tfrecord":
        stream = open_bytes(piece.file, 0, piece.size, piece.compression)
        yield from tfrecord.read_tfrecord(piece.file, stream, piece.columns)
    else:
        stop = _finished_stop(piece)
        stream = open_text(piece.file, piece.start, stop, piece.compression, piece.csv.encoding)
        yield from _read_text(piece, stream)
        if stop < piece.stop:
            yield _unfinished(piece, stop)


def _read_text(piece: Piece, stream: Readable) -> Iterator[RawBatch]:
    if piece.format == "jsonl":
        yield from read_jsonl(piece.file, stream, piece.columns, piece.first)
        return
    first = piece.first
    if first == 1 and not piece.csv.names:
        _, stream = split_line(stream)
        first = 2
    yield from read_csv(stream, _layout(piece), first)


def _layout(piece: Piece) -> Layout:
    return Layout(piece.file, piece.names, piece.columns, Dialect.of(piece.csv))


# --- a look at the start of each file


def _look(source: SourceConfig, what: str, columns: tuple[str, ...]) -> list[Piece]:
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
    if not start.strip():
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


def _check_csv(head: Piece) -> tuple[str, ...]:
    """Returns the names of the columns of a file."""
    stream, dialect, names = _text_of(head), Dialect.of(head.csv), head.csv.names
    if names:
        check_header("csv.names", names, head.columns, dialect)
        check_width(head.file, stream, names, dialect)
        return names
    line, _ = split_line(stream)
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
    raise missing_column(head.file, missing[0], list(found), head.columns)


def field_names(row: dict[str, object], prefix: str = "") -> Iterator[str]:
    """Yields the names of the fields of a JSON object, those inside of others as `a.b`."""
    for name, value in row.items():
        if isinstance(value, dict):
            yield from field_names(value, f"{prefix}{name}.")
        else:
            yield f"{prefix}{name}"


def _check_tfrecord(head: Piece) -> None:
    """Raises an error if a column is in none of the first records."""
    stream = open_bytes(head.file, 0, head.size, head.compression)
    batch = next(tfrecord.read_tfrecord(head.file, stream, head.columns))
    for name, column in zip(head.columns, batch.columns.columns, strict=True):
        if column.null_count == len(column):
            raise missing_column(head.file, name, ["other features"], head.columns)


def _has_rows(head: Piece) -> bool:
    """Returns whether there is anything behind the header."""
    if head.format == "parquet":
        file = SourceFile(head.file, head.size)
        return bool(parquet_source.plan_groups(file, head.columns, head.size))
    if head.format == "tfrecord":
        return True
    stream = _text_of(head)
    if head.format == "csv" and not head.csv.names:
        _, stream = split_line(stream)
    while data := stream.read(START_BYTES):
        if data.strip(b"\r\n"):
            return True
    return False


# --- the cuts


def _cut(head: Piece, piece_bytes: int) -> list[Piece]:
    if head.format == "parquet":
        parts = parquet_source.plan_groups(
            SourceFile(head.file, head.size), head.columns, piece_bytes
        )
        return [
            dataclasses.replace(head, start=a, stop=b, first=n, n_bytes=n_bytes)
            for a, b, n, n_bytes in parts
        ]
    if not _has_rows(head):
        return []
    if (
        head.format == "tfrecord"
        or head.compression is not None
        or is_remote(head.file)
        or not is_splittable(head.csv.encoding)
        or head.size <= piece_bytes
    ):
        return [head]
    quote = (head.csv.quote or "") if head.format == "csv" else ""
    cuts = cut_lines(head.file, 0, head.size, piece_bytes, quote)
    return [
        dataclasses.replace(head, start=start, stop=stop, first=1 + lines, n_bytes=stop - start)
        for start, stop, lines in cuts
    ]


# --- files that grow


def _finished_stop(piece: Piece) -> int:
    """Returns where the last finished line of a piece ends.

    A file that grew since the plan may have been in the middle of a line then.
    """
    is_last = piece.stop == piece.size and piece.compression is None
    if not is_last or file_size(piece.file) <= piece.size:
        return piece.stop
    stop, step = piece.stop, 1 << 16
    while stop > piece.start:
        start = max(piece.start, stop - step)
        with Section(piece.file, start, stop) as section:
            end = read_some(section, stop - start).rfind(b"\n")
        if end >= 0:
            return start + end + 1
        stop = start
    return piece.start or piece.stop


def _unfinished(piece: Piece, start: int) -> RawBatch:
    """Returns the dead letter of a line that was still being written."""
    with Section(piece.file, piece.start, start) as section:
        n_lines = 0
        while data := section.read(_LOOK_BYTES):
            n_lines += data.count(b"\n")
    with Section(piece.file, start, piece.stop) as section:
        row = read_some(section, piece.stop - start)
    letters = dead_letters([UNFINISHED], piece.file, [piece.first + n_lines], [row])
    columns = [pa.array([], pa.string()) for _ in piece.columns]
    nothing = pa.RecordBatch.from_arrays(columns, names=list(piece.columns))
    return RawBatch(piece.file, nothing, letters.column("line").to_numpy()[:0], letters)


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
        "R202",
        f"{file!r} must hold rows.",
        "Write the data into it, or name another file.",
        "an empty file",
    )


def _no_rows(file: str) -> RecsysError:
    return RecsysError(
        "R202",
        f"{file!r}, or another file of its source, must hold rows below its header.",
        "Write the data into it, or name another file.",
        "a header alone",
    )


def _packed_parquet(file: str) -> RecsysError:
    return RecsysError(
        "R204",
        f"{file!r} must be a Parquet file as it is, not compressed as a whole.",
        "Unpack it; Parquet compresses its columns by itself.",
        "a compressed Parquet file",
    )
