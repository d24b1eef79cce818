"""Formats of lines of text: cut at the starts of rows, decoded, and read in blocks.

A subclass of `TextSource` parses the rows of a block. This module handles compression, encodings,
pieces, growing files and lines that are too long.

A file is cut at any bytes without being read: each piece looks for its first and its last row,
with the same function as the pieces beside it. If text in quotes may hold line ends, it reads
some text around the cut, see `TextSource.row_start`. The lines before a piece are only counted if
one of its rows is rejected.
"""

from __future__ import annotations

import csv
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import BinaryIO, Self

import numpy as np
import pyarrow as pa
import pydantic

from recsys.data.config import CsvFormat, SourceConfig
from recsys.data.dead_letters import dead_letters
from recsys.data.sources.source import Piece, RawBatch, Source
from recsys.data.sources.source_files import file_size
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
    to_utf8,
)

Text = bytes | bytearray
UNFINISHED = "still being written: the file grew behind it"
BLOCK_BYTES = 4 << 20
"""Size of the blocks of text that are parsed at a time [bytes]."""
_ROW_LIMIT_LINES = 1000
"""Maximum number of lines that a row can span."""
_NO_ROW = 1 << 40  # More fields than any row.
_REACHES = (1 << 16, 1 << 19, 1 << 23)
"""Sizes of the text to read on each side of a cut, until it is certain where rows start [bytes]."""
_LINES = CsvFormat(quote=None)
_MARKS = range(0xE000, 0xF8FF)
"""Characters for private use: one may replace a delimiter of several characters."""
_LF, _CR = ord("\n"), ord("\r")

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

    def layout(self, file: Piece) -> tuple[int, CsvFormat]:
        """Returns the number of columns, and the dialect; with a quote, rows may span lines."""
        del file
        return 0, _LINES

    def parse(self, piece: Piece, rows: Rows) -> RawBatch:
        """Returns the columns of rows, and dead letters for rows that break a rule.

        Args:
            piece: Piece of the rows.
            rows: The rows, without blank lines.
        """
        raise NotImplementedError

    def parser(self, piece: Piece) -> Callable[[Block], RawBatch]:
        """Returns a function that parses blocks of a piece, in order."""
        return lambda block: self.parse(piece, block.rows)

    def split(self, file: Piece, piece_bytes: int) -> Iterable[Piece]:
        """Yields the pieces of a file; their ends are found when they are read."""
        if self.first_rows(file) is None:
            return
        if file.compression is not None or not is_splittable(self.encoding):
            yield file
            return
        raw = open_bytes(file.file, 0, file.size)
        body = skip_mark(raw) + sum(map(len, self._read_header(file, raw)))
        cuts = [0, *range(body + piece_bytes, file.size, piece_bytes), file.size]
        for start, stop in itertools.pairwise(cuts):
            n_bytes = stop - start
            yield dataclasses.replace(file, start=start, stop=stop, n_bytes=n_bytes, body=body)

    def read(self, piece: Piece) -> Iterator[RawBatch]:
        """Yields the rows of a piece; a line that is still being written is rejected."""
        parse = self.parser(piece)
        for block in self.blocks(piece):
            if block.is_unfinished:
                letters = dead_letters([UNFINISHED], piece.file, block.rows.line, block.rows.raw())
                nothing = RawBatch.of(piece, [pa.array([], pa.string())] * len(piece.columns), 1)
                yield dataclasses.replace(nothing, rejected=letters)
            elif not block.text.isspace() or len(block.rows):
                yield parse(block)

    def first_rows(self, file: Piece) -> Rows | None:
        """Returns some of the first rows of a file; `None` if it has none."""
        blocks = self.blocks(file, START_BYTES)
        return next((block.rows for block in blocks if len(block.rows)), None)

    def blocks(self, piece: Piece, block_bytes: int = BLOCK_BYTES) -> Iterator[Block]:
        """Yields the text of a piece in blocks of whole rows, which don't change the result.

        Args:
            piece: The piece; the lines above the rows are skipped.
            block_bytes: Approximate size of a block [bytes].

        Raises:
            RecsysError: A line is longer than `LINE_LIMIT_BYTES`.
        """
        start, stop = (self.row_start(piece, at) for at in (piece.start, piece.stop))
        stream = open_text(piece.file, start, stop, piece.compression, self.encoding)
        first_line = functools.partial(_line_at, piece, start)
        line = len(self._read_header(piece, stream)) if start == 0 else 0
        layout, n_rows, rest, n_read = self.layout(piece), 0, bytearray(), 1
        while n_read:
            # Read in place: copies would hold the interpreter's lock.
            text = bytearray(len(rest) + block_bytes)
            text[: len(rest)] = rest
            with memoryview(text)[len(rest) :] as free:
                n_read = stream.readinto(free)
            del text[len(rest) + n_read :]
            _check_lines(piece.file, text, line, first_line)
            is_cut = not n_read and text and not text.endswith(b"\n")
            if is_cut and not self._has_grown(piece, stop):
                text += b"\n"
            end = text.rfind(b"\n") + 1
            rest = text[end:]
            del text[end:]
            block = Block(text, not n_read, layout, piece.start + n_rows, line, first_line)
            if text:
                yield block
            rest, line, n_rows = (
                text[block.n_bytes :] + rest,
                line + block.n_lines,
                n_rows + block.n_rows,
            )
            if not block.n_bytes:
                block_bytes *= 2  # So that the work isn't quadratic in the length of a row.
        if rest:
            rest += b"\n"
            at = piece.start + n_rows
            yield Block(rest, True, layout, at, line, first_line, is_unfinished=True)
        known = _known_lines(piece.file, piece.size, piece.ends)
        if start in known:
            known[stop] = known[start] + line

    def _has_grown(self, piece: Piece, stop: int) -> bool:
        """Returns whether a piece ends where a file that has grown since the plan ended."""
        is_end = stop == piece.size and piece.compression is None
        return is_end and file_size(piece.file) > piece.size

    def _read_header(self, file: Piece, stream: BinaryIO) -> list[bytes]:
        """Reads and returns the lines before the rows of a file."""
        lines = (
            read_line(stream, file.file, 1 + at, LINE_LIMIT_BYTES)
            for at in range(self.n_lines_above(file))
        )
        return [line for line in lines if line]

    def row_start(self, piece: Piece, offset: int) -> int:
        """Returns the start of the first row at or after an offset of a file [bytes].

        If fields can be quoted, the offset may be in a row of several lines. A line certainly
        starts a row if no row could have begun before it and end after it, whichever lines start
        rows. The nearest such line before the offset decides which of the lines after it do. If
        there is none in `_REACHES`, which takes unusual quotes in thousands of lines, the next
        line counts as a row.

        Args:
            piece: A piece of the file.
            offset: Any offset of the rows; 0 and the end of the file are row starts.
        """
        if offset in (0, piece.size):
            return offset
        width, dialect = self.layout(piece)
        for reach in _REACHES if dialect.quote else ():
            low, high = max(piece.body, offset - reach), min(piece.size, offset + reach)
            raw, is_last = open_bytes(piece.file, low, high).read(), high == piece.size
            begin = raw.find(b"\n") + 1 if low > piece.body else 0
            raw = raw[begin:] + b"\n" if is_last else raw[begin : raw.rfind(b"\n") + 1]
            starts = low + begin + np.append(0, line_ends(raw) + 1)
            at, text = int(np.searchsorted(starts, offset)), to_utf8(raw, self.encoding)
            n_unsure = _ROW_LIMIT_LINES if low > piece.body else 0
            found = _row_line(text, n_unsure, at, width, dialect, is_last)
            if found is not None:
                return min(int(starts[found]), piece.size)
        stream = open_bytes(piece.file, offset - 1, piece.size)
        return offset - 1 + len(_read_rest(piece, stream, offset))


