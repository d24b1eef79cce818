"""Rows of text: where each begins and ends, line ends inside quotes included, and its fields.

Fields are split as Python's `csv` does it; delimiters may have several characters.
"""

from __future__ import annotations

import bisect
import dataclasses
from collections.abc import Iterator

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.config import CsvFormat
from recsys.data.sources.streams import LINE_LIMIT_BYTES, Readable, long_line

ROW_LIMIT_LINES = 1000
"""Lines that one row may stand on."""

_NO_ROW = 1 << 40  # More fields than any row has.


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How the fields of a row are written.

    Attributes:
        delimiter: What stands between two of them.
        quote: One ASCII character that stands around a field; empty: none does.
    """

    delimiter: str = ","
    quote: str = '"'

    @classmethod
    def of(cls, csv: CsvFormat) -> Dialect:
        """Returns the dialect that a config describes."""
        return cls(csv.delimiter, csv.quote or "")


def split_fields(row: str, dialect: Dialect) -> list[str]:
    """Returns the fields of a row; none if it is more than one row."""
    fields, _ = _scan(row, dialect)
    return fields


def is_open(row: str, dialect: Dialect) -> bool:
    """Returns whether a quoted field is still open at the end of a row."""
    return _scan(row, dialect)[1]


def split_rest(line: str, dialect: Dialect, is_open: bool = False) -> tuple[int, bool]:
    """Returns how many fields a line has, and whether the last one is left open.

    Args:
        line: A line of a row; no line end is in it.
        dialect: How the row is written.
        is_open: Whether a quote was opened in a line before.
    """
    fields, is_left_open = _scan(f"{dialect.quote}{line}" if is_open else line, dialect)
    return len(fields), is_left_open


def _scan(row: str, dialect: Dialect) -> tuple[list[str], bool]:
    fields, at = [], 0
    while True:
        field, stop, is_left_open = _field(row, at, dialect)
        if field is None:
            return [], False
        fields.append(field)
        if is_left_open or stop == len(row):
            return fields, is_left_open
        at = stop + len(dialect.delimiter)


def _field(row: str, at: int, dialect: Dialect) -> tuple[str | None, int, bool]:
    """Returns the field that begins at `at`, where it ends, and whether it is left open.

    The field is `None` where a line ends outside of quotes.
    """
    quoted = ""
    if dialect.quote and row.startswith(dialect.quote, at):
        quoted, at = _quoted(row, at + 1, dialect.quote)
        if at < 0:
            return quoted, len(row), True
    stop = row.find(dialect.delimiter, at)
    stop = len(row) if stop < 0 else stop
    plain = row[at:stop]
    if "\n" in plain or "\r" in plain:
        return None, stop, False
    return quoted + plain, stop, False


def _quoted(row: str, at: int, quote: str) -> tuple[str, int]:
    """Returns a quoted text and the place behind its closing quote; -1 where there is none."""
    parts: list[str] = []
    while True:
        end = row.find(quote, at)
        if end < 0:
            return "".join([*parts, row[at:]]), -1
        parts.append(row[at:end])
        if not row.startswith(quote, end + 1):
            return "".join(parts), end + 1
        parts.append(quote)
        at = end + 2


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a block.

    Attributes:
        block: Bytes that the rows stand in; the last one ends in a line end.
        line: Line where each starts `[n]` int64, from 1 on.
        starts: Where each begins `[n]`.
        stops: Where each ends, without the line end `[n]`.
        is_odd: Whether each stands on several lines, or has an odd number of quotes
            `[n]` bool; `None`: none of them does.
        is_whole: Whether the rows are all lines of the block, and none is blank.
    """

    block: bytes
    line: np.ndarray
    starts: np.ndarray
    stops: np.ndarray
    is_odd: np.ndarray | None
    is_whole: bool

    def __len__(self) -> int:
        return len(self.line)

    def raw(self, at: np.ndarray) -> list[bytes]:
        """Returns the rows at places `[k]`."""
        starts, stops = self.starts[at].tolist(), self.stops[at].tolist()
        return [self.block[start:stop] for start, stop in zip(starts, stops, strict=True)]

    def take(self, kept: np.ndarray) -> Rows:
        """Returns the rows that are `kept` `[n]` bool."""
        if kept.all():
            return self
        is_odd = None if self.is_odd is None else self.is_odd[kept]
        line, starts, stops = self.line[kept], self.starts[kept], self.stops[kept]
        return Rows(self.block, line, starts, stops, is_odd, is_whole=False)

    def joined(self) -> bytes:
        """Returns the rows alone, each with a line end."""
        if self.is_whole:
            return self.block
        marks = np.zeros(len(self.block) + 1, np.int8)
        marks[self.starts] += 1
        marks[self.stops + 1] -= 1
        data = np.frombuffer(self.block, np.uint8).copy()
        data[self.stops] = ord("\n")
        return data[np.cumsum(marks[:-1], dtype=np.int8).view(bool)].tobytes()

    def texts(self) -> pa.Array:
        """Returns the rows as text `[n]`; they must be UTF-8."""
        lengths = self.stops - self.starts
        offsets = np.concatenate([self.starts, [len(self.block)]])
        if not self.is_whole:
            offsets = np.concatenate([[0], np.cumsum(lengths + 1)])
        buffers = [pa.py_buffer(offsets.astype(np.int32)), pa.py_buffer(self.joined())]
        lines = pa.StringArray.from_buffers(len(self), *buffers)
        return pc.ascii_rtrim(lines, "\r\n")

    def with_byte(self, byte: int) -> np.ndarray:
        """Returns which rows hold a byte `[n]` bool."""
        places = np.flatnonzero(np.frombuffer(self.block, np.uint8) == byte)
        has_byte = np.zeros(len(self), bool)
        if len(places) and len(self):
            row = np.maximum(np.searchsorted(self.starts, places, "right") - 1, 0)
            inside = (places >= self.starts[row]) & (places < self.stops[row])
            has_byte[row[inside]] = True
        return has_byte


