"""Rows of bytes as columns of text; a row that doesn't fit becomes a dead letter.

Arrow parses many rows at a time. It can't say which rows it took for one where
quotes are unusual, so such rows, a few, go through Python's csv one by one.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from recsys.data.csv_rows import Rows, ends_in_quotes, split_fields
from recsys.data.dead_letters import dead_letters

WRONG_WIDTH = "wrong number of fields"
NOT_TEXT = "not UTF-8 text"
OPEN_QUOTE = "a quote is never closed"


@dataclasses.dataclass(frozen=True)
class CsvBatch:
    """Rows of one file.

    Attributes:
        file: The file.
        columns: The asked columns of the rows that are whole, as text.
        line: Line of each of them `[n]` int64, from 1 on.
        raw: Each of them as it stands in the file, binary.
        rejected: Dead letters of the rows that are not.
    """

    file: str
    columns: pa.RecordBatch
    line: np.ndarray
    raw: pa.Array
    rejected: pa.RecordBatch

    @property
    def n_read(self) -> int:
        """Rows of the batch, whole or not."""
        return len(self.line) + self.rejected.num_rows

    def reject(self, bad: pa.Array, reasons: Sequence[str]) -> pa.RecordBatch:
        """Returns the dead letters of the batch, then those of its whole rows that are `bad`.

        Args:
            bad: Which of the whole rows break a rule `[n]` bool.
            reasons: What is wrong with each of them, as many as `bad` has.
        """
        line = self.line[bad.to_numpy(zero_copy_only=False)]
        letters = dead_letters(reasons, self.file, line, self.raw.filter(bad).to_pylist())
        return _one_batch(pa.Table.from_batches([self.rejected, letters]))


def parse_rows(file: str, rows: Rows, names: list[str], expected: list[str]) -> CsvBatch:
    """Parses rows into columns; those that break a rule become dead letters.

    Args:
        file: The file.
        rows: Rows of the file.
        names: Names of its columns.
        expected: Columns to return.
    """
    reason = np.zeros(len(rows.line), object)
    reason[_not_text(rows.raw)] = NOT_TEXT
    texts = rows.raw.filter(pa.array(reason == 0)) if reason.any() else rows.raw
    columns, bad = _parse_text(texts, names, expected)
    for at in np.flatnonzero(reason == 0)[bad]:
        reason[at] = OPEN_QUOTE if ends_in_quotes(rows.raw[at].as_py()) else WRONG_WIDTH
    good = reason == 0
    rejected = dead_letters(
        list(reason[~good]),
        file,
        rows.line[~good],
        rows.raw.filter(pa.array(~good)).to_pylist(),
    )
    return CsvBatch(file, columns, rows.line[good], rows.raw.filter(pa.array(good)), rejected)


def _not_text(raw: pa.Array) -> np.ndarray:
    """Returns the rows that are not UTF-8, or hold a NUL byte, `[n]` bool."""
    bad = pc.match_substring(raw, "\0").to_numpy(zero_copy_only=False)
    try:
        raw.cast(pa.string())
    except pa.ArrowInvalid:
        for at, row in enumerate(raw.to_pylist()):
            try:
                row.decode()
            except UnicodeDecodeError:
                bad[at] = True
    return bad


def _parse_text(
    raw: pa.Array, names: list[str], expected: list[str]
) -> tuple[pa.RecordBatch, np.ndarray]:
    """Returns the columns of the rows that fit, and the positions of those that don't."""
    quoted = pc.match_substring(raw, '"').to_numpy(zero_copy_only=False)
    many_lines = pc.match_substring(raw, "\n").to_numpy(zero_copy_only=False)
    plain = ~quoted
    parts = [
        _arrow_rows(raw, np.flatnonzero(plain), names, expected, quote=False),
        _arrow_rows(raw, np.flatnonzero(quoted & ~many_lines), names, expected, quote=True),
        _csv_rows(raw, np.flatnonzero(quoted & many_lines), names, expected),
    ]
    position = np.concatenate([part[1] for part in parts])
    table = pa.Table.from_batches([part[0] for part in parts])
    bad = np.concatenate([part[2] for part in parts])
    if quoted.any():
        table = table.take(pa.array(np.argsort(position)))
    return _one_batch(table), np.sort(bad)


