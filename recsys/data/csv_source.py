"""CSV files as Arrow batches of text, where damage costs the damaged row and no more.

Arrow parses a block of lines at a time. A row that Arrow can't place, or that
isn't text, becomes a dead letter with its line number; a file that isn't a CSV
file with the expected columns is refused with one `RecsysError`.
"""

from __future__ import annotations

import csv
import dataclasses
import glob
import io
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv

from recsys.data.dead_letters import dead_letters
from recsys.errors import RecsysError

WRONG_WIDTH = "wrong number of fields"
NOT_TEXT = "not UTF-8 text"
OPEN_QUOTE = "a quote is never closed"

_BLOCK_BYTES = 8 << 20
_ROW_LIMIT_LINES = 1000
_MAGIC = {
    b"PAR1": "a Parquet file",
    b"\x1f\x8b": "a gzip file",
    b"PK\x03\x04": "a zip file",
    b"BZh": "a bzip2 file",
    b"\x28\xb5\x2f\xfd": "a zstd file",
    b"ARROW1": "an Arrow file",
    b"%PDF": "a PDF file",
    b"\xff\xfe": "UTF-16 text",
    b"\xfe\xff": "UTF-16 text",
}


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


@dataclasses.dataclass(frozen=True)
class _Rows:
    """Rows of a block: the line where each starts, and its bytes."""

    line: np.ndarray
    raw: pa.Array


def match_files(pattern: str, what: str) -> list[str]:
    """Returns the files that a path or glob names, sorted.

    Args:
        pattern: A file or a glob.
        what: What the files hold, for the error: `interactions` or `items`.

    Raises:
        RecsysError: There is none.
    """
    named = Path(pattern)
    files = [pattern] if named.exists() else sorted(glob.glob(pattern, recursive=True))
    files = [file for file in files if not Path(file).is_dir()]
    if files:
        return files
    if named.is_dir():
        found, cure = "a folder", f"Name its files: {named / '*.csv'}."
    elif glob.has_magic(pattern):
        found, cure = "no file matches", f"Correct data.{what}.files."
    else:
        found, cure = "no such file", f"Correct data.{what}.files."
    raise RecsysError("R201", f"{pattern!r} must name at least one CSV file.", cure, found)


def read_header(file: str, expected: Sequence[str]) -> list[str]:
    """Returns the names of the columns of a CSV file.

    Raises:
        RecsysError: The file can't be read, is empty, is of another format, or
            lacks a column of `expected`.
    """
    with _open(file) as stream:
        start = stream.read(1 << 16)
    _check_format(file, start, expected)
    first = start.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0]
    names = next(csv.reader([first.decode("utf-8", "replace").rstrip("\r")]), [])
    for name in expected:
        if names.count(name) != 1:
            _raise_missing(file, name, names, expected)
    return names


def check_files(pattern: str, what: str, expected: Sequence[str]) -> list[str]:
    """Returns the files of a pattern after a look at the start of each.

    Raises:
        RecsysError: As `match_files` and `read_batches`, before the work starts.
    """
    files = match_files(pattern, what)
    for file in files:
        next(read_batches(file, expected, block_bytes=1 << 16))
    return files


def read_batches(
    file: str, expected: Sequence[str], block_bytes: int = _BLOCK_BYTES
) -> Iterator[CsvBatch]:
    """Reads a CSV file.

    Args:
        file: Path of the file; its first line names the columns.
        expected: Columns to return; the file may have more.
        block_bytes: Bytes parsed at a time.

    Raises:
        RecsysError: As `read_header`, or the file has no row.
    """
    names = read_header(file, expected)
    n_read = 0
    with _open(file) as stream:
        _skip_bom(stream)
        stream.readline()
        for rows in _row_blocks(stream, block_bytes, len(names)):
            batch = _parse(file, rows, names, list(dict.fromkeys(expected)))
            n_read += batch.n_read
            yield batch
    if n_read == 0:
        raise RecsysError(
            "R202",
            f"{file!r} must hold rows below its header.",
            "Write the data into it, or name another file.",
            "a header alone",
        )


def _open(file: str) -> BinaryIO:
    try:
        return Path(file).open("rb")
    except OSError as error:
        raise RecsysError(
            "R205",
            f"{file!r} must be a readable file.",
            "Check the path and its permissions.",
            error.strerror or str(error),
        ) from None


def _skip_bom(stream: BinaryIO) -> None:
    if stream.read(3) != b"\xef\xbb\xbf":
        stream.seek(0)


def _check_format(file: str, start: bytes, expected: Sequence[str]) -> None:
    wanted = f"CSV text with the columns {', '.join(expected)}"
    if not start.strip():
        raise RecsysError(
            "R202",
            f"{file!r} must be {wanted}.",
            "Write the data into it, or name another file.",
            "an empty file",
        )
    kind = next((kind for magic, kind in _MAGIC.items() if start.startswith(magic)), None)
    if kind is None and b"\0" in start:
        kind = "binary data (NUL bytes)"
    if kind is not None:
        raise RecsysError(
            "R204", f"{file!r} must be {wanted}.", "Convert it to CSV in UTF-8.", kind
        )


