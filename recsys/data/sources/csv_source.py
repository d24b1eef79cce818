"""CSV files as Arrow batches of text; a row that doesn't fit becomes a dead letter.

Arrow parses many rows at a time. It can't say which rows it took for one where
quotes are unusual, so such rows, a few, are split one by one.

Measured on one core with 3,000,000 rows of four columns: 8.7 million rows/s here, 14.9 by
Arrow's reader alone, 5.8 by DuckDB 2.0 with `store_rejects`. DuckDB refuses a whole file in
which a quote is never closed; here that costs one row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator, Sequence
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from recsys.config import CsvFormat, SourceConfig
from recsys.data.dead_letters import dead_letters
from recsys.data.sources.rows import Dialect, Rows, is_open, row_blocks, split_fields
from recsys.data.sources.source import NOT_TEXT, Piece, RawBatch, check_columns
from recsys.data.sources.streams import LINE_LIMIT_BYTES, Readable, skip_lines, split_line
from recsys.data.sources.text_source import BLOCK_BYTES, TextSource
from recsys.errors import RecsysError
from recsys.registry import register_source

WRONG_WIDTH = "wrong number of fields"
OPEN_QUOTE = "a quote is never closed"

_OTHER_DELIMITERS = (";", "\t", "|", "::", ",")
# Control characters that may stand in for a delimiter of several bytes.
_MARKS = [bytes([code]) for code in (0x1F, 0x1E, 0x1D, 0x1C, *range(1, 9), *range(0x0E, 0x1C))]


@register_source("csv")
class CsvSource(CsvFormat, TextSource):
    """CSV text; every value is text."""

    title: ClassVar[str] = "CSV text"
    extensions: ClassVar[tuple[str, ...]] = (
        *(".csv", ".tsv", ".psv", ".dat", ".txt", ".data"),
        *(".inter", ".item", ".user"),  # RecBole's atomic files.
    )

    @classmethod
    def from_config(cls, config: SourceConfig) -> Self:
        """Returns the source with the options that `csv` has, beside `format`."""
        return cls(**dict(config.csv))

    def column_names(self, file: Piece) -> list[str]:
        """Returns `names`, or those that the header has."""
        if self.names:
            return list(self.names)
        line, _ = split_line(skip_lines(self.open(file), self.skip_rows), file.file)
        return list(header_names(file.file, line, Dialect.of(self)))

    def check(self, file: Piece) -> Piece:
        """Returns a file with the names of its columns; also checks the width of first rows."""
        names = tuple(self.column_names(file))
        where = "csv.names" if self.names else file.file
        dialect = Dialect.of(self)
        check_columns(where, names, file.columns, _other_delimiter(names, dialect))
        file = dataclasses.replace(file, names=names)
        if self.names and not self._has_rest(file):
            check_width(file.file, skip_lines(self.open(file), self.skip_rows), names, dialect)
        return file

    def n_lines_above(self, file: Piece) -> int:
        """Returns how many lines stand above the rows, the header included."""
        del file
        return self.skip_rows + (0 if self.names else 1)

    def quote_of(self, file: Piece) -> str:
        """Returns the quote that may stand around a line end."""
        return self._dialect_of(file).quote

    def read_text(self, piece: Piece, stream: Readable, first_line: int) -> Iterator[RawBatch]:
        """Yields the rows of text."""
        dialect, has_rest = self._dialect_of(piece), self._has_rest(piece)
        layout = Layout(piece.file, piece.names, piece.columns, dialect, has_rest)
        yield from read_csv(stream, layout, first_line)

    def _has_rest(self, file: Piece) -> bool:
        """Returns whether the last column is the rest of its line, a list of events."""
        events, names = file.explode, file.names
        if events is None or events.separator != self.delimiter or not names:
            return False
        return names[-1] == events.column

    def _dialect_of(self, file: Piece) -> Dialect:
        return Dialect(self.delimiter, "") if self._has_rest(file) else Dialect.of(self)


@dataclasses.dataclass(frozen=True)
class Layout:
    """Layout of the rows of a file.

    Attributes:
        file: The file.
        names: Names of its columns.
        expected: Columns to return, each once.
        dialect: How the fields are written.
        has_rest: Whether the last column is the rest of the line, delimiters included.
    """

    file: str
    names: tuple[str, ...]
    expected: tuple[str, ...]
    dialect: Dialect
    has_rest: bool = False

    @property
    def wanted(self) -> list[int]:
        """Places of the columns to return."""
        return [self.names.index(name) for name in self.expected]


def parse_rows(rows: Rows, layout: Layout) -> RawBatch:
    """Parses rows into columns; those that break a rule become dead letters."""
    is_text = _text_rows(rows)
    texts = rows if is_text is None else rows.take(is_text)
    columns, is_good = (_with_rest if layout.has_rest else _parse_text)(texts, layout)
    if is_text is None and is_good is None:
        empty = dead_letters([], layout.file, [], [])
        return RawBatch(layout.file, columns, rows.line, empty, rows.raw)
    reason = _reasons(rows, is_text, is_good, layout.dialect)
    at = np.flatnonzero(reason != "")
    letters = dead_letters(reason[at].tolist(), layout.file, rows.line[at], rows.raw(at))
    good = rows.take(reason == "")
    return RawBatch(layout.file, columns, good.line, letters, good.raw)


def _text_rows(rows: Rows) -> np.ndarray | None:
    """Returns which rows are UTF-8 without NUL bytes `[n]` bool; `None`: all."""
    has_nul = b"\0" in rows.block
    if not has_nul and _is_utf8(rows.block):
        return None
    is_text = np.invert(rows.with_byte(0)) if has_nul else np.ones(len(rows), bool)
    for at, row in enumerate(rows.raw(np.arange(len(rows)))):
        if not _is_utf8(row):
            is_text[at] = False
    return is_text


def _is_utf8(block: bytes) -> bool:
    if block.isascii():
        return True
    try:
        block.decode()
    except UnicodeDecodeError:
        return False
    return True


def _reasons(
    rows: Rows, is_text: np.ndarray | None, is_good: np.ndarray | None, dialect: Dialect
) -> np.ndarray:
    """Returns the fault of each row `[n]`; empty for a good row."""
    reason = np.full(len(rows), "", object)
    texts = np.arange(len(rows))
    if is_text is not None:
        reason[~is_text] = NOT_TEXT
        texts = np.flatnonzero(is_text)
    if is_good is not None:
        bad = texts[~is_good]
        for at, row in zip(bad.tolist(), rows.raw(bad), strict=True):
            reason[at] = OPEN_QUOTE if is_open(row.decode(), dialect) else WRONG_WIDTH
    return reason


_Parsed = tuple[pa.RecordBatch, np.ndarray | None]
"""The columns of the rows that fit, and which do `[n]` bool; `None`: all."""


def _parse_text(rows: Rows, layout: Layout) -> _Parsed:
    is_odd = np.zeros(len(rows), bool) if rows.is_odd is None else rows.is_odd.copy()
    if rows.block.count(b"\r") != rows.block.count(b"\r\n"):
        is_odd |= rows.with_byte(ord("\r"))  # To Arrow it ends a line.
    if not is_odd.any():
        return _arrow_rows(rows, layout)
    plain, odd = rows.take(~is_odd), rows.take(is_odd)
    return _merge(_arrow_rows(plain, layout), _single_rows(odd, layout), is_odd)


def _with_rest(rows: Rows, layout: Layout) -> _Parsed:
    """Splits rows at their first delimiters; what follows the last of them may be missing."""
    n_before = len(layout.names) - 1
    parts = pc.split_pattern(rows.texts(), layout.dialect.delimiter, max_splits=n_before)
    widths = pc.list_value_length(parts).to_numpy(zero_copy_only=False)
    is_good = widths >= n_before
    starts = parts.offsets.to_numpy()[:-1]
    columns = []
    for place in layout.wanted:
        at = pa.array(starts + place, mask=place >= widths)
        columns.append(pc.fill_null(parts.values.take(at), "").filter(pa.array(is_good)))
    batch = pa.RecordBatch.from_arrays(columns, names=list(layout.expected))
    return batch, None if is_good.all() else is_good


def _arrow_rows(rows: Rows, layout: Layout) -> _Parsed:
    """Parses rows by Arrow; those with quotes one by one where Arrow sees other rows."""
    if len(rows) == 0:
        return _text_batch(layout, []), None
    text = rows.joined()
    quote = layout.dialect.quote.encode()
    has_quotes = bool(quote) and quote in text
    # Arrow closes a quote at the end of its input; earlier ones change the count.
    is_left_open = has_quotes and is_open(rows.raw(np.array([-1]))[0].decode(), layout.dialect)
    if not is_left_open:
        parsed = _read_text(text, len(rows), layout, has_quotes)
        if parsed is not None:
            return parsed
    is_quoted = rows.with_byte(quote[0]) if has_quotes else np.ones(len(rows), bool)
    if is_quoted.all():
        return _single_rows(rows, layout)
    plain, quoted = rows.take(~is_quoted), rows.take(is_quoted)
    return _merge(_arrow_rows(plain, layout), _single_rows(quoted, layout), is_quoted)


def _read_text(text: bytes, n_rows: int, layout: Layout, has_quotes: bool) -> _Parsed | None:
    """Returns Arrow's parse of a text; `None` if it fails or splits other rows."""
    delimiter = layout.dialect.delimiter.encode()
    if len(delimiter) > 1:
        mark = None if has_quotes else next((m for m in _MARKS if m not in text), None)
        if mark is None:
            return None
        text, delimiter = text.replace(delimiter, mark), mark
    try:
        table, bad = _read_csv(text, delimiter.decode(), layout, has_quotes)
    except pa.ArrowInvalid:
        return None
    if table.num_rows + len(bad) != n_rows:
        return None
    is_good = None
    if len(bad):
        is_good = np.ones(n_rows, bool)
        is_good[bad] = False
    batches = table.combine_chunks().to_batches()
    return (batches[0] if batches else _text_batch(layout, [])), is_good


