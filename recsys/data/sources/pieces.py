"""The pieces of files that workers read, planned after a check of the start of every file.

plan_pieces    the files of a config → a `Source` for each → its pieces
read_piece     a piece → batches of columns; lists of events become events
read_all       the files of a config → all their batches, in one process
"""

from __future__ import annotations

import codecs
import dataclasses
import functools
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import cast
from urllib.parse import unquote

import numpy as np
import pyarrow as pa

from recsys import registry
from recsys.data.config import CsvFormat, EventSource, SourceConfig
from recsys.data.sources.csv_source import CsvSource
from recsys.data.sources.jsonl_source import JsonLinesSource
from recsys.data.sources.lake_source import LakeTable
from recsys.data.sources.nested import explode
from recsys.data.sources.parquet_source import ParquetSource
from recsys.data.sources.source import Piece, RawBatch, Source
from recsys.data.sources.source_files import (
    SourceFile,
    ends_digest,
    match_files,
    replaced,
    skipped_files,
)
from recsys.data.sources.streams import (
    COMPRESSED_NAMES,
    START_BYTES,
    compression_of,
    has_lone_cr,
    holds_nothing,
    is_encoding,
    kind_of_bytes,
    open_bytes,
    wide_encoding,
)
from recsys.data.sources.tables import Landing, pinned
from recsys.data.sources.text_source import TextSource
from recsys.data.sources.tfrecord_source import TFRecordSource
from recsys.errors import RecsysError, UsageError

__all__ = ["EMPTY", "Piece", "open_source", "plan_pieces", "read_all", "read_piece"]

EMPTY = "R202"
"""Error code for a file without rows, which is allowed for one of several files."""
WHOLE_FILES = 1 << 62
"""Piece size larger than any file [bytes]."""

_PIECE_BYTES = 64 << 20
_GROWTH = 4  # Typical compression ratio of text.
_BUILT_IN = (CsvSource, JsonLinesSource, ParquetSource, TFRecordSource)


def plan_pieces(
    source: SourceConfig,
    what: str,
    columns: Sequence[str],
    piece_bytes: int = _PIECE_BYTES,
    ids: Sequence[str] = (),
) -> list[Piece]:
    """Returns the pieces of a config's files.

    Args:
        source: Files and format.
        what: Key of the source in `data`, for errors.
        columns: Columns to read.
        piece_bytes: Approximate size of a piece [bytes].
        ids: Columns of ids, besides the config's columns of user and item.

    Raises:
        RecsysError: A file is missing, can't be read, is empty, has another format,
            or lacks a column; or no file has rows.
        UsageError: The config describes no format or no span.
    """
    _check_dialect(source.csv_format, what)
    if isinstance(source.format, LakeTable):  # All pieces are of one version.
        source = pinned(source, columns, Landing(what, Path()))
    columns_of_ids = (*_id_columns(source), *ids)

    @functools.cache
    def checked(file: SourceFile) -> Piece:
        whole = take_folder_columns(open_source(file, source, columns))
        return whole.source.check(dataclasses.replace(whole, ids=columns_of_ids))

    files = match_files(source, what)
    whole = [dataclasses.replace(checked(file), file_index=at) for at, file in enumerate(files)]
    pieces = [piece for file in whole for piece in file.source.split(file, piece_bytes)]
    if not pieces:
        rule = f"{files[0].path!r}, or another file of its source, must hold rows below its header."
        raise _empty(rule, "a header alone")
    return pieces


def _id_columns(config: SourceConfig) -> list[str]:
    columns = getattr(config, "columns", None)
    names = (getattr(columns, role, None) for role in ("user", "item"))
    return [name for name in names if name is not None]


def read_piece(piece: Piece) -> Iterator[RawBatch]:
    """Yields the rows of a piece; for lists of events, the events.

    Raises:
        RecsysError: The file is damaged, or was truncated or replaced since the plan.
    """
    batches = piece.source.read(piece)
    if piece.folder:
        batches = (add_folder_columns(batch, piece) for batch in batches)
    place = None
    for batch in batches:
        for events in [batch] if piece.explode is None else explode(batch, piece.explode):
            if events.shares_position and batch.lines is not None:
                # Each event gets a position: those of the rows leave room for them.
                place = int(batch.position[0]) if place is None else place
                numbers = place + np.arange(len(events.position))
                events = dataclasses.replace(events, position=numbers, shares_position=False)
                place += len(numbers)
            yield events
    if piece.ends and ends_digest(piece.file, piece.size) != piece.ends:
        raise replaced(piece.file)


