"""CSV files as Arrow batches of text; a row that doesn't fit becomes a dead letter.

Arrow parses many rows at a time. With unusual quotes it can't report which rows it merged, so
such rows, which are few, are parsed one by one.

Measured on one core with 3,000,000 rows of four columns: 8.7 million rows/s here, 14.9 with
Arrow's reader alone, 5.8 with DuckDB 2.0 and `store_rejects`. DuckDB rejects a whole file in
which a quote is never closed; here it costs one row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Sequence
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from recsys.data.config import CsvFormat, SourceConfig
from recsys.data.dead_letters import NOT_TEXT, dead_letters
from recsys.data.sources.source import Piece, RawBatch, check_columns
from recsys.data.sources.streams import LINE_LIMIT_BYTES, read_line
from recsys.data.sources.text_source import (
    Block,
    Rows,
    Text,
    TextSource,
    is_valid_utf8,
    sort_out,
    split_fields,
)
from recsys.data.sources.values import all_have_point_zero, without_point_zero
from recsys.errors import RecsysError
from recsys.registry import register_source

WRONG_WIDTH = "wrong number of fields"
OPEN_QUOTE = "a quote is never closed"
_FAULTS = (NOT_TEXT, WRONG_WIDTH, OPEN_QUOTE)

_OTHER_DELIMITERS = (";", "\t", "|", "::", ",")
# Control characters that may replace a delimiter of several bytes.
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
        """Returns a source with the options in `csv`, the key beside `format`."""
        return cls(**dict(config.csv))

    def column_names(self, file: Piece) -> list[str]:
        """Returns `names`, or the names in the header."""
        if self.names:
            return list(self.names)
        stream = self.open(file)
        for number in range(self.skip_rows):
            read_line(stream, file.file, 1 + number, LINE_LIMIT_BYTES)
        return header_names(read_line(stream, file.file, 1 + self.skip_rows), self)

    def check(self, file: Piece) -> Piece:
        """Returns a file with the names of its columns, and the ids that are written as floats.

        Also checks the width of the first rows.
        """
        names = tuple(self.column_names(file))
        where = "csv.names" if self.names else file.file
        check_columns(where, names, file.columns, _other_delimiter(names, self.delimiter))
        file = dataclasses.replace(file, names=names)
        if self.names and not self._has_rest(file):
            self._check_width(file)
        ids = tuple(name for name in file.ids if name in file.columns)
        return dataclasses.replace(file, ids=self._float_ids(file, ids) if ids else ())

    def _float_ids(self, file: Piece, ids: tuple[str, ...]) -> tuple[str, ...]:
        """Returns the ids that are written like 13.0 in the first rows."""
        rows = self.first_rows(file)
        if rows is None or b".0" not in rows.block:
            return ()
        batch = self.parse(dataclasses.replace(file, columns=ids, ids=()), rows).columns
        return tuple(name for name in ids if all_have_point_zero(batch.column(name)))

    def _check_width(self, file: Piece) -> None:
        """Raises an error if no line at the start has the expected number of fields."""
        stream, widths, first = self.open(file), set[int](), ""
        for number in range(1, self.skip_rows + 21):
            line = read_line(stream, file.file, number, LINE_LIMIT_BYTES)
            text = line.decode("utf-8", "replace").rstrip("\r\n")
            if number > self.skip_rows and text:
                first = first or text
                widths.add(len(split_fields(text, self)[0]))
        if widths and len(self.names) not in widths:
            n_fields = len(split_fields(first, self)[0])
            raise RecsysError(
                "R254",
                f"{file.file!r} must have {len(self.names)} fields a row, as csv.names has names.",
                "Correct csv.names or csv.delimiter in the config.",
                f"{n_fields} fields: {first}",
            )

    def n_lines_above(self, file: Piece) -> int:
        """Returns the number of lines before the rows, the header included."""
        del file
        return self.skip_rows + (0 if self.names else 1)

    def _has_rest(self, file: Piece) -> bool:
        """Returns whether the last column is a list of events that takes the rest of the line."""
        events, names = file.explode, file.names
        if events is None or events.separator != self.delimiter or not names:
            return False
        return names[-1] == events.column

    def layout(self, file: Piece) -> tuple[int, CsvFormat]:
        """Returns the number of columns, and the dialect; with a quote, rows may span lines."""
        return len(file.names), self._dialect(file)

    def _dialect(self, file: Piece) -> CsvFormat:
        return self.model_copy(update={"quote": None}) if self._has_rest(file) else self

    def parser(self, piece: Piece) -> Callable[[Block], RawBatch]:
        """Returns a function that parses blocks of a piece."""
        return lambda block: self._parse_lines(piece, block) or self.parse(piece, block.rows)

    def _parse_lines(self, piece: Piece, block: Block) -> RawBatch | None:
        """Returns the columns of a block if each line is a row; else `None`.

        That is so if Arrow finds as many rows as there are lines, and no quote is open at the
        end. The places of the rows are only looked for if one is rejected.
        """
        text, n_rows = block.text, block.n_lines_of_text
        if self._has_rest(piece) or _has_lone_cr(text) or b"\0" in text or not is_valid_utf8(text):
            return None
        parsed = self._read_by_arrow(piece, text, n_rows)
        if parsed is None:
            return None
        columns, is_good = parsed
        if not is_good.all():
            rows = block.rows
            if len(rows) != n_rows:
                return None
            faults = self._faults(piece, rows, is_good)
            return sort_out(piece.file, rows, self._with_ids(piece, columns), faults, _FAULTS)
        block.are_lines_rows = True
        return RawBatch(
            file=piece.file,
            columns=self._with_ids(piece, columns),
            position=block.position + np.arange(n_rows),
            rejected=dead_letters([], piece.file, [], []),
            raw_rows=lambda at: block.rows.raw(at),
            lines=lambda at: block.rows.line[at],
        )

    def parse(self, piece: Piece, rows: Rows) -> RawBatch:
        """Returns the columns of rows, and dead letters for rows that break a rule."""
        faults = np.zeros(len(rows), np.int8)
        if b"\0" in rows.block or not is_valid_utf8(rows.block):
            is_text = [b"\0" not in row and is_valid_utf8(row) for row in rows.raw()]
            faults[~np.array(is_text, bool)] = 1 + _FAULTS.index(NOT_TEXT)
        texts = rows.take(faults == 0)
        columns, is_good = self._columns(piece, texts)
        faults[faults == 0] = self._faults(piece, texts, is_good)
        return sort_out(piece.file, rows, self._with_ids(piece, columns), faults, _FAULTS)

    def _faults(self, piece: Piece, rows: Rows, is_good: np.ndarray) -> np.ndarray:
        """Returns the fault of each row `[n]`, 0 for good ones."""
        faults, bad = np.zeros(len(rows), np.int8), np.flatnonzero(~is_good)
        _, dialect = self.layout(piece)
        for at, row in zip(bad.tolist(), rows.raw(bad), strict=True):
            is_open = split_fields(row.decode(), dialect)[1]
            faults[at] = 1 + _FAULTS.index(OPEN_QUOTE if is_open else WRONG_WIDTH)
        return faults

    def _with_ids(self, piece: Piece, columns: pa.RecordBatch) -> pa.RecordBatch:
        """Returns columns with `piece.ids` written without `.0`."""
        for name in piece.ids:
            at = columns.schema.get_field_index(name)
            columns = columns.set_column(at, name, without_point_zero(columns.column(at)))
        return columns

    def _columns(self, piece: Piece, rows: Rows) -> tuple[pa.RecordBatch, np.ndarray]:
        """Returns the columns of the rows that fit, and which rows fit `[n]` bool.

        If Arrow would see other rows or line ends, rows are parsed one by one: the rows with
        quotes if Arrow's number of rows differs, and all rows if it still differs.
        """
        quote = (self.quote or "").encode()
        is_single = rows.is_odd
        if self._has_rest(piece):
            is_single = np.ones(len(rows), bool)
        elif _has_lone_cr(rows.block):
            is_single = is_single | rows.having(b"\r")
        parsed = self._read_rows(piece, rows.take(~is_single))
        if parsed is None and quote:
            is_single = is_single | rows.having(quote)
            parsed = self._read_rows(piece, rows.take(~is_single))
        if parsed is None:
            is_single = np.ones(len(rows), bool)
            parsed = _text_batch(piece, []), np.ones(0, bool)
        if not is_single.any():
            return parsed
        plain, is_good_plain = parsed
        split = [self._split(piece, row.decode()) for row in rows.raw(np.flatnonzero(is_single))]
        is_good = np.ones(len(rows), bool)
        is_good[~is_single] = is_good_plain
        is_good[is_single] = [len(fields) == len(piece.names) for fields in split]
        single = _text_batch(piece, [row for row in split if len(row) == len(piece.names)])
        is_single = is_single[is_good]
        order = np.argsort(np.argsort(is_single, kind="stable"))
        joined = pa.Table.from_batches([plain, single]).take(pa.array(order)).combine_chunks()
        return joined.to_batches()[0] if len(order) else plain, is_good

    def _split(self, piece: Piece, row: str) -> list[str]:
        """Returns the fields of a row; none if a quote isn't closed."""
        if self._has_rest(piece):
            fields = row.split(self.delimiter, len(piece.names) - 1)
            # The rest may be missing.
            return [*fields, ""] if len(fields) == len(piece.names) - 1 else fields
        fields, is_open = split_fields(row, self)
        return [] if is_open else fields

    def _read_rows(self, piece: Piece, rows: Rows) -> tuple[pa.RecordBatch, np.ndarray] | None:
        if len(rows) == 0:
            return _text_batch(piece, []), np.ones(0, bool)
        return self._read_by_arrow(piece, rows.joined(), len(rows))

    def _read_by_arrow(
        self, piece: Piece, text: Text, n_rows: int
    ) -> tuple[pa.RecordBatch, np.ndarray] | None:
        """Returns the columns of the lines that fit, and which fit `[n]`; `None` if Arrow differs.

        Args:
            piece: Piece of the lines.
            text: Lines, each of which is a row; they may contain quotes.
            n_rows: Number of lines.
        """
        delimiter, quote = self.delimiter.encode(), (self.quote or "").encode()
        has_quotes = bool(quote) and quote in text
        last = text[text.rfind(b"\n", 0, -1) + 1 : -1]
        # Arrow closes a quote at the end of its input; an earlier one changes the count.
        if has_quotes and quote in last and split_fields(last.decode(), self)[1]:
            return None
        if len(delimiter) > 1:
            mark = None if has_quotes else next((m for m in _MARKS if m not in text), None)
            if mark is None:
                return None
            text, delimiter = text.replace(delimiter, mark), mark
        try:
            table, bad = self._read_csv(piece, text, delimiter.decode(), has_quotes)
        except pa.ArrowInvalid:
            return None
        if table.num_rows + len(bad) != n_rows:
            return None
        is_good = np.ones(n_rows, bool)
        is_good[bad] = False
        batches = table.combine_chunks().to_batches()
        return batches[0] if batches else _text_batch(piece, []), is_good

    def _read_csv(
        self, piece: Piece, text: Text, delimiter: str, has_quotes: bool
    ) -> tuple[pa.Table, list[int]]:
        """Returns the columns of the lines that fit, and the indices of the others."""
        bad: list[int] = []

        def reject(row: pa_csv.InvalidRow) -> str:
            bad.append(row.number - 1)
            return "skip"

        # Columns are named by index, so that names may repeat.
        labels = [str(position) for position in range(len(piece.names))]
        wanted = [labels[piece.names.index(name)] for name in piece.columns]
        table = pa_csv.read_csv(
            pa.BufferReader(text),
            pa_csv.ReadOptions(use_threads=False, column_names=labels, block_size=len(text) + 1),
            pa_csv.ParseOptions(
                delimiter=delimiter,
                quote_char=self.quote if has_quotes else False,
                newlines_in_values=has_quotes,
                invalid_row_handler=reject,
            ),
            pa_csv.ConvertOptions(
                include_columns=wanted,
                column_types=dict.fromkeys(wanted, pa.string()),
                strings_can_be_null=False,
                check_utf8=False,  # Already checked.
            ),
        )
        return table.rename_columns(list(piece.columns)), bad


def _has_lone_cr(text: Text) -> bool:
    """Returns whether lines contain a carriage return that isn't at their end."""
    if b"\r" not in text:
        return False
    data = np.frombuffer(text, np.uint8)
    return bool(((data[:-1] == ord("\r")) & (data[1:] != ord("\n"))).any())


def _text_batch(piece: Piece, rows: list[list[str]]) -> pa.RecordBatch:
    """Returns the columns of complete rows."""
    places = [piece.names.index(name) for name in piece.columns]
    columns = [pa.array([row[at] for row in rows], pa.string()) for at in places]
    return pa.RecordBatch.from_arrays(columns, names=list(piece.columns))


def header_names(line: bytes, dialect: CsvFormat) -> list[str]:
    """Returns the column names in a header."""
    return split_fields(line.decode("utf-8", "replace").rstrip("\r\n"), dialect)[0]


def _other_delimiter(names: Sequence[str], delimiter: str) -> str:
    """Returns advice if the columns seem to have another delimiter."""
    if len(names) != 1:
        return ""
    other = next((sign for sign in _OTHER_DELIMITERS if sign in names[0]), None)
    if other is None or other == delimiter:
        return ""
    return f"The columns stand between {other!r}: set csv.delimiter to it, beside files."