def _read_csv(
    text: bytes, delimiter: str, layout: Layout, has_quotes: bool
) -> tuple[pa.Table, np.ndarray]:
    """Returns the columns of the lines that fit, and the positions of those that don't."""
    invalid: list[int] = []

    def reject(row: pa_csv.InvalidRow) -> str:
        invalid.append(row.number)
        return "skip"

    # Columns are named by position, so that repeated names do no harm.
    labels = [str(position) for position in range(len(layout.names))]
    wanted = [labels[position] for position in layout.wanted]
    table = pa_csv.read_csv(
        pa.BufferReader(text),
        pa_csv.ReadOptions(use_threads=False, column_names=labels, block_size=len(text) + 1),
        pa_csv.ParseOptions(
            delimiter=delimiter,
            quote_char=layout.dialect.quote if has_quotes else False,
            newlines_in_values=has_quotes,
            ignore_empty_lines=False,
            invalid_row_handler=reject,
        ),
        pa_csv.ConvertOptions(
            include_columns=wanted,
            column_types=dict.fromkeys(wanted, pa.string()),
            strings_can_be_null=False,
            check_utf8=False,  # It has been.
        ),
    )
    return table.rename_columns(list(layout.expected)), np.array(invalid, np.int64) - 1


def _single_rows(rows: Rows, layout: Layout) -> _Parsed:
    """Parses rows one by one: the few whose quotes Arrow can't place."""
    wanted, width, dialect = layout.wanted, len(layout.names), layout.dialect
    is_good = np.zeros(len(rows), bool)
    values = []
    for at, raw in enumerate(rows.raw(np.arange(len(rows)))):
        row = raw.decode()
        fields = split_fields(row, dialect)
        if len(fields) == width and not is_open(row, dialect):
            is_good[at] = True
            values.append([fields[column] for column in wanted])
    return _text_batch(layout, values), None if is_good.all() else is_good