def row_blocks(
    stream: Readable,
    block_bytes: int,
    first_line: int,
    width: int,
    dialect: Dialect,
    file: str = "The file",
) -> Iterator[Rows]:
    """Yields the rows of a stream; blank lines are none.

    Args:
        stream: Where the rows come from.
        block_bytes: Bytes read at a time.
        first_line: Line that the stream stands at.
        width: Columns of a row.
        dialect: How the rows are written.
        file: Where they stand, for the error.

    Raises:
        RecsysError: A line is longer than `LINE_LIMIT_BYTES`.
    """
    rest, line = b"", first_line
    while True:
        read = stream.read(block_bytes)
        block = rest + read
        end = len(block) if not read else block.rfind(b"\n") + 1
        if end == 0:
            if len(block) > LINE_LIMIT_BYTES:
                raise long_line(file, line, LINE_LIMIT_BYTES, block)
            block_bytes *= 2  # So that the work doesn't grow with the square of a long row.
        block, rest = block[:end], block[end:]
        rows, n_lines, tail = _split_rows(block, line, width, dialect, is_last=not read)
        rest, line = tail + rest, line + n_lines
        if len(rows):
            yield rows
        if not read:
            return


def _split_rows(
    block: bytes, first_line: int, width: int, dialect: Dialect, is_last: bool
) -> tuple[Rows, int, bytes]:
    """Splits a block of whole lines into rows.

    Returns:
        The rows, the number of lines they stand on, and the end of the block
        that belongs to a row which the next block completes.
    """
    if block and not block.endswith(b"\n"):
        block += b"\n"
    data = np.frombuffer(block, np.uint8)
    ends = np.flatnonzero(data == ord("\n"))
    starts = np.concatenate([[0], ends[:-1] + 1]) if len(ends) else ends
    first, n_lines, tail, is_odd = np.arange(len(starts)), len(ends), b"", None
    odd = _lines_with_odd_quotes(block, data, starts, dialect)
    if len(odd):
        starts, ends, first, n_lines = _join_quoted(
            block, starts, ends, odd, width, dialect, is_last
        )
        tail = block[int(ends[-1]) + 1 :] if len(ends) else block
        block = block[: len(block) - len(tail)]
        is_odd = np.isin(first, odd)
    stops = ends
    if b"\r" in block:
        stops = ends - ((ends > starts) & (data[np.maximum(ends - 1, 0)] == ord("\r")))
    rows = Rows(block, first_line + first, starts, stops, is_odd, is_whole=True)
    return rows.take(stops > starts), n_lines, tail


