"""The parts of files that workers read, planned after a look at the start of every file."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence

from recsys.config import SourceConfig
from recsys.data.sources import parquet_source, tfrecord
from recsys.data.sources.csv_columns import Layout
from recsys.data.sources.csv_rows import Readable
from recsys.data.sources.csv_source import read_csv
from recsys.data.sources.exploded import explode
from recsys.data.sources.files import SourceFile, is_remote
from recsys.data.sources.first_look import EMPTY, has_rows, look_at_files
from recsys.data.sources.growth import finished_stop, unfinished
from recsys.data.sources.jsonl import read_jsonl
from recsys.data.sources.line_cuts import cut_lines
from recsys.data.sources.piece import Piece
from recsys.data.sources.raw_batch import RawBatch
from recsys.data.sources.text import is_splittable, open_bytes, open_text, skip_lines
from recsys.errors import RecsysError

__all__ = ["Piece", "check_files", "plan_pieces", "read_piece"]

_PIECE_BYTES = 64 << 20


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
    heads = look_at_files(source, what, wanted)
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
    heads = look_at_files(source, what, tuple(dict.fromkeys(columns)))
    if not any(has_rows(head) for head in heads):
        raise _no_rows(heads[0].file)
    return [SourceFile(head.file, head.size) for head in heads]


def read_piece(piece: Piece) -> Iterator[RawBatch]:
    """Yields the rows of a piece, of lists of events the events.

    Raises:
        RecsysError: The file is damaged, or got shorter since the plan.
    """
    for batch in _read_rows(piece):
        if piece.explode is None:
            yield batch
        else:
            yield from explode(batch, piece.explode)


def _read_rows(piece: Piece) -> Iterator[RawBatch]:
    if piece.format == "parquet":
        groups = range(piece.start, piece.stop)
        yield from parquet_source.read_groups(
            piece.file, piece.size, piece.columns, groups, piece.first
        )
    elif piece.format == "tfrecord":
        stream = open_bytes(piece.file, 0, piece.size, piece.compression)
        yield from tfrecord.read_tfrecord(piece.file, stream, piece.columns)
    else:
        stop = finished_stop(piece)
        stream = open_text(piece.file, piece.start, stop, piece.compression, piece.csv.encoding)
        yield from _read_text(piece, stream)
        if stop < piece.stop:
            yield unfinished(piece, stop)


def _read_text(piece: Piece, stream: Readable) -> Iterator[RawBatch]:
    if piece.format == "jsonl":
        yield from read_jsonl(piece.file, stream, piece.columns, piece.first)
        return
    above = piece.csv.skip_rows + (0 if piece.csv.names else 1) if piece.first == 1 else 0
    layout = Layout(piece.file, piece.names, piece.columns, piece.dialect, piece.has_rest)
    yield from read_csv(skip_lines(stream, above, piece.file), layout, piece.first + above)


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
    if not has_rows(head):
        return []
    if (
        head.format == "tfrecord"
        or head.compression is not None
        or is_remote(head.file)
        or not is_splittable(head.csv.encoding)
        or head.size <= piece_bytes
    ):
        return [head]
    quote = head.dialect.quote if head.format == "csv" else ""
    cuts = cut_lines(head.file, 0, head.size, piece_bytes, quote)
    return [
        dataclasses.replace(head, start=start, stop=stop, first=1 + lines, n_bytes=stop - start)
        for start, stop, lines in cuts
    ]


def _no_rows(file: str) -> RecsysError:
    return RecsysError(
        EMPTY,
        f"{file!r}, or another file of its source, must hold rows below its header.",
        "Write the data into it, or name another file.",
        "a header alone",
    )
