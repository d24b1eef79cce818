"""CSV files as Arrow batches of text; a row that doesn't fit becomes a dead letter.

Arrow parses many rows at a time. With unusual quotes it can't report which rows it merged, so
such rows, which are few, are parsed one by one.

Measured on one core with 5,000,000 rows of three columns: 17 million rows/s here, 25 in Arrow's
parser alone. DuckDB rejects a whole file in which a quote is never closed; here it costs one row.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa
import pyarrow.csv as pa_csv

from recsys.data.config import CsvFormat, SourceConfig
from recsys.data.dead_letters import NOT_TEXT
from recsys.data.sources.source import Piece, RawBatch, check_columns
from recsys.data.sources.streams import LINE_LIMIT_BYTES, read_line
from recsys.data.sources.text_source import (
    Rows,
    Text,
    TextSource,
    is_valid_utf8,
    sort_out,
    split_fields,
)
from recsys.data.sources.values import all_have_point_zero, without_point_zero
from recsys.errors import RecsysError

WRONG_WIDTH = "wrong number of fields"
OPEN_QUOTE = "a quote is never closed"

_OTHER_DELIMITERS = (";", "\t", "|", "::", ",")
# Control characters that may replace a delimiter of several bytes.
_MARKS = [bytes([code]) for code in (0x1F, 0x1E, 0x1D, 0x1C, *range(1, 9), *range(0x0E, 0x1C))]


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
        if rows is None or b".0" not in rows.text:
            return ()
        batch = self.parse(dataclasses.replace(file, columns=ids, ids=()), rows).columns
        return tuple(name for name in ids if all_have_point_zero(batch.column(name)))

    def _check_width(self, file: Piece) -> None:
        """Raises an error if none of the first rows has the expected number of fields."""
        rows = self.first_rows(file)
        first = [] if rows is None else rows.raw(np.arange(min(20, len(rows))))
        texts = [row.decode("utf-8", "replace") for row in first]
        widths = [len(split_fields(text, self)[0]) for text in texts]
        if texts and len(self.names) not in widths:
            raise RecsysError(
                "R254",
                f"{file.file!r} must have {len(self.names)} fields a row, as csv.names has names.",
                "Correct csv.names or csv.delimiter in the config.",
                f"{widths[0]} fields: {texts[0]}",
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

    def parse(self, piece: Piece, rows: Rows) -> RawBatch:
        """Returns the columns of rows, and dead letters for rows that break a rule.

        If Arrow finds as many rows in the text as there are lines, and no quote is open at its
        end, each line is a row. Otherwise Arrow parses the rows that have no unusual quotes.
        """
        text, texts, columns, not_text = rows.text, rows, None, np.empty(0, np.int64)
        if b"\0" in text or not is_valid_utf8(text):
            is_valid = (b"\0" not in row and is_valid_utf8(row) for row in rows.raw())
            is_text = np.fromiter(is_valid, bool)
            texts, not_text = rows.take(is_text), np.flatnonzero(~is_text)
        elif not self._has_rest(piece) and not _has_lone_cr(text):
            columns, is_good = self._read_by_arrow(piece, text, rows.n_lines)
            if columns is not None and is_good.all():
                rows.mark_as_lines()
                return sort_out(piece.file, rows, _with_plain_ids(columns, piece.ids))
        if columns is None or len(is_good) != len(rows):
            columns, is_good = self._columns(piece, texts)
        bad, dialect = np.flatnonzero(~is_good), self._dialect(piece)
        at_of_texts = np.delete(np.arange(len(rows)), not_text)
        reasons = dict.fromkeys(not_text.tolist(), NOT_TEXT)
        for at, row in zip(at_of_texts[bad].tolist(), texts.raw(bad), strict=True):
            is_open = split_fields(row.decode(), dialect)[1]
            reasons[at] = OPEN_QUOTE if is_open else WRONG_WIDTH
        return sort_out(piece.file, rows, _with_plain_ids(columns, piece.ids), reasons)

    def _columns(self, piece: Piece, rows: Rows) -> tuple[pa.RecordBatch, np.ndarray]:
        """Returns the columns of the rows that fit, and which rows fit `[n]` bool.

        Rows with unusual quotes or line ends are parsed one by one; all are if Arrow still sees
        another number of rows.
        """
        is_single = rows.places.is_odd
        if self._has_rest(piece):
            is_single = np.ones(len(rows), bool)
        elif _has_lone_cr(rows.text):
            is_single = is_single | np.array([b"\r" in row for row in rows.raw()], bool)
        others = rows.raw(np.flatnonzero(~is_single))
        plain, is_good_plain = self._read_by_arrow(piece, b"\n".join([*others, b""]), len(others))
        if plain is None:
            is_single = np.ones(len(rows), bool)
            plain, is_good_plain = _text_batch(piece, []), np.ones(0, bool)
        split = [self._split(piece, row.decode()) for row in rows.raw(np.flatnonzero(is_single))]
        is_good = np.ones(len(rows), bool)
        is_good[~is_single] = is_good_plain
        is_good[is_single] = [len(fields) == len(piece.names) for fields in split]
        single = _text_batch(piece, [row for row in split if len(row) == len(piece.names)])
        order = np.argsort(np.argsort(is_single[is_good], kind="stable"))
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

    def _read_by_arrow(
        self, piece: Piece, text: Text, n_rows: int
    ) -> tuple[pa.RecordBatch | None, np.ndarray]:
        """Returns the columns of the lines that fit, and which fit `[n]` bool.

        Args:
            piece: Piece of the lines.
            text: Lines, each of which is a row; they may contain quotes.
            n_rows: Number of lines.

        Returns:
            No columns if Arrow finds another number of rows.
        """
        delimiter, quote = self.delimiter.encode(), (self.quote or "").encode()
        has_quotes, is_good = bool(quote) and quote in text, np.ones(n_rows, bool)
        last = text[text.rfind(b"\n", 0, -1) + 1 : -1]
        # Arrow closes a quote at the end of its input; an earlier one changes the count.
        if has_quotes and quote in last and split_fields(last.decode(), self)[1]:
            return None, is_good
        if len(delimiter) > 1:
            mark = None if has_quotes else next((m for m in _MARKS if m not in text), None)
            if mark is None:
                return None, is_good
            text, delimiter = text.replace(delimiter, mark), mark
        try:
            table, bad = self._read_csv(piece, text, delimiter.decode(), has_quotes)
        except pa.ArrowInvalid:
            return None, is_good
        if table.num_rows + len(bad) != n_rows:
            return None, is_good
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


def _with_plain_ids(columns: pa.RecordBatch, names: Sequence[str]) -> pa.RecordBatch:
    """Returns columns in which the named ones have 13 for 13.0."""
    for name in names:
        at = columns.schema.get_field_index(name)
        columns = columns.set_column(at, name, without_point_zero(columns.column(at)))
    return columns


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
