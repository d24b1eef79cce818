"""The pieces of files that workers read, planned after a look at the start of every file.

plan_pieces    the files of a config → a `Source` for each → its pieces
read_piece     a piece → batches of columns, of lists of events the events
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator, Sequence

from recsys.config import CsvFormat, EventSource, SourceConfig
from recsys.data.sources.detection import find_source
from recsys.data.sources.files import Section, SourceFile, match_files
from recsys.data.sources.nested import explode
from recsys.data.sources.source import Piece, RawBatch
from recsys.data.sources.streams import (
    START_BYTES,
    check_encoding,
    compression_of,
    holds_nothing,
    open_bytes,
    read_some,
)
from recsys.errors import RecsysError, UsageError

__all__ = ["EMPTY", "Piece", "check_files", "open_source", "plan_pieces", "read_piece"]

EMPTY = "R202"
"""Code of the error that a file without rows is; of several files one may be."""

_PIECE_BYTES = 64 << 20
# What compressed text comes to, about.
_GROWTH = 4


def plan_pieces(
    source: SourceConfig, what: str, columns: Sequence[str], piece_bytes: int = _PIECE_BYTES
) -> list[Piece]:
    """Returns the pieces that the files of a config are read in.

    Args:
        source: What to read.
        what: The part of `data` in the config that it is, for errors.
        columns: Columns to read.
        piece_bytes: Bytes of a piece, about.

    Raises:
        RecsysError: A file is missing, can't be read, is empty, is of another format,
            or lacks a column; or no file has rows.
        UsageError: The config describes no format or no span.
    """
    files = _checked_files(source, what, columns)
    pieces = [piece for file in files for piece in file.source.split(file, piece_bytes)]
    if not pieces:
        raise _no_rows(files[0].file)
    return pieces


def check_files(source: SourceConfig, what: str, columns: Sequence[str]) -> list[SourceFile]:
    """Returns the files of a config after a look at the start of each.

    Raises:
        RecsysError: As `plan_pieces`.
        UsageError: As `plan_pieces`.
    """
    files = _checked_files(source, what, columns)
    if not any(next(iter(file.source.split(file, file.size)), None) for file in files):
        raise _no_rows(files[0].file)
    return [SourceFile(file.file, file.size) for file in files]


def read_piece(piece: Piece) -> Iterator[RawBatch]:
    """Yields the rows of a piece, of lists of events the events.

    Raises:
        RecsysError: The file is damaged, or got shorter since the plan.
    """
    for batch in piece.source.read(piece):
        if piece.explode is None:
            yield batch
        else:
            yield from explode(batch, piece.explode)


def open_source(file: SourceFile, config: SourceConfig, columns: Sequence[str] = ()) -> Piece:
    """Returns a whole file with what reads it, after a look at its first bytes.

    Args:
        file: The file.
        config: How it is written.
        columns: Columns to read.

    Raises:
        RecsysError: It is empty, is damaged, or is of another format than is said.
    """
    if file.size == 0:
        raise _empty(file.path)
    start = read_some(Section(file.path, 0, file.size), START_BYTES)
    compression = compression_of(file.path, start)
    if compression is not None:
        start = read_some(open_bytes(file.path, 0, file.size, compression), START_BYTES)
    if holds_nothing(start):
        raise _empty(file.path)
    return Piece(
        source=find_source(file.path, start, config),
        file=file.path,
        file_index=0,
        compression=compression,
        columns=tuple(dict.fromkeys(columns)),
        size=file.size,
        start=0,
        stop=file.size,
        first=1,
        n_bytes=file.size * (1 if compression is None else _GROWTH),
        explode=config.explode if isinstance(config, EventSource) else None,
    )


def _checked_files(source: SourceConfig, what: str, columns: Sequence[str]) -> list[Piece]:
    """Returns a piece for each file, the whole of it."""
    _check_dialect(source.csv_format, what)

    @functools.cache
    def look(file: SourceFile) -> Piece:
        whole = open_source(file, source, columns)
        return whole.source.check(whole)

    files = match_files(source, what)
    return [dataclasses.replace(look(file), file_index=at) for at, file in enumerate(files)]


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


def _no_rows(file: str) -> RecsysError:
    return RecsysError(
        EMPTY,
        f"{file!r}, or another file of its source, must hold rows below its header.",
        "Write the data into it, or name another file.",
        "a header alone",
    )