def read_all(
    source: SourceConfig, what: str, columns: Sequence[str]
) -> Iterator[tuple[int, RawBatch]]:
    """Yields the rows of all files in this process, each batch with the index of its file.

    Args:
        source: Files and format.
        what: Key of the source in `data`, for errors.
        columns: Columns to read.
    """
    for piece in plan_pieces(source, what, columns, WHOLE_FILES):
        for batch in read_piece(piece):
            yield piece.file_index, batch


def open_source(file: SourceFile, config: SourceConfig, columns: Sequence[str] = ()) -> Piece:
    """Returns a whole file with its source, after a check of its first bytes.

    Args:
        file: The file.
        config: Its format.
        columns: Columns to read.

    Raises:
        RecsysError: It is empty, is damaged, or has another format.
    """
    events = config.explode if isinstance(config, EventSource) else None
    if events is not None:
        columns = [events.raw_column(name) for name in columns]
    source, compression, ends = config.format, None, ""
    if not isinstance(source, LakeTable):  # Its client opens data files.
        start = open_bytes(file.path, 0, file.size).read(START_BYTES)
        compression = compression_of(file.path, start)
        if compression is not None:
            start = open_bytes(file.path, 0, file.size, compression).read(START_BYTES)
        if holds_nothing(start):
            raise _empty(f"{file.path!r} must hold rows.", "an empty file")
        source = _find_source(file.path, start, config)
        ends = ends_digest(file.path, file.size)
    return Piece(
        source=source,
        file=file.path,
        file_index=0,
        compression=compression,
        columns=tuple(dict.fromkeys(columns)),
        size=file.size,
        start=0,
        stop=file.size,
        first=1,
        n_bytes=file.size * (1 if compression is None else _GROWTH),
        explode=events,
        ends=ends,
    )


def _empty(rule: str, received: str) -> RecsysError:
    return RecsysError(EMPTY, rule, "Write the data into it, or name another file.", received)


def _check_dialect(csv: CsvFormat, what: str) -> None:
    quote = csv.quote or ""
    has_line_end = any(sign in quote + csv.delimiter for sign in "\n\r\0")
    is_ambiguous = not quote.isascii() or (quote and quote in csv.delimiter)
    if has_line_end or is_ambiguous or not is_encoding(csv.encoding):
        raise UsageError(
            "R256",
            f"data.{what}.csv must have an encoding that Python knows, a delimiter without line "
            "ends and quotes, and a quote that is an ASCII character.",
            "Correct csv.encoding (utf-8, latin-1, cp1252, utf-16 …), csv.delimiter or csv.quote.",
            {"encoding": csv.encoding, "delimiter": csv.delimiter, "quote": csv.quote},
        )


def remark_on_skipped(source: SourceConfig) -> str | None:
    """Returns a sentence on files that are skipped although their names suggest data."""
    skipped = [path for path in skipped_files(source.files) if format_of_name(path)]
    if not skipped:
        return None
    return (
        f"files that a glob matches are skipped, as their names, or those of their folders, begin"
        f" with _ or a point: {len(skipped):,}, such as {skipped[0]!r}."
    )


# --- the format of a file, from its name and its first bytes


def _find_source(path: str, start: bytes, config: SourceConfig) -> Source:
    """Returns the source that reads a file.

    Args:
        path: The file.
        start: Its first bytes, decompressed.
        config: Its format, or `auto`.

    Raises:
        RecsysError: The config or the name contradicts the bytes.
    """
    is_stated = config.format != "auto"
    source: Source | None = config.format if isinstance(config.format, Source) else None
    if source is None:
        named = _named(config.format) if is_stated else format_of_name(path)
        source = named.from_config(config) if named else None
    if source is None or isinstance(source, TextSource):
        start = _narrowed(path, start, source.encoding if source else config.csv.encoding)
    detected = next((cls for cls in _classes() if cls.detects(start)), None)
    source = source or (detected or CsvSource).from_config(config)
    other = None if detected is None or issubclass(detected, TextSource) else detected
    if isinstance(source, CsvSource | JsonLinesSource) and has_lone_cr(start):
        raise RecsysError(
            "R204",
            f"The lines of {path!r} must end in LF or CR LF.",
            r"Convert them: tr '\r' '\n' < FILE > NEW_FILE.",
            "lines that end in CR alone",
        )
    if source.fits(start) and other in (None, type(source)):
        return source
    kind = (f"a {other.title} file" if other else kind_of_bytes(start)) or "other text"
    raise _other_format(path, kind, source.title, wide_encoding(start), is_stated=is_stated)