def _read_rest(piece: Piece, stream: BinaryIO, offset: int) -> bytes:
    rest = stream.readline(LINE_LIMIT_BYTES + 1)
    if len(rest) > LINE_LIMIT_BYTES:
        raise long_line(piece.file, _line_at(piece, offset), LINE_LIMIT_BYTES, rest)
    return rest


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
    letters = dead_letters(why, file, rows.line[at] if len(at) else [], rows.raw(at))
    good = rows.take(faults == 0)
    return RawBatch(file, columns, good.position, letters, good.raw, lines=lambda at: good.line[at])


def is_valid_utf8(text: Text) -> bool:
    """Returns whether bytes are UTF-8."""
    try:
        return text.isascii() or text.decode() is not None
    except UnicodeDecodeError:
        return False


# --- lines


@functools.lru_cache(maxsize=256)
def _known_lines(file: str, size: int, ends: str) -> dict[int, int]:
    """Returns the line numbers at some offsets of a file, as far as this process knows them."""
    del file, size, ends
    return {0: 1}


def _line_at(piece: Piece, offset: int) -> int:
    """Returns the number of the line at an offset of a file, from 1 on."""
    known = _known_lines(piece.file, piece.size, piece.ends)
    if offset not in known:
        nearest = max(at for at in list(known) if at < offset)
        stream, n_ends = open_bytes(piece.file, nearest, offset), 0
        while text := stream.read(BLOCK_BYTES):
            n_ends += int(np.count_nonzero(np.frombuffer(text, np.uint8) == _LF))
        known[offset] = known[nearest] + n_ends
    return known[offset]