def _merge(plain: _Parsed, single: _Parsed, is_single: np.ndarray) -> _Parsed:
    """Puts rows that were parsed in two ways into their order."""
    is_good = np.ones(len(is_single), bool)
    for (_, good), where in ((plain, ~is_single), (single, is_single)):
        if good is not None:
            is_good[where] = good
    kept = is_single[is_good]
    order = np.argsort(np.concatenate([np.flatnonzero(~kept), np.flatnonzero(kept)]))
    table = pa.Table.from_batches([plain[0], single[0]]).take(pa.array(order)).combine_chunks()
    batches = table.to_batches()
    return (batches[0] if batches else plain[0]), None if is_good.all() else is_good


def _text_batch(layout: Layout, rows: list[list[str]]) -> pa.RecordBatch:
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(len(layout.expected))]
    return pa.RecordBatch.from_arrays(columns, names=list(layout.expected))


def header_names(file: str, line: bytes, dialect: Dialect) -> tuple[str, ...]:
    """Returns the names of the columns that a header has.

    Raises:
        RecsysError: Its lines end in carriage returns alone.
    """
    text = line.decode("utf-8", "replace").rstrip("\r\n")
    if "\r" in text and not line.endswith(b"\n"):
        raise RecsysError(
            "R204",
            f"{file!r} must have lines that end in a line feed.",
            "Convert its line ends, for example: tr '\\r' '\\n' < FILE > NEW_FILE.",
            text,
        )
    return tuple(split_fields(text, dialect))


def check_width(file: str, stream: Readable, names: Sequence[str], dialect: Dialect) -> None:
    """Raises an error if none of the first lines has as many fields as there are `names`."""
    lines = []
    for number in range(1, 21):
        line, stream = split_line(stream, file, number, LINE_LIMIT_BYTES)
        if not line:
            break
        lines.append(line.decode("utf-8", "replace").rstrip("\r\n"))
    widths = [len(split_fields(line, dialect)) for line in lines if line]
    if widths and len(names) not in widths:
        raise RecsysError(
            "R254",
            f"{file!r} must have {len(names)} fields a row, as csv.names has names.",
            "Correct csv.names or csv.delimiter in the config.",
            f"{widths[0]} fields: {lines[0]}",
        )


def _other_delimiter(names: Sequence[str], dialect: Dialect) -> str:
    """Returns the cure where the columns seem to stand between something else."""
    if len(names) != 1:
        return ""
    other = next((sign for sign in _OTHER_DELIMITERS if sign in names[0]), None)
    if other is None or other == dialect.delimiter:
        return ""
    return f"The columns stand between {other!r}: set csv.delimiter to it, beside files."


# --- rows of bytes as columns of text


def read_csv(
    stream: Readable, layout: Layout, first_line: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[RawBatch]:
    """Yields the rows of CSV text.

    Args:
        stream: The text, UTF-8, behind its header.
        layout: Layout of its rows.
        first_line: Line that the stream stands at, from 1 on.
        block_bytes: Bytes parsed at a time.
    """
    width, dialect = len(layout.names), layout.dialect
    for rows in row_blocks(stream, block_bytes, first_line, width, dialect, layout.file):
        yield parse_rows(rows, layout)