_CONVERSIONS = {
    "a zip file": "Unpack it, and name the files in it.",
    "a tar file": "Unpack it, and name the files in it.",
    "a 7z file": "Unpack it, and name the files in it.",
    "an Excel file": "Save its sheet as CSV.",
    "an Arrow file": "Convert it, in Python: pandas.read_feather(FILE).to_parquet(NEW_FILE).",
    "an ORC file": "Convert it, in Python: pandas.read_orc(FILE).to_parquet(NEW_FILE).",
    "an SQLite database": "Export its tables as CSV.",
}


def _other_format(
    path: str, kind: str, title: str, encoding: str | None, *, is_stated: bool
) -> RecsysError:
    """Returns the error for a file whose bytes don't have the expected format."""
    named = format_of_name(path)
    if is_stated:
        rule, cure = f"{title}, as the config says", "Correct format in the config."
    elif named is not None:
        rule = f"{title}, as its name says"
        cure = "Give it the extension of its format, or set format in the config."
    else:
        rule, cure = "CSV, JSON Lines, Parquet or TFRecord", "Convert it to one of them."
    if encoding is not None:
        cure = f"Set csv.encoding: {encoding} beside its files in the config."
    return RecsysError("R204", f"{path!r} must be {rule}.", _CONVERSIONS.get(kind, cure), kind)


def format_of_name(path: str) -> type[Source] | None:
    """Returns the format that a file's name implies; `None` if it implies none."""
    name = Path(path.lower())
    if name.suffix in COMPRESSED_NAMES:
        name = name.with_suffix("")
    return next((cls for cls in _classes() if name.suffix in cls.extensions), None)


def _named(name: str) -> type[Source]:
    return cast(type[Source], registry.get("source", name))


def _classes() -> list[type[Source]]:
    """Returns the registered sources: built-in ones, then plugins'."""
    named: list[type] = [*_BUILT_IN, *map(_named, registry.names("source"))]
    return list(dict.fromkeys(cls for cls in named if issubclass(cls, Source)))


def _narrowed(path: str, start: bytes, encoding: str) -> bytes:
    """Returns the start of a UTF-16 or UTF-32 text as UTF-8; other text unchanged."""
    if not encoding.lower().replace("_", "-").startswith(("utf-16", "utf-32", "utf16", "utf32")):
        return start
    try:
        text = codecs.getincrementaldecoder(encoding)("replace").decode(start)
    except UnicodeError:  # `utf-16` and `utf-32` require a byte order mark.
        name = wide_encoding(start)
        raise RecsysError(
            "R204",
            f"{path!r} must begin with a byte order mark, as csv.encoding: {encoding} says.",
            f"Set csv.encoding: {name}." if name else "Set csv.encoding to what it is in.",
            start[:20],
        ) from None
    return text.encode("utf-8", "replace")


_NULL = "__HIVE_DEFAULT_PARTITION__"


def folder_columns(path: str) -> dict[str, str | None]:
    """Returns the columns in the names of a path's folders, with their values.

    `year=2024/month=1/day=5` also gives `date`, 2024-01-05.
    """
    parts = (part.partition("=") for part in path.split("/")[:-1])
    columns = {
        unquote(name): None if value == _NULL else unquote(value)
        for name, sign, value in parts
        if name and sign
    }
    day = [columns.get(part) or "" for part in ("year", "month", "day")]
    if all(day):
        columns.setdefault("date", "-".join(part.zfill(2) for part in day))
    return columns


def take_folder_columns(file: Piece) -> Piece:
    """Returns a whole file with the columns that only its folders have in `file.folder`.

    A column of the file takes precedence over one of a folder.

    Raises:
        RecsysError: The file is damaged.
    """
    named = folder_columns(file.file)
    if named.keys().isdisjoint(file.columns):
        return file
    own = set(file.source.column_names(file))
    of_folder = {name: named[name] for name in file.columns if name in named and name not in own}
    columns = tuple(name for name in file.columns if name not in of_folder)
    if not columns:  # A file without any columns of its own has no rows.
        return file
    return dataclasses.replace(file, columns=columns, folder=tuple(of_folder.items()))


def add_folder_columns(batch: RawBatch, piece: Piece) -> RawBatch:
    """Returns the rows of a piece with the columns of its folders."""
    rows = batch.columns
    for name, value in piece.folder:
        indices = pa.array(np.zeros(rows.num_rows, np.int8))
        column = pa.DictionaryArray.from_arrays(indices, pa.array([value], pa.string()))
        rows = rows.append_column(name, column)
    return dataclasses.replace(batch, columns=rows)
