"""Where each row of a text begins and ends, line ends inside quotes included."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Protocol

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.sources.csv_fields import Dialect, is_open, split_fields

ROW_LIMIT_LINES = 1000
"""Lines that one row may stand on."""


class Readable(Protocol):
    """What bytes are read from."""

    def read(self, size: int, /) -> bytes:
        """Returns the next bytes, at most `size`; none at the end."""
        ...


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
        found = np.zeros(len(self), bool)
        if len(places) and len(self):
            row = np.maximum(np.searchsorted(self.starts, places, "right") - 1, 0)
            inside = (places >= self.starts[row]) & (places < self.stops[row])
            found[row[inside]] = True
        return found


def row_blocks(
    stream: Readable, block_bytes: int, first_line: int, width: int, dialect: Dialect
) -> Iterator[Rows]:
    """Yields the rows of a stream; blank lines are none.

    Args:
        stream: Where the rows come from.
        block_bytes: Bytes read at a time.
        first_line: Line that the stream stands at.
        width: Columns of a row.
        dialect: How the rows are written.
    """
    rest, line = b"", first_line
    while True:
        read = stream.read(block_bytes)
        block = rest + read
        end = len(block) if not read else block.rfind(b"\n") + 1
        if end == 0:
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
    done = -1
    for at in odd:
        if at <= done or not is_open(_text(block[starts[at] : ends[at]]), dialect):
            continue
        closing = odd[(odd > at) & (odd < at + ROW_LIMIT_LINES)]
        for last in closing:
            row = _text(block[starts[at] : ends[last]])
            if not is_open(row, dialect):
                if len(split_fields(row, dialect)) == width:
                    inner[at + 1 : last + 1] = True
                    done = last
                break
        else:
            if not is_last and n_lines - at < ROW_LIMIT_LINES:
                n_lines = int(at)
                break
    first = np.flatnonzero(~inner[:n_lines])
    last = np.concatenate([first[1:] - 1, [n_lines - 1]]) if len(first) else first
    return starts[first], ends[last], first, n_lines


def _text(row: bytes) -> str:
    return row.decode("utf-8", "replace").removesuffix("\r")