def _raise_missing(file: str, name: str, names: list[str], expected: Sequence[str]) -> None:
    cure = "Correct the columns in the config, or the file's first line."
    other = next((s for s in ";\t|" if len(names) == 1 and s in names[0]), None)
    if other:
        cure = f"The columns stand between {other!r}: put commas there."
    amount = "once" if name not in names else "only once"
    raise RecsysError(
        "R203",
        f"{file!r} must have the column {name!r} {amount}"
        f" (expected: {', '.join(dict.fromkeys(expected))}).",
        cure,
        names,
    )


def _row_blocks(stream: BinaryIO, block_bytes: int, width: int) -> Iterator[_Rows]:
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
) -> tuple[_Rows, int, bytes]:
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
    return _Rows(first_line + first[kept], raw), n_lines, tail


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
        if at <= done or not _ends_in_quotes(block[starts[at] : ends[at]]):
            continue
        closing = odd[(odd > at) & (odd < at + _ROW_LIMIT_LINES)]
        for last in closing:
            row = block[starts[at] : ends[last]]
            if not _ends_in_quotes(row):
                if len(_fields(row)) == width:
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


def _fields(row: bytes) -> list[str]:
    """Returns the fields of `row`; none if it is more than one row."""
    rows = list(csv.reader(io.StringIO(row.decode("utf-8", "replace"), newline="")))
    return rows[0] if len(rows) == 1 else []


def _ends_in_quotes(row: bytes) -> bool:
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


def _parse(file: str, rows: _Rows, names: list[str], expected: list[str]) -> CsvBatch:
    """Parses rows into columns; those that break a rule become dead letters."""
    reason = np.zeros(len(rows.line), object)
    reason[_not_text(rows.raw)] = NOT_TEXT
    texts, lines = rows.raw, rows.line
    if reason.any():
        texts = texts.filter(pa.array(reason == 0))
    columns, bad = _parse_text(texts, names, expected)
    reason[np.flatnonzero(reason == 0)[bad]] = WRONG_WIDTH
    if len(bad):
        for at in np.flatnonzero(reason == WRONG_WIDTH):
            if _ends_in_quotes(rows.raw[at].as_py()):
                reason[at] = OPEN_QUOTE
    good = reason == 0
    rejected = dead_letters(
        list(reason[~good]), file, lines[~good], rows.raw.filter(pa.array(~good)).to_pylist()
    )
    return CsvBatch(file, columns, lines[good], rows.raw.filter(pa.array(good)), rejected)


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
    batches = table.combine_chunks().to_batches()
    schema = pa.schema([(name, pa.string()) for name in expected])
    empty = pa.RecordBatch.from_pylist([], schema)
    return (batches[0] if batches else empty), np.sort(bad)


_Parsed = tuple[pa.RecordBatch, np.ndarray, np.ndarray]


def _arrow_rows(
    raw: pa.Array, at: np.ndarray, names: list[str], expected: list[str], quote: bool
) -> _Parsed:
    """Parses the rows `at` by Arrow; by Python's csv where Arrow sees other rows."""
    schema = pa.schema([(name, pa.string()) for name in expected])
    nothing = pa.RecordBatch.from_pylist([], schema)
    if len(at) == 0:
        return nothing, at, at
    if quote and _ends_in_quotes(raw[int(at[-1])].as_py()):
        # Arrow closes a quote at the end of its input; earlier ones change the count.
        return _csv_rows(raw, at, names, expected)
    invalid: list[int] = []

    def reject(row: pa_csv.InvalidRow) -> str:
        invalid.append(row.number)
        return "skip"

    text = _joined(raw.take(pa.array(at)))
    # Columns are named by position, so that repeated names do no harm.
    labels = [str(position) for position in range(len(names))]
    wanted = [labels[names.index(name)] for name in expected]
    try:
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
    except pa.ArrowInvalid:
        return _csv_rows(raw, at, names, expected)
    if table.num_rows + len(invalid) != len(at):
        return _csv_rows(raw, at, names, expected)
    bad = np.array(invalid, np.int64) - 1
    good = np.delete(at, bad)
    batches = table.rename_columns(expected).combine_chunks().to_batches()
    return (batches[0] if batches else nothing), good, at[bad]


def _joined(rows: pa.Array) -> pa.Buffer:
    """Returns the rows as lines."""
    lines = pc.binary_join_element_wise(rows, b"\n", b"")
    start, end = np.frombuffer(lines.buffers()[1], np.int32)[
        [lines.offset, lines.offset + len(lines)]
    ]
    return lines.buffers()[2].slice(int(start), int(end - start))


def _csv_rows(raw: pa.Array, at: np.ndarray, names: list[str], expected: list[str]) -> _Parsed:
    """Parses the rows `at` one by one: the few whose quotes Arrow can't place."""
    schema = pa.schema([(name, pa.string()) for name in expected])
    wanted = [names.index(name) for name in expected]
    good, bad, values = [], [], []
    for position in at.tolist():
        row = raw[position].as_py()
        fields = _fields(row)
        if len(fields) != len(names) or _ends_in_quotes(row):
            bad.append(position)
            continue
        good.append(position)
        values.append([fields[column] for column in wanted])
    columns = [pa.array(column, pa.string()) for column in zip(*values, strict=True)]
    batch = (
        pa.RecordBatch.from_arrays(columns, schema=schema)
        if values
        else pa.RecordBatch.from_pylist([], schema)
    )
    return batch, np.array(good, np.int64), np.array(bad, np.int64)
