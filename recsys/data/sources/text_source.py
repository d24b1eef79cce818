"""Formats of lines of text: split between rows, decoded, and read in blocks.

A subclass of `TextSource` parses the rows of a block. This module handles compression, encodings,
pieces, growing files and lines that are too long.
"""

from __future__ import annotations

import csv
import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Sequence
from typing import BinaryIO, Self

import numpy as np
import pyarrow as pa
import pydantic

from recsys.data.config import CsvFormat, SourceConfig
from recsys.data.dead_letters import dead_letters
from recsys.data.sources.source import Piece, RawBatch, Source
from recsys.data.sources.source_files import file_size, is_remote
from recsys.data.sources.streams import (
    LINE_LIMIT_BYTES,
    START_BYTES,
    is_encoding,
    is_splittable,
    kind_of_bytes,
    long_line,
    open_bytes,
    open_text,
    read_line,
    skip_mark,
)

UNFINISHED = "still being written: the file grew behind it"
BLOCK_BYTES = 8 << 20
"""Size of the blocks of text that are parsed at a time [bytes]."""
_CUT_BYTES = 4 << 20
_ROW_LIMIT_LINES = 1000
"""Maximum number of lines that a row can span."""
_NO_ROW = 1 << 40  # More fields than any row.
_MARKS = range(0xE000, 0xF8FF)
"""Characters for private use: one may replace a delimiter of several characters."""

csv.field_size_limit(LINE_LIMIT_BYTES)


