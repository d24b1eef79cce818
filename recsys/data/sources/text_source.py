"""Formats of lines of text: cut at line ends, decoded, and read a block at a time.

A subclass of `TextSource` says what the rows of a block hold. Compression, encodings,
pieces, files that grow and lines that are too long are taken care of here.
"""

from __future__ import annotations

import codecs
import dataclasses
from collections.abc import Iterable, Iterator
from typing import Self

import numpy as np
import pyarrow as pa
import pydantic

from recsys.config import SourceConfig
from recsys.data.dead_letters import dead_letters
from recsys.data.sources.files import Section, file_size, is_remote
from recsys.data.sources.rows import ROW_LIMIT_LINES, Dialect, Rows, row_blocks
from recsys.data.sources.source import Piece, RawBatch, Source
from recsys.data.sources.streams import (
    START_BYTES,
    Readable,
    is_encoding,
    is_splittable,
    kind_of_bytes,
    open_text,
    read_some,
    skip_lines,
)
from recsys.errors import RecsysError

UNFINISHED = "still being written: the file grew behind it"
BLOCK_BYTES = 8 << 20
"""Bytes of text that are parsed at a time."""
LINES = Dialect(quote="")
"""Rows that are lines, whatever stands in them."""

_CUT_BYTES = 4 << 20
_NEWLINE = ord("\n")


class TextSource(Source):
    """A format of lines of text, in any encoding, compressed or not.

    A subclass needs `column_names`, and `parse` or `read_text`.
    """

    encoding: str = "utf-8"
    """Encoding of the text, by the name that Python has for it."""

    @pydantic.field_validator("encoding")
    @classmethod
    def _is_known(cls, encoding: str) -> str:
        if not is_encoding(encoding):
            raise ValueError(f"encoding must be one of text that Python knows, not {encoding!r}")
        return encoding

    @classmethod
    def from_config(cls, config: SourceConfig) -> Self:
        """Returns the source of a config that names it without options."""
        return cls(encoding=config.csv.encoding)

    @classmethod
    def fits(cls, start: bytes) -> bool:
        """Returns whether the first bytes of a file, decompressed, may be text."""
        return kind_of_bytes(start) is None

    def explain(self, path: str, start: bytes) -> RecsysError | None:
        """Returns the error of a file whose first bytes don't fit; `None`: the usual one."""
        del path, start
        return None

    def open(self, file: Piece) -> Readable:
        """Opens the whole text of a file, UTF-8, from its first line on."""
        return open_text(file.file, 0, file.size, file.compression, self.encoding)

    def n_lines_above(self, file: Piece) -> int:
        """Returns how many lines stand above the rows of a file."""
        del file
        return 0

    def quote_of(self, file: Piece) -> str:
        """Returns what may stand around a line end in a row; empty: nothing."""
        del file
        return ""

    def split(self, file: Piece, piece_bytes: int) -> Iterable[Piece]:
        """Yields the pieces of a file, cut at line ends that surely end a row.

        Text that is neither remote nor compressed is read once, to find such line ends.
        """
        if not self._has_rows(file):
            return
        is_whole = (
            file.size <= piece_bytes
            or file.compression is not None
            or is_remote(file.file)
            or not is_splittable(self.encoding)
        )
        if is_whole:
            yield file
            return
        for start, stop, lines in cut_lines(
            file.file, 0, file.size, piece_bytes, self.quote_of(file)
        ):
            yield dataclasses.replace(
                file, start=start, stop=stop, first=1 + lines, n_bytes=stop - start
            )

    def _has_rows(self, file: Piece) -> bool:
        """Returns whether there is anything below the header."""
        stream = skip_lines(self.open(file), self.n_lines_above(file), file.file)
        while data := stream.read(START_BYTES):
            if data.strip(b"\r\n"):
                return True
        return False

    def read(self, piece: Piece) -> Iterator[RawBatch]:
        """Yields the rows of a piece; a line that is still being written is rejected."""
        stop = _finished_stop(piece, self.encoding)
        stream = open_text(piece.file, piece.start, stop, piece.compression, self.encoding)
        n_above = self.n_lines_above(piece) if piece.first == 1 else 0
        stream = skip_lines(stream, n_above, piece.file)
        yield from self.read_text(piece, stream, piece.first + n_above)
        if stop < piece.stop:
            yield _unfinished(piece, stop, self.encoding)

    def read_text(self, piece: Piece, stream: Readable, first_line: int) -> Iterator[RawBatch]:
        """Yields the rows of text.

        Args:
            piece: Where it stands.
            stream: The text, UTF-8, behind its header.
            first_line: Line that the stream stands at, from 1 on.
        """
        for rows in row_blocks(stream, BLOCK_BYTES, first_line, 0, LINES, piece.file):
            yield self.parse(piece, rows)

    def parse(self, piece: Piece, rows: Rows) -> RawBatch:
        """Returns what lines hold; those that break a rule are among the rejected.

        Args:
            piece: Where they stand.
            rows: The lines; blank ones are left out.
        """
        raise NotImplementedError


# --- line ends where a text can be cut


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
    while data := section.read(_CUT_BYTES):
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
        return np.stack([self._ends[lines[:1]], lines[:1]], axis=1), self._n_lines

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


# --- files that grow while they are read


def _finished_stop(piece: Piece, encoding: str) -> int:
    """Returns where the last finished line of a piece ends.

    A file that grew since the plan may have been in the middle of a line then.
    """
    is_last = piece.stop == piece.size and piece.compression is None
    if not is_last or file_size(piece.file) <= piece.size:
        return piece.stop
    stop, step = piece.stop, 1 << 16
    while stop > piece.start:
        start = max(piece.start, stop - step)
        with Section(piece.file, start, stop) as section:
            data = read_some(section, stop - start)
        end = _behind_line_end(data, start, _unit(encoding))
        if end is not None:
            return start + end
        stop = start
    return piece.start or piece.stop


def _unit(encoding: str) -> int:
    """Returns the bytes of the smallest character of an encoding."""
    name = codecs.lookup(encoding).name
    return 4 if name.startswith("utf-32") else 2 if name.startswith("utf-16") else 1


def _behind_line_end(data: bytes, start: int, unit: int) -> int | None:
    """Returns what follows the last line end of `data`, which begins at byte `start`."""
    end = data.rfind(b"\n")
    while end >= 0:
        first = end - (start + end) % unit
        if first >= 0 and data[first : first + unit].strip(b"\0") == b"\n":
            return first + unit
        end = data.rfind(b"\n", 0, end)
    return None


def _unfinished(piece: Piece, start: int, encoding: str) -> RawBatch:
    """Returns the dead letter of a line that was still being written."""
    with Section(piece.file, piece.start, start) as section:
        n_lines = 0
        while data := section.read(_CUT_BYTES):
            n_lines += data.count(b"\n")
    with Section(piece.file, start, piece.stop) as section:
        row = read_some(section, piece.stop - start)
    row = row.decode(encoding, "replace").encode()
    letters = dead_letters([UNFINISHED], piece.file, [piece.first + n_lines], [row])
    columns = [pa.array([], pa.string()) for _ in piece.columns]
    nothing = pa.RecordBatch.from_arrays(columns, names=list(piece.columns))
    return RawBatch(piece.file, nothing, np.zeros(0, np.int64), letters)