_Parsed = tuple[pa.RecordBatch, np.ndarray, np.ndarray]


def _arrow_rows(
    raw: pa.Array, at: np.ndarray, names: list[str], expected: list[str], quote: bool
) -> _Parsed:
    """Parses the rows `at` by Arrow; by Python's csv where Arrow sees other rows."""
    if len(at) == 0:
        return _text_batch(expected, []), at, at
    if quote and ends_in_quotes(raw[int(at[-1])].as_py()):
        # Arrow closes a quote at the end of its input; earlier ones change the count.
        return _csv_rows(raw, at, names, expected)
    try:
        table, bad = _read_lines(_joined(raw.take(pa.array(at))), names, expected, quote)
    except pa.ArrowInvalid:
        return _csv_rows(raw, at, names, expected)
    if table.num_rows + len(bad) != len(at):
        return _csv_rows(raw, at, names, expected)
    return _one_batch(table), np.delete(at, bad), at[bad]


def _read_lines(
    text: pa.Buffer, names: list[str], expected: list[str], quote: bool
) -> tuple[pa.Table, np.ndarray]:
    """Returns the columns of the lines that fit, and the positions of those that don't."""
    invalid: list[int] = []

    def reject(row: pa_csv.InvalidRow) -> str:
        invalid.append(row.number)
        return "skip"

    # Columns are named by position, so that repeated names do no harm.
    labels = [str(position) for position in range(len(names))]
    wanted = [labels[names.index(name)] for name in expected]
    table = pa_csv.read_csv(
        pa.BufferReader(text),
        pa_csv.ReadOptions(use_threads=False, column_names=labels, block_size=len(text) + 1),
        pa_csv.ParseOptions(
            quote_char='"' if quote else False,
            newlines_in_values=quote,
            ignore_empty_lines=False,
            invalid_row_handler=reject,
        ),
        pa_csv.ConvertOptions(
            include_columns=wanted,
            column_types=dict.fromkeys(wanted, pa.string()),
            strings_can_be_null=False,
        ),
    )
    return table.rename_columns(expected), np.array(invalid, np.int64) - 1


def _joined(rows: pa.Array) -> pa.Buffer:
    """Returns the rows as lines."""
    lines = pc.binary_join_element_wise(rows, b"\n", b"")
    start, end = np.frombuffer(lines.buffers()[1], np.int32)[
        [lines.offset, lines.offset + len(lines)]
    ]
    return lines.buffers()[2].slice(int(start), int(end - start))


def _csv_rows(raw: pa.Array, at: np.ndarray, names: list[str], expected: list[str]) -> _Parsed:
    """Parses the rows `at` one by one: the few whose quotes Arrow can't place."""
    wanted = [names.index(name) for name in expected]
    good, bad, values = [], [], []
    for position in at.tolist():
        row = raw[position].as_py()
        fields = split_fields(row)
        if len(fields) != len(names) or ends_in_quotes(row):
            bad.append(position)
            continue
        good.append(position)
        values.append([fields[column] for column in wanted])
    return _text_batch(expected, values), np.array(good, np.int64), np.array(bad, np.int64)


def _text_batch(names: list[str], rows: list[list[str]]) -> pa.RecordBatch:
    columns = [pa.array([row[i] for row in rows], pa.string()) for i in range(len(names))]
    return pa.RecordBatch.from_arrays(columns, names=names)


def _one_batch(table: pa.Table) -> pa.RecordBatch:
    batches = table.combine_chunks().to_batches()
    return batches[0] if batches else pa.RecordBatch.from_pylist([], table.schema)