class TextSource(Source):
    """A format of lines of text, in any encoding, compressed or not.

    A subclass must implement `column_names` and `parse`.
    """

    encoding: str = "utf-8"
    """Text encoding, by its name in Python."""

    @pydantic.field_validator("encoding")
    @classmethod
    def _is_known(cls, encoding: str) -> str:
        if not is_encoding(encoding):
            raise ValueError(f"encoding must be one of text that Python knows, not {encoding!r}")
        return encoding

    @classmethod
    def from_config(cls, config: SourceConfig) -> Self:
        """Returns the source for a config that gives only its name."""
        return cls(encoding=config.csv.encoding)

    @classmethod
    def fits(cls, start: bytes) -> bool:
        """Returns whether the first bytes of a file, decompressed, may be text."""
        return kind_of_bytes(start) is None

    def open(self, file: Piece) -> BinaryIO:
        """Opens the whole text of a file as UTF-8."""
        return open_text(file.file, 0, file.size, file.compression, self.encoding)

    def n_lines_above(self, file: Piece) -> int:
        """Returns the number of lines before the rows of a file."""
        del file
        return 0

    def rows(
        self, file: Piece, stream: BinaryIO, first_line: int, block_bytes: int
    ) -> Iterator[Rows]:
        """Yields the rows of a text in blocks; here each line is a row.

        Args:
            file: The file.
            stream: Its text in UTF-8, at the start of a row.
            first_line: Line number at the start of the stream, from 1 on.
            block_bytes: Approximate size of a block [bytes].
        """
        line = CsvFormat(quote=None)
        return row_blocks(stream, block_bytes, first_line, 0, line, file.file)

    def split(self, file: Piece, piece_bytes: int) -> Iterable[Piece]:
        """Yields the pieces of a file, cut between rows.

        Text that is neither remote nor compressed is read once to find the rows.
        """
        is_whole = (
            file.size <= piece_bytes
            or file.compression is not None
            or is_remote(file.file)
            or not is_splittable(self.encoding)
        )
        if is_whole:
            stream = self.open(file)
            line = 1 + len(self._skip_header(file, stream))
            if any(len(rows) for rows in self.rows(file, stream, line, START_BYTES)):
                yield file
            return
        raw = open_bytes(file.file, 0, file.size)
        stop = skip_mark(raw)
        header = self._skip_header(file, raw)
        stop, line, n_rows = stop + sum(map(len, header)), 1 + len(header), 0
        cuts = [(0, 1)]  # First byte and first line of each piece.
        for rows in self.rows(file, raw, line, min(1 + piece_bytes // 4, _CUT_BYTES)):
            n_rows += len(rows)
            stop, line = stop + len(rows.block), line + rows.block.count(b"\n")
            if cuts[-1][0] + piece_bytes <= stop < file.size:
                cuts.append((stop, line))
        for (start, first), (end, _) in itertools.pairwise([*cuts, (file.size, 0)]):
            if n_rows:
                yield dataclasses.replace(
                    file, start=start, stop=end, first=first, n_bytes=end - start
                )

    def _skip_header(self, file: Piece, stream: BinaryIO) -> list[bytes]:
        """Reads and returns the lines before the rows of a file."""
        lines = (
            read_line(stream, file.file, 1 + at, LINE_LIMIT_BYTES)
            for at in range(self.n_lines_above(file))
        )
        return [line for line in lines if line]

    def read(self, piece: Piece) -> Iterator[RawBatch]:
        """Yields the rows of a piece; a line that is still being written is rejected."""
        stream = open_text(piece.file, piece.start, piece.stop, piece.compression, self.encoding)
        header = self._skip_header(piece, stream) if piece.first == 1 else []
        blocks = self.rows(piece, stream, piece.first + len(header), BLOCK_BYTES)
        is_last = piece.stop == piece.size and piece.compression is None
        letters: list[pa.RecordBatch] = []
        if is_last and file_size(piece.file) > piece.size:
            blocks = _without_unfinished(piece, blocks, letters)
        yield from self.read_rows(piece, (rows for rows in blocks if len(rows)))
        for rejected in letters:
            nothing = RawBatch.of(piece, [pa.array([], pa.string())] * len(piece.columns), 1)
            yield dataclasses.replace(nothing, rejected=rejected)

    def read_rows(self, piece: Piece, blocks: Iterator[Rows]) -> Iterator[RawBatch]:
        """Yields the parsed rows of a piece, block by block."""
        return (self.parse(piece, rows) for rows in blocks)

    def parse(self, piece: Piece, rows: Rows) -> RawBatch:
        """Returns the columns of rows, and dead letters for rows that break a rule.

        Args:
            piece: Piece of the rows.
            rows: The rows, without blank lines.
        """
        raise NotImplementedError


def _without_unfinished(
    piece: Piece, blocks: Iterator[Rows], letters: list[pa.RecordBatch]
) -> Iterator[Rows]:
    """Yields rows without one that has no line end, whose dead letter is added to `letters`.

    A file that grew since the plan may have ended in the middle of a line.
    """
    for rows in blocks:
        is_unfinished = np.arange(len(rows)) >= len(rows) - rows.is_cut
        last = rows.take(is_unfinished)
        if rows.is_cut and len(rows):
            letters.append(dead_letters([UNFINISHED], piece.file, last.line, last.raw()))
        yield rows.take(~is_unfinished)


def sort_out(
    file: str, rows: Rows, columns: pa.RecordBatch, faults: np.ndarray, reasons: Sequence[str]
) -> RawBatch:
    """Returns the batch of rows, some of which have a fault.

    Args:
        file: File of the rows.
        rows: The rows `[n]`.
        columns: The columns of the rows without a fault.
        faults: Fault of each row `[n]`: 0 none, `i` the reason `reasons[i - 1]`, -1 blank.
        reasons: Reasons of dead letters.
    """
    at = np.flatnonzero(faults > 0)
    why = [reasons[fault - 1] for fault in faults[at].tolist()]
    letters = dead_letters(why, file, rows.line[at], rows.raw(at))
    good = rows.take(faults == 0)
    return RawBatch(file, columns, good.line, letters, good.raw)


def is_valid_utf8(text: bytes) -> bool:
    """Returns whether bytes are UTF-8."""
    try:
        return text.isascii() or text.decode() is not None
    except UnicodeDecodeError:
        return False


# --- rows and their fields, split in the same way as Python's csv


def split_fields(row: str, dialect: CsvFormat) -> tuple[list[str], bool]:
    """Returns the fields of a row, and whether a quote is still open at its end.

    There are no fields if the text is more than one row.
    """
    delimiter = dialect.delimiter
    if len(delimiter) > 1:
        mark = next(sign for sign in map(chr, _MARKS) if sign not in row)
        fields, is_open = split_fields(
            row.replace(delimiter, mark), dialect.model_copy(update={"delimiter": mark})
        )
        return [field.replace(mark, delimiter) for field in fields], is_open
    # The added field is separate unless a quote is open.
    rows = csv.reader(
        [f"{row}{delimiter}\0"],
        delimiter=delimiter,
        quotechar=dialect.quote,
        quoting=csv.QUOTE_NONE if dialect.quote is None else csv.QUOTE_MINIMAL,
    )
    try:
        *fields, last = next(rows)
    except csv.Error:
        return [], False
    return (fields, False) if last == "\0" else ([*fields, last[:-2]], True)


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a block.

    Attributes:
        block: Bytes that contain the rows; the last row has a line end.
        line: Line number of the start of each row `[n]` int64, from 1 on.
        starts: Start of each row in the block `[n]`.
        stops: End of each row in the block, without the line end `[n]`.
        is_odd: Whether each row spans several lines, or has an odd number of quotes
            `[n]` bool.
        is_whole: Whether the rows are all lines of the block, and none is blank.
        is_cut: Whether the last row has no line end in the file.
    """

    block: bytes
    line: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    is_odd: np.ndarray
    is_whole: bool
    is_cut: bool = False

    def __len__(self) -> int:
        return len(self.line)

    def raw(self, at: np.ndarray | None = None) -> list[bytes]:
        """Returns the rows at indices `[k]`, or all."""
        starts, stops = (
            (places if at is None else places[at]).tolist() for places in (self.starts, self.stops)
        )
        return [self.block[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def take(self, kept: np.ndarray) -> Rows:
        """Returns the rows that `kept` `[n]` bool selects."""
        if kept.all():
            return self
        line, starts, stops = self.line[kept], self.starts[kept], self.stops[kept]
        return Rows(self.block, line, starts, stops, self.is_odd[kept], is_whole=False)

    def joined(self) -> bytes:
        """Returns only the rows, each with a line end."""
        if self.is_whole:
            return self.block
        marks = np.zeros(len(self.block) + 1, np.int8)
        marks[self.starts] += 1
        marks[self.stops + 1] -= 1
        data = np.frombuffer(self.block, np.uint8).copy()
        data[self.stops] = ord("\n")
        return data[np.cumsum(marks[:-1], dtype=np.int8).view(bool)].tobytes()

    def having(self, part: bytes) -> np.ndarray:
        """Returns which rows contain some bytes `[n]` bool."""
        if part not in self.block:
            return np.zeros(len(self), bool)
        return np.array([part in row for row in self.raw()], bool)


def row_blocks(
    stream: BinaryIO,
    block_bytes: int,
    first_line: int,
    width: int,
    dialect: CsvFormat,
    file: str,
) -> Iterator[Rows]:
    """Yields the rows of a stream in blocks, without blank lines.

    The result doesn't depend on the blocks.

    Args:
        stream: Stream to read.
        block_bytes: Number of bytes to read at a time.
        first_line: Line number at the start of the stream.
        width: Number of columns.
        dialect: Dialect of the rows.
        file: File of the stream, for the error.

    Raises:
        RecsysError: A line is longer than `LINE_LIMIT_BYTES`.
    """
    rest, line, read = b"", first_line, b"."
    while read:
        read = stream.read(block_bytes)
        block = rest + read
        end = block.rfind(b"\n") + 1 if read else len(block)
        _check_lines(block, line, file)
        if end == 0:
            block_bytes *= 2  # So that the work isn't quadratic in the length of a row.
        rows, n_lines = _split_rows(block[:end], line, width, dialect, is_last=not read)
        rest, line = block[min(len(rows.block), len(block)) :], line + n_lines
        if rows.block:
            yield rows


def _check_lines(block: bytes, first_line: int, file: str) -> None:
    """Raises an error if a line of a block is too long."""
    if len(block) <= LINE_LIMIT_BYTES:
        return
    ends = np.flatnonzero(np.frombuffer(block, np.uint8) == ord("\n"))
    bounds = np.concatenate([[-1], ends, [len(block)]])
    sizes = np.diff(bounds) - 1
    longest = int(np.argmax(sizes))
    if sizes[longest] > LINE_LIMIT_BYTES:
        start = block[int(bounds[longest]) + 1 :][:100]
        raise long_line(file, first_line + longest, LINE_LIMIT_BYTES, start)


def _split_rows(
    block: bytes, first_line: int, width: int, dialect: CsvFormat, is_last: bool
) -> tuple[Rows, int]:
    """Returns the rows of a block of whole lines, and the number of lines that they span.

    A row that the next block completes is not part of the result's block.
    """
    is_cut = bool(block) and not block.endswith(b"\n")
    block += b"\n" * is_cut
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    starts = np.append(0, ends[:-1] + 1)[: len(ends)]
    first, n_lines, is_odd = np.arange(len(ends)), len(ends), np.zeros(len(ends), bool)
    if dialect.quote and dialect.quote.encode() in block:
        # These lines may open or close a quote around a line end.
        is_odd = np.bitwise_xor.reduceat(data == ord(dialect.quote), starts)
    if is_odd.any():
        first, n_lines = _join_quoted(block, starts, ends, is_odd, width, dialect, is_last)
        ends = ends[np.append(first[1:], n_lines)[: len(first)] - 1]
        starts, is_odd = starts[first], is_odd[first]
        block = block[: int(ends[-1]) + 1] if len(ends) else b""
    stops = ends
    if b"\r" in block:
        stops = ends - ((ends > starts) & (data[np.maximum(ends - 1, 0)] == ord("\r")))
    is_cut = is_cut and bool(stops[-1] > starts[-1])
    rows = Rows(block, first_line + first, starts, stops, is_odd, is_whole=True)
    return dataclasses.replace(rows.take(stops > starts), is_cut=is_cut), n_lines


def _join_quoted(
    block: bytes,
    starts: np.ndarray,
    ends: np.ndarray,
    is_odd: np.ndarray,
    width: int,
    dialect: CsvFormat,
    is_last: bool,
) -> tuple[np.ndarray, int]:
    """Joins the lines of rows whose quoted text contains line ends.

    A line that opens a quote is joined with the lines up to the one that closes it if this
    makes a row of the right width; otherwise it stays separate, and is rejected later. Each
    line is parsed once on its own, and once after an open quote.

    Returns:
        The first line of each row, and the number of lines in complete or started rows.
    """
    n_lines = len(starts)
    is_inner = np.zeros(n_lines, bool)
    n_fields = np.zeros(n_lines + 1, np.int64)  # If begun after an open quote, up to each line.
    quote = dialect.quote or ""
    seen, closing, done = 0, -1, -1

    def text(at: int) -> str:
        return block[starts[at] : ends[at]].decode("utf-8", "replace").removesuffix("\r")

    for at in np.flatnonzero(is_odd).tolist():
        if at <= done:
            continue
        fields, is_open = split_fields(text(at), dialect)
        if not is_open:
            continue
        most, seen = min(n_lines, at + _ROW_LIMIT_LINES), max(seen, at + 1)
        while closing <= at and seen < most:
            line = text(seen)
            rest, is_open = split_fields(quote + line, dialect) if quote in line else ([""], True)
            n_fields[seen + 1] = n_fields[seen] + (len(rest) - 1 if rest else _NO_ROW)
            closing = closing if is_open else seen
            seen += 1
        if closing > at:
            n_more = n_fields[closing + 1] - n_fields[at + 1]
            if is_odd[closing] and len(fields) + n_more == width:
                is_inner[at + 1 : closing + 1] = True
                done = closing
        elif (
            not is_last
            and n_lines - at < _ROW_LIMIT_LINES
            and len(block) - starts[at] < LINE_LIMIT_BYTES
        ):
            n_lines = at
            break
    return np.flatnonzero(~is_inner[:n_lines]), n_lines
