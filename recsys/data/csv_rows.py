"""Rows of a CSV file as bytes: where each one begins and ends, quoted line ends included."""

from __future__ import annotations

import csv
import dataclasses
import io
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np
import pyarrow as pa

_ROW_LIMIT_LINES = 1000


@dataclasses.dataclass(frozen=True)
class Rows:
    """Rows of a block.

    Attributes:
        line: Line where each starts `[n]` int64, from 1 on.
        raw: Bytes of each `[n]`, without the line end.
    """

    line: np.ndarray
    raw: pa.Array


def row_blocks(stream: BinaryIO, block_bytes: int, width: int) -> Iterator[Rows]:
    """Yields the rows of a stream that stands behind the header; blank lines are none."""
    rest, line = b"", 2
    while True:
        read = stream.read(block_bytes)
        block = rest + read
        end = len(block) if not read else block.rfind(b"\n") + 1
        block, rest = block[:end], block[end:]
        rows, n_lines, tail = _split_rows(block, line, width, is_last=not read)
        rest, line = tail + rest, line + n_lines
        if len(rows.line):
            yield rows
        if not read:
            return


def _split_rows(
    block: bytes, first_line: int, width: int, is_last: bool
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
    quotes = np.add.reduceat(data == ord('"'), starts, dtype=np.int64) if len(ends) else ends
    n_lines = len(ends)
    if (quotes % 2).any():
        starts, ends, first, n_lines = _join_quoted(block, starts, ends, quotes, width, is_last)
    else:
        first = np.arange(len(starts))
    tail = block[int(ends[-1]) + 1 :] if len(ends) else block
    stops = ends - ((ends > starts) & (data[np.maximum(ends - 1, 0)] == ord("\r")))
    kept = stops > starts
    raw = _slices(block, starts[kept], stops[kept])
    return Rows(first_line + first[kept], raw), n_lines, tail


def _join_quoted(
    block: bytes,
    starts: np.ndarray,
    ends: np.ndarray,
    quotes: np.ndarray,
    width: int,
    is_last: bool,
) -> tuple[np.ndarray, np.ndarray, np.ndarray, int]:
    """Joins the lines of rows whose quoted text holds line ends.

    Only lines with an odd number of quotes are looked at. One that opens a quote
    is joined with the lines up to the one that closes it if that makes a row of
    the right width; otherwise it stays alone, and is rejected later.
    """
    n_lines = len(starts)
    inner = np.zeros(n_lines, bool)
    odd = np.flatnonzero(quotes % 2)
    done = -1
    for at in odd:
        if at <= done or not ends_in_quotes(block[starts[at] : ends[at]]):
            continue
        closing = odd[(odd > at) & (odd < at + _ROW_LIMIT_LINES)]
        for last in closing:
            row = block[starts[at] : ends[last]]
            if not ends_in_quotes(row):
                if len(split_fields(row)) == width:
                    inner[at + 1 : last + 1] = True
                    done = last
                break
        else:
            if not is_last and n_lines - at < _ROW_LIMIT_LINES:
                n_lines = int(at)
                break
    first = np.flatnonzero(~inner[:n_lines])
    last = np.concatenate([first[1:] - 1, [n_lines - 1]]) if len(first) else first
    return starts[first], ends[last], first, n_lines


def split_fields(row: bytes) -> list[str]:
    """Returns the fields of `row`; none if it is more than one row."""
    rows = list(csv.reader(io.StringIO(row.decode("utf-8", "replace"), newline="")))
    return rows[0] if len(rows) == 1 else []


def ends_in_quotes(row: bytes) -> bool:
    """Returns whether a quoted field is still open at the end of `row`."""
    text = row.decode("utf-8", "replace").rstrip("\r\n")
    try:
        list(csv.reader(io.StringIO(text, newline=""), strict=True))
    except csv.Error as error:
        return "unexpected end of data" in str(error)
    return False


def _slices(block: bytes, starts: np.ndarray, stops: np.ndarray) -> pa.Array:
    """Returns `block[start:stop]` of each row as one binary array."""
    lengths = stops - starts
    offsets = np.zeros(len(starts) + 1, np.int32)
    np.cumsum(lengths, out=offsets[1:])
    data = np.frombuffer(block, np.uint8)
    marks = np.zeros(len(data) + 1, np.int8)
    marks[starts], marks[stops] = 1, -1
    kept = data[np.cumsum(marks[:-1], dtype=np.int8).view(bool)]
    return pa.Array.from_buffers(
        pa.binary(), len(starts), [None, pa.py_buffer(offsets), pa.py_buffer(kept)]
    )