def _lines_with_odd_quotes(
    block: bytes, data: np.ndarray, starts: np.ndarray, dialect: Dialect
) -> np.ndarray:
    """Returns the lines that may open or close a quote around a line end."""
    if not dialect.quote or dialect.quote.encode() not in block:
        return np.zeros(0, np.int64)
    quotes = np.add.reduceat(data == ord(dialect.quote), starts, dtype=np.int64)
    return np.flatnonzero(quotes % 2)


def _join_quoted(
    block: bytes,
    starts: np.ndarray,
    ends: np.ndarray,
    odd: np.ndarray,
    width: int,
    dialect: Dialect,
    is_last: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Joins the lines of rows whose quoted text holds line ends.

    Only lines with an odd number of quotes are looked at. One that opens a quote
    is joined with the lines up to the one that closes it if that makes a row of
    the right width; otherwise it stays alone, and is rejected later.
    """
    n_lines = len(starts)
    inner = np.zeros(n_lines, bool)
    is_odd = np.zeros(n_lines, bool)
    is_odd[odd] = True
    quoted = _QuotedLines(block, starts, ends, dialect)
    done = -1
    for at in odd.tolist():
        if at <= done:
            continue
        n_fields, is_open = split_rest(_text(block[starts[at] : ends[at]]), dialect)
        if not is_open:
            continue
        most = min(n_lines, at + ROW_LIMIT_LINES)
        last = quoted.closing(at + 1, most)
        if last is None:
            may_go_on = (
                n_lines - at < ROW_LIMIT_LINES and len(block) - starts[at] < LINE_LIMIT_BYTES
            )
            if not is_last and may_go_on:
                n_lines = at
                break
        elif is_odd[last] and n_fields + quoted.n_new_fields(at + 1, last) == width:
            inner[at + 1 : last + 1] = True
            done = last
    first = np.flatnonzero(~inner[:n_lines])
    last_lines = np.concatenate([first[1:] - 1, [n_lines - 1]]) if len(first) else first
    return starts[first], ends[last_lines], first, n_lines


class _QuotedLines:
    """Lines as they are where a quote is open before them; each is looked at once.

    Args:
        block: The text.
        starts: Where each line begins `[n]`.
        ends: Where each ends `[n]`.
        dialect: How the rows are written.
    """

    def __init__(
        self, block: bytes, starts: np.ndarray, ends: np.ndarray, dialect: Dialect
    ) -> None:
        self._block, self._starts, self._ends, self._dialect = block, starts, ends, dialect
        self._known = 0
        self._closing: list[int] = []
        # Fields that the lines before begin, each by itself.
        self._n_fields = [0]

    def closing(self, first: int, most: int) -> int | None:
        """Returns the first line from `first` to `most` - 1 that closes the quote."""
        at = bisect.bisect_left(self._closing, first)
        if self._known < first:
            self._n_fields += [self._n_fields[-1]] * (first - self._known)
            self._known = first
        while at == len(self._closing) and self._known < most:
            self._look()
        if at == len(self._closing) or self._closing[at] >= most:
            return None
        return self._closing[at]

    def n_new_fields(self, first: int, last: int) -> int:
        """Returns how many fields begin in the lines `first` to `last`."""
        return self._n_fields[last + 1] - self._n_fields[first]

    def _look(self) -> None:
        at = self._known
        line = self._block[self._starts[at] : self._ends[at]]
        n_fields, is_open = 1, True
        if self._dialect.quote.encode() in line:
            n_fields, is_open = split_rest(_text(line), self._dialect, is_open=True)
        self._n_fields.append(self._n_fields[-1] + (n_fields - 1 if n_fields else _NO_ROW))
        if not is_open:
            self._closing.append(at)
        self._known += 1


def _text(row: bytes) -> str:
    return row.decode("utf-8", "replace").removesuffix("\r")