def line_ends(text: Text) -> np.ndarray:
    """Returns the places of the line ends of a text `[n]` int64."""
    return np.flatnonzero(np.frombuffer(text, np.uint8) == _LF)


def _check_lines(file: str, text: Text, n_before: int, first_line: Callable[[], int]) -> None:
    """Raises an error if a line of a text is too long."""
    if len(text) <= LINE_LIMIT_BYTES:
        return
    bounds = np.concatenate([[-1], line_ends(text), [len(text)]])
    longest = int(np.argmax(np.diff(bounds)))
    start = int(bounds[longest]) + 1
    if bounds[longest + 1] - start > LINE_LIMIT_BYTES:
        number = first_line() + n_before + longest
        raise long_line(file, number, LINE_LIMIT_BYTES, bytes(text[start : start + 100]))


class Block:
    """Text of whole rows, of which only the number of lines is counted before `rows` is used.

    Args:
        text: Whole lines, in UTF-8; rows that they don't complete are left out.
        is_last: Whether no text follows.
        layout: Number of columns, and dialect.
        position: Position of the first row.
        n_before: Number of lines of the piece before it.
        first_line: Returns the number of the piece's first line.
        is_unfinished: Whether it is one line that is still being written.
    """

    def __init__(
        self,
        text: Text,
        is_last: bool,
        layout: tuple[int, CsvFormat],
        position: int,
        n_before: int,
        first_line: Callable[[], int],
        is_unfinished: bool = False,
    ) -> None:
        self.text, self._is_last, self._layout = text, is_last, layout
        self.position, self._n_before, self._first_line = position, n_before, first_line
        self.is_unfinished, self.are_lines_rows = is_unfinished, False

    @functools.cached_property
    def n_lines_of_text(self) -> int:
        """Number of lines of the text."""
        return int(np.count_nonzero(np.frombuffer(self.text, np.uint8) == _LF))

    @property
    def n_bytes(self) -> int:
        """Size of the text of complete rows [bytes]."""
        return len(self.text) if self.are_lines_rows else len(self.rows.block)

    @property
    def n_lines(self) -> int:
        """Number of lines of complete rows, with blank ones."""
        return self.n_lines_of_text if self.are_lines_rows else self.rows.n_lines

    @property
    def n_rows(self) -> int:
        """Number of rows."""
        return self.n_lines_of_text if self.are_lines_rows else len(self.rows)

    @functools.cached_property
    def rows(self) -> Rows:
        """The rows, without blank lines."""
        text, (width, dialect) = self.text, self._layout
        data, ends = np.frombuffer(text, np.uint8), line_ends(text)
        starts = np.append(0, ends[:-1] + 1)[: len(ends)]
        first, n_lines, is_odd = np.arange(len(ends)), len(ends), _are_odd(text, starts, dialect)
        spans = _possible_rows(text, starts, ends, is_odd, width, dialect, self._is_last)
        if spans:
            is_inner = np.zeros(n_lines, bool)
            for opening, closing in spans:
                if is_inner[opening]:
                    continue
                if closing == len(ends):
                    n_lines = opening
                    break
                is_inner[opening + 1 : closing + 1] = True
            first = np.flatnonzero(~is_inner[:n_lines])
            ends = ends[np.append(first[1:], n_lines)[: len(first)] - 1]
            starts, is_odd = starts[first], is_odd[first]
            text = text[: int(ends[-1]) + 1] if len(ends) else b""
        stops = ends
        if b"\r" in text:
            stops = ends - ((ends > starts) & (data[np.maximum(ends - 1, 0)] == _CR))
        position = self.position + np.arange(len(starts))
        rows = Rows(text, self._line, n_lines, first, position, starts, stops, is_odd, True)
        is_row = stops > starts
        kept = rows.take(is_row)
        return dataclasses.replace(kept, position=position[: len(kept)])

    def _line(self) -> int:
        return self._first_line() + self._n_before


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a block.

    Attributes:
        block: Bytes that contain the rows; the last row has a line end.
        first_line: Returns the number of the block's first line.
        n_lines: Number of lines of the block.
        index: Index of each row's first line in the block `[n]`.
        position: Position of each row `[n]` int64, which rises from row to row of a file.
        starts: Start of each row in the block `[n]`.
        stops: End of each row in the block, without the line end `[n]`.
        is_odd: Whether each row may span several lines, or has an odd number of quotes
            `[n]` bool.
        is_whole: Whether the rows are all lines of the block, and none is blank.
    """

    block: Text
    first_line: Callable[[], int]
    n_lines: int
    index: np.ndarray
    position: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    is_odd: np.ndarray
    is_whole: bool

    def __len__(self) -> int:
        return len(self.index)

    @property
    def line(self) -> np.ndarray:
        """Line number of the start of each row `[n]` int64, from 1 on.

        The lines before the piece may have to be counted; `position` is known without that.
        """
        return self.index + self.first_line()

    def raw(self, at: np.ndarray | None = None) -> list[bytes]:
        """Returns the rows at indices `[k]`, or all."""
        starts, stops = (
            (places if at is None else places[at]).tolist() for places in (self.starts, self.stops)
        )
        block = memoryview(self.block)
        return [bytes(block[start:stop]) for start, stop in zip(starts, stops, strict=True)]

    def take(self, kept: np.ndarray) -> Rows:
        """Returns the rows that `kept` `[n]` bool selects."""
        if kept.all():
            return self
        names = ("index", "position", "starts", "stops", "is_odd")
        arrays = {name: getattr(self, name)[kept] for name in names}
        return dataclasses.replace(self, **arrays, is_whole=False)

    def joined(self) -> Text:
        """Returns only the rows, each with a line end."""
        if self.is_whole:
            return self.block
        marks = np.zeros(len(self.block) + 1, np.int8)
        marks[self.starts] += 1
        marks[self.stops + 1] -= 1
        data = np.frombuffer(self.block, np.uint8).copy()
        data[self.stops] = _LF
        return data[np.cumsum(marks[:-1], dtype=np.int8).view(bool)].tobytes()

    def having(self, part: bytes) -> np.ndarray:
        """Returns which rows contain some bytes `[n]` bool."""
        if part not in self.block:
            return np.zeros(len(self), bool)
        return np.array([part in row for row in self.raw()], bool)


# --- rows of several lines, and their fields, split in the same way as Python's csv


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


def _are_odd(text: Text, starts: np.ndarray, dialect: CsvFormat) -> np.ndarray:
    """Returns which lines have an odd number of quotes, so may open or close one `[n]` bool."""
    if not dialect.quote or dialect.quote.encode() not in text:
        return np.zeros(len(starts), bool)
    return np.bitwise_xor.reduceat(np.frombuffer(text, np.uint8) == ord(dialect.quote), starts)


def _possible_rows(
    text: Text,
    starts: np.ndarray,
    ends: np.ndarray,
    is_odd: np.ndarray,
    width: int,
    dialect: CsvFormat,
    is_last: bool,
) -> list[tuple[int, int]]:
    """Returns the first and the last line of each row of several lines that may be in a text.

    A line that opens a quote makes one row with the lines up to the one that closes it, if this
    row has the right width; otherwise it is a row of its own, and is rejected later. A line may be
    part of several possible rows: the first one counts. Each line is parsed once on its own, and
    once after an open quote.

    Returns:
        Pairs with rising first lines. The last line is the number of lines if the text is too
        short to decide.
    """
    quote, n_lines, found = dialect.quote or "", len(starts), list[tuple[int, int]]()
    n_fields = np.zeros(n_lines + 1, np.int64)  # If begun after an open quote, up to each line.
    seen, closing = 0, -1

    def line(at: int) -> str:
        return text[starts[at] : ends[at]].decode("utf-8", "replace").removesuffix("\r")

    for at in np.flatnonzero(is_odd).tolist():
        fields, is_open = split_fields(line(at), dialect)
        if not is_open:
            continue
        most, seen = min(n_lines, at + _ROW_LIMIT_LINES), max(seen, at + 1)
        while closing <= at and seen < most:
            rest, is_open = [""], True
            if quote in line(seen):
                rest, is_open = split_fields(quote + line(seen), dialect)
            n_fields[seen + 1] = n_fields[seen] + (len(rest) - 1 if rest else _NO_ROW)
            closing = closing if is_open else seen
            seen += 1
        if closing > at:
            n_more = n_fields[closing + 1] - n_fields[at + 1]
            is_short = ends[closing] - starts[at] <= LINE_LIMIT_BYTES
            if is_odd[closing] and is_short and len(fields) + n_more == width:
                found.append((at, closing))
        elif (
            not is_last
            and n_lines - at < _ROW_LIMIT_LINES
            and len(text) - starts[at] < LINE_LIMIT_BYTES
        ):
            found.append((at, n_lines))
    return found


def _row_line(
    text: bytes, n_unsure: int, at: int, width: int, dialect: CsvFormat, is_last: bool
) -> int | None:
    """Returns the index of the first line from `at` on that starts a row; `None`: unknown.

    Args:
        text: Lines around `at`.
        n_unsure: Number of lines at the start of the text that an earlier row may reach into.
        at: Index of a line.
        width: Number of columns.
        dialect: Dialect of the rows.
        is_last: Whether no text follows.
    """
    ends = line_ends(text)
    starts = np.append(0, ends[:-1] + 1)[: len(ends)]
    is_odd = _are_odd(text, starts, dialect)
    spans = dict(_possible_rows(text, starts, ends, is_odd, width, dialect, is_last))
    is_start = np.ones(len(ends) + 1, bool)
    for opening, closing in spans.items():
        is_start[opening + 1 : closing + 1] = False
    sure = np.flatnonzero(is_start[n_unsure : at + 1])
    line = n_unsure + int(sure[-1]) if len(sure) else len(is_start)
    while line < at:
        line = spans.get(line, line) + 1
    return line if line < len(is_start) else None
