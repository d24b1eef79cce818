"""Formats of lines of text: cut at the starts of rows, decoded, and read in blocks.

A subclass of `TextSource` parses the rows of a block. This module handles compression, encodings,
pieces, growing files and lines that are too long.

A file is cut at any bytes without being read: each piece looks for its first and its last row,
with the same function as the pieces beside it. If text in quotes may hold line ends, it reads
some text around the cut, see `TextSource.row_start`. The lines before a piece are only counted if
one of its rows is rejected.
"""

from __future__ import annotations

import copy
import csv
import dataclasses
import functools
import itertools
from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import BinaryIO, NamedTuple, Self

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

    def read_rows(self, piece: Piece, blocks: Iterator[Rows]) -> Iterator[RawBatch]:
        """Yields the parsed rows of a piece, block by block."""
        return (self.parse(piece, rows) for rows in blocks)

    def split(self, file: Piece, piece_bytes: int) -> Iterable[Piece]:
        """Yields the pieces of a file; their ends are found when they are read."""
        if self.first_rows(file) is None:
            return
        if file.compression is not None or not is_splittable(self.encoding):
            yield file
            return
        raw = open_bytes(file.file, 0, file.size)
        body = skip_mark(raw) + sum(map(len, self._read_header(file, raw)))
        n_pieces = max(1, -(-(file.size - body) // piece_bytes))
        cuts = (body + at * (file.size - body) // n_pieces for at in range(1, n_pieces))
        for start, stop in itertools.pairwise([0, *cuts, file.size]):
            n_bytes = stop - start
            yield dataclasses.replace(file, start=start, stop=stop, n_bytes=n_bytes, body=body)

    def read(self, piece: Piece) -> Iterator[RawBatch]:
        """Yields the rows of a piece; a line that is still being written is rejected."""
        unfinished: list[Rows] = []
        yield from self.read_rows(piece, self.blocks(piece, unfinished=unfinished))
        for rows in unfinished:
            empty = pa.array([], pa.string())
            columns = pa.RecordBatch.from_pydict(dict.fromkeys(piece.columns, empty))
            yield sort_out(piece.file, rows, columns, {0: UNFINISHED})

    def first_rows(self, file: Piece) -> Rows | None:
        """Returns some of the first rows of a file; `None` if it has none."""
        return next(self.blocks(file, START_BYTES), None)

    def blocks(
        self, piece: Piece, block_bytes: int = BLOCK_BYTES, unfinished: list[Rows] | None = None
    ) -> Iterator[Rows]:
        """Yields the rows of a piece in blocks, which don't change the result.

        Args:
            piece: The piece; the lines above the rows are skipped.
            block_bytes: Approximate size of a block [bytes].
            unfinished: Gets a last line that has no end, if the file has grown behind it.

        Raises:
            RecsysError: A line is longer than `LINE_LIMIT_BYTES`.
        """
        start, stop = (self.row_start(piece, at) for at in (piece.start, piece.stop))
        stream = open_text(piece.file, start, stop, piece.compression, self.encoding)
        line = len(self._read_header(piece, stream)) if start == 0 else 0
        layout, n_rows, rest, n_read = self.layout(piece), 0, bytearray(), 1
        while n_read:
            # Read in place: copies would hold the interpreter's lock.
            text = bytearray(len(rest) + block_bytes)
            text[: len(rest)] = rest
            with memoryview(text)[len(rest) :] as free:
                n_read = stream.readinto(free)
            del text[len(rest) + n_read :]
            first_line = functools.partial(_line_at, piece, start, line)
            _check_lines(piece.file, text, first_line)
            is_cut = not n_read and text and not text.endswith(b"\n")
            if is_cut and not self._has_grown(piece, stop):
                text += b"\n"
            end = text.rfind(b"\n") + 1
            rest = text[end:]
            del text[end:]
            rows = Rows(text, first_line, piece.start + n_rows, layout, is_last=not n_read)
            if text and (not text.isspace() or len(rows)):
                yield rows
            rest[:0] = text[rows.n_bytes :]
            line, n_rows = line + rows.n_lines, n_rows + len(rows)
            if not rows.n_bytes:
                block_bytes *= 2  # So that the work isn't quadratic in the length of a row.
        if rest and unfinished is not None:
            first_line = functools.partial(_line_at, piece, start, line)
            unfinished.append(Rows(rest + b"\n", first_line, piece.start + n_rows))
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
        layout = self.layout(piece)
        for reach in _REACHES if layout[1].quote else ():
            low, high = max(piece.body, offset - reach), min(piece.size, offset + reach)
            raw, is_last = open_bytes(piece.file, low, high).read(), high == piece.size
            begin = raw.find(b"\n") + 1 if low > piece.body else 0
            raw = raw[begin:] + b"\n" if is_last else raw[begin : raw.rfind(b"\n") + 1]
            starts = low + begin + np.append(0, _line_places(raw)[1] + 1)
            at, text = int(np.searchsorted(starts, offset)), to_utf8(raw, self.encoding)
            n_unsure = _ROW_LIMIT_LINES if low > piece.body else 0
            found = _row_line(text, n_unsure, at, layout, is_last)
            if found is not None:
                return min(int(starts[found]), piece.size)
        rest = open_bytes(piece.file, offset - 1, piece.size).readline(LINE_LIMIT_BYTES + 1)
        if len(rest) > LINE_LIMIT_BYTES:
            raise long_line(piece.file, _line_at(piece, offset), LINE_LIMIT_BYTES, rest)
        return offset - 1 + len(rest)


def sort_out(
    file: str, rows: Rows, columns: pa.RecordBatch, reasons: Mapping[int, str] | None = None
) -> RawBatch:
    """Returns the batch of rows, some of which may be rejected.

    Args:
        file: File of the rows.
        rows: The rows `[n]`.
        columns: The columns of the good rows.
        reasons: Why rows are rejected, by their indices; an empty reason: the row is blank.
    """
    good, letters = rows, dead_letters([], file, [], [])
    if reasons:
        is_good = np.ones(len(rows), bool)
        is_good[list(reasons)] = False
        good = rows.take(is_good)
        at = sorted(index for index, reason in reasons.items() if reason)
        why, raw = [reasons[index] for index in at], rows.raw(np.array(at, np.int64))
        letters = dead_letters(why, file, rows.line[at] if at else [], raw)
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


def _line_at(piece: Piece, offset: int, n_more: int = 0) -> int:
    """Returns the number of the line at an offset of a file, from 1 on, plus `n_more`."""
    known = _known_lines(piece.file, piece.size, piece.ends)
    if offset not in known:
        nearest = max(at for at in list(known) if at < offset)
        stream = open_bytes(piece.file, nearest, offset)
        n_lines = sum(map(_count_lines, iter(functools.partial(stream.read, BLOCK_BYTES), b"")))
        known[offset] = known[nearest] + n_lines
    return known[offset] + n_more


def _count_lines(text: Text) -> int:
    return int(np.count_nonzero(np.frombuffer(text, np.uint8) == _LF))


def _line_places(text: Text) -> tuple[np.ndarray, np.ndarray]:
    """Returns the starts and ends of the lines of a text `[n]`."""
    ends = np.flatnonzero(np.frombuffer(text, np.uint8) == _LF)
    return np.append(0, ends[:-1] + 1)[: len(ends)], ends


def _check_lines(file: str, text: Text, first_line: Callable[[], int]) -> None:
    """Raises an error if a line of a text is too long."""
    if len(text) > LINE_LIMIT_BYTES:
        starts, ends = _line_places(text + b"\n")
        longest = int(np.argmax(ends - starts))
        if ends[longest] - starts[longest] > LINE_LIMIT_BYTES:
            shown = bytes(text[starts[longest] :][:100])
            raise long_line(file, first_line() + longest, LINE_LIMIT_BYTES, shown)


class Places(NamedTuple):
    """Where rows are in a text: arrays `[n]`.

    Attributes:
        line: Index of each row's first line.
        starts: First byte of each row.
        stops: End of each row, without the line end.
        is_odd: Whether each row may span several lines, or has an odd number of quotes.
    """

    line: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    is_odd: np.ndarray


class Rows:
    """Rows of a block of text, without blank lines; their places are found when they are used.

    Args:
        text: Whole lines, in UTF-8.
        first_line: Returns the number of the first line.
        position: Position of the first row.
        layout: Number of columns, and dialect.
        is_last: Whether no text follows; else, a row that the text doesn't complete is left out.
    """

    def __init__(
        self,
        text: Text,
        first_line: Callable[[], int],
        position: int,
        layout: tuple[int, CsvFormat] = (0, _LINES),
        is_last: bool = True,
    ) -> None:
        self.text, self._first_line, self._position = text, first_line, position
        self._layout, self._is_last, self._n_rows = layout, is_last, -1
        self.n_bytes = len(text)

    @functools.cached_property
    def n_lines(self) -> int:
        """Number of lines, with blank ones."""
        return _count_lines(self.text)

    def mark_as_lines(self) -> None:
        """Declares that each line is a row, so that their places need not be found."""
        self._n_rows = self.n_lines

    def __len__(self) -> int:
        return len(self.places.line) if self._n_rows < 0 else self._n_rows

    @functools.cached_property
    def position(self) -> np.ndarray:
        """Numbers that rise from row to row of a file `[n]` int64."""
        return self._position + np.arange(len(self))

    @property
    def line(self) -> np.ndarray:
        """Line number of each row `[n]` int64, from 1 on.

        It may take a pass over the text before; `position` doesn't.
        """
        return self.places.line + self._first_line()

    def raw(self, at: np.ndarray | None = None) -> list[bytes]:
        """Returns the rows at indices `[k]`, or all."""
        _, starts, stops, _ = self.places
        if at is not None:
            starts, stops = starts[at], stops[at]
        text = memoryview(self.text)
        return [bytes(text[a:b]) for a, b in zip(starts.tolist(), stops.tolist(), strict=True)]

    def take(self, kept: np.ndarray) -> Rows:
        """Returns the rows that `kept` `[n]` bool selects."""
        taken = copy.copy(self)
        taken.position, taken._n_rows = self.position[kept], int(np.count_nonzero(kept))
        taken.places = Places(*(places[kept] for places in self.places))
        return taken

    @functools.cached_property
    def places(self) -> Places:
        """Where the rows are."""
        text = self.text
        starts, ends = _line_places(text)
        is_odd, n_lines = _are_odd(text, starts, self._layout[1]), len(ends)
        first = np.arange(n_lines)
        if is_odd.any():
            spans = _rows_of_several_lines(text, starts, ends, is_odd, self._layout, self._is_last)
            is_inner = np.zeros(n_lines, bool)
            for opening, closing in spans.items():
                if is_inner[opening]:
                    continue
                if closing == len(ends):
                    n_lines = opening
                    break
                is_inner[opening + 1 : closing + 1] = True
            self.n_lines = n_lines
            first = np.flatnonzero(~is_inner[:n_lines])
            ends = ends[np.append(first[1:], n_lines)[: len(first)] - 1]
            starts, is_odd = starts[first], is_odd[first]
            self.n_bytes = int(ends[-1]) + 1 if len(ends) else 0
        stops = ends
        if b"\r" in text:
            before = np.frombuffer(text, np.uint8)[np.maximum(ends - 1, 0)]
            stops = ends - ((ends > starts) & (before == _CR))
        is_row = stops > starts
        places = Places(first, starts, stops, is_odd)
        return places if is_row.all() else Places(*(array[is_row] for array in places))


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


def _rows_of_several_lines(
    text: Text,
    starts: np.ndarray,
    ends: np.ndarray,
    is_odd: np.ndarray,
    layout: tuple[int, CsvFormat],
    is_last: bool,
) -> dict[int, int]:
    """Returns the last line of each row of several lines that may be in a text, by its first line.

    A line that opens a quote makes one row with the lines up to the next one with an odd number of
    quotes, if this row has the right width and no quote is left open; otherwise it is a row of its
    own, and is rejected later. A line may be part of several possible rows: the first one counts.

    Returns:
        The lines in order. The last line is the number of lines if the text is too short to decide.
    """
    (width, dialect), n_lines, found = layout, len(starts), dict[int, int]()
    odd = np.flatnonzero(is_odd).tolist()
    for opening, closing in itertools.pairwise([*odd, n_lines]):
        is_short = closing - opening < _ROW_LIMIT_LINES
        n_bytes = (ends[closing] if closing < n_lines else len(text)) - starts[opening]
        if not is_short or n_bytes > LINE_LIMIT_BYTES:
            continue
        line = text[starts[opening] : ends[opening]].decode("utf-8", "replace")
        if not split_fields(line, dialect)[1]:
            continue
        if closing == n_lines:
            found |= {} if is_last else {opening: n_lines}
            continue
        row = text[starts[opening] : ends[closing]].decode("utf-8", "replace")
        fields, is_open = split_fields(row.removesuffix("\r"), dialect)
        if len(fields) == width and not is_open:
            found[opening] = closing
    return found


def _row_line(
    text: bytes, n_unsure: int, at: int, layout: tuple[int, CsvFormat], is_last: bool
) -> int | None:
    """Returns the index of the first line from `at` on that starts a row; `None`: unknown.

    Args:
        text: Lines around `at`.
        n_unsure: Number of lines at the start of the text that an earlier row may reach into.
        at: Index of a line.
        layout: Number of columns, and dialect.
        is_last: Whether no text follows.
    """
    starts, ends = _line_places(text)
    is_odd = _are_odd(text, starts, layout[1])
    spans = _rows_of_several_lines(text, starts, ends, is_odd, layout, is_last)
    is_start = np.ones(len(ends) + 1, bool)
    for opening, closing in spans.items():
        is_start[opening + 1 : closing + 1] = False
    sure = np.flatnonzero(is_start[n_unsure : at + 1])
    line = n_unsure + int(sure[-1]) if len(sure) else len(is_start)
    while line < at:
        line = spans.get(line, line) + 1
    return line if line < len(is_start) else None
