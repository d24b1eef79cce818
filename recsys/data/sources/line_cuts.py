"""Line ends where a text file can be cut, so that its parts give the rows of the whole."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np

from recsys.data.sources.csv_rows import ROW_LIMIT_LINES
from recsys.data.sources.files import Section

_CHUNK_BYTES = 4 << 20
_NEWLINE = ord("\n")


def cut_lines(
    path: str, start: int, stop: int, piece_bytes: int, quote: str
) -> Iterator[tuple[int, int, int]]:
    r"""Yields the parts of a text: first byte, one past the last, and lines before it.

    A row may go on for `ROW_LIMIT_LINES` lines after an open quote. So a cut is safe
    where as many lines before it have an even number of quotes, or all lines since the
    last cut.

    Args:
        path: The file.
        start: First byte of the first line.
        stop: One past the last byte.
        piece_bytes: Bytes of a part, about; more where there is no safe place.
        quote: What may stand around a line end; empty: nothing.
    """
    section = Section(path, start, stop)
    scan = _Scan(quote)
    offset, begin, n_lines, lines_before = start, start, 0, 0
    while data := section.read(_CHUNK_BYTES):
        ends, n_chunk = scan.safe_ends(data, begin + piece_bytes - offset)
        while len(ends):
            end, line = ends[0]
            yield begin, offset + int(end) + 1, lines_before
            begin, lines_before = offset + int(end) + 1, n_lines + int(line) + 1
            scan.forget(int(line))
            ends, _ = scan.again(begin + piece_bytes - offset)
        scan.advance()
        offset, n_lines = offset + len(data), n_lines + n_chunk
    section.close()
    if begin < stop:
        yield begin, stop, lines_before


class _Scan:
    """Line ends of a text, chunk by chunk, and since when no line was odd.

    Lines count from the one that the chunk begins in.
    """

    def __init__(self, quote: str) -> None:
        self._quote = quote.encode()
        self._last_odd: int | None = None
        self._is_odd_line = False
        self._ends = np.zeros(0, np.int64)
        self._odd = np.zeros(0, np.int64)
        self._parity = 0

    def safe_ends(self, data: bytes, at_least: int) -> tuple[np.ndarray, int]:
        """Reads a chunk; returns `again(at_least)` and its number of line ends."""
        array = np.frombuffer(data, np.uint8)
        has_quotes = self._is_odd_line or (bool(self._quote) and self._quote in data)
        if not has_quotes and at_least >= len(data):
            self._ends, self._odd, self._parity = np.zeros(0, np.int64), self._ends[:0], 0
            n_lines = int(np.count_nonzero(array == _NEWLINE))
            self._n_lines = n_lines
            return np.zeros((0, 2), np.int64), n_lines
        self._ends = np.flatnonzero(array == _NEWLINE)
        self._n_lines = len(self._ends)
        self._odd, self._parity = self._odd_lines(array) if has_quotes else (self._ends[:0], 0)
        return self.again(at_least)

    def _odd_lines(self, array: np.ndarray) -> tuple[np.ndarray, int]:
        """Returns the lines that end here with an odd number of quotes, and the rest's parity."""
        places = np.flatnonzero(array == self._quote[0])
        line_of = np.searchsorted(self._ends, places)
        counts = np.bincount(line_of, minlength=len(self._ends) + 1)
        counts[0] += self._is_odd_line
        return np.flatnonzero(counts[:-1] % 2), int(counts[-1] % 2)

    def again(self, at_least: int) -> tuple[np.ndarray, int]:
        """Returns the first safe line end from byte `at_least` - 1 on: `[0 or 1, (byte, line)]`."""
        first = int(np.searchsorted(self._ends, at_least - 1))
        lines = np.arange(first, len(self._ends))
        known = self._odd if self._last_odd is None else np.append(self._last_odd, self._odd)
        if len(known):
            before = np.searchsorted(known, lines, "right") - 1
            distance = lines - known[np.maximum(before, 0)]
            lines = lines[(before < 0) | (distance >= ROW_LIMIT_LINES)]
        found = np.stack([self._ends[lines[:1]], lines[:1]], axis=1)
        return found, self._n_lines

    def forget(self, line: int) -> None:
        """Leaves out the odd lines up to a cut after `line`."""
        self._last_odd = None
        self._odd = self._odd[self._odd > line]

    def advance(self) -> None:
        """Goes on behind the chunk."""
        if len(self._odd):
            self._last_odd = int(self._odd[-1])
        if self._last_odd is not None:
            self._last_odd -= self._n_lines
        self._is_odd_line = bool(self._parity)
