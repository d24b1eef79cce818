"""CSV files as Arrow batches of text, where damage costs the damaged row and no more.

A row that can't be placed (`recsys.data.sources.csv_columns`) becomes a dead letter
with its line number; a file without the expected columns is refused with one
`RecsysError`.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from recsys.data.sources.csv_columns import Layout, parse_rows
from recsys.data.sources.csv_fields import Dialect, split_fields
from recsys.data.sources.csv_rows import Readable, row_blocks
from recsys.data.sources.limits import LINE_LIMIT_BYTES
from recsys.data.sources.raw_batch import RawBatch
from recsys.data.sources.text import split_line
from recsys.errors import RecsysError

BLOCK_BYTES = 8 << 20
_OTHER_DELIMITERS = (";", "\t", "|", "::", ",")


def read_csv(
    stream: Readable, layout: Layout, first_line: int, block_bytes: int = BLOCK_BYTES
) -> Iterator[RawBatch]:
    """Yields the rows of CSV text.

    Args:
        stream: The text, UTF-8, behind its header.
        layout: What its rows look like.
        first_line: Line that the stream stands at, from 1 on.
        block_bytes: Bytes parsed at a time.
    """
    width, dialect = len(layout.names), layout.dialect
    for rows in row_blocks(stream, block_bytes, first_line, width, dialect, layout.file):
        yield parse_rows(rows, layout)


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


def check_header(
    file: str, names: Sequence[str], expected: Sequence[str], dialect: Dialect
) -> None:
    """Raises an error if a header lacks an expected column, or has it twice."""
    for name in expected:
        if names.count(name) != 1:
            raise missing_column(file, name, names, expected, _other_delimiter(names, dialect))


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


def missing_column(
    file: str, name: str, names: Sequence[str], expected: Sequence[str], cure: str = ""
) -> RecsysError:
    """Returns the error of a file that lacks a column, or has it twice."""
    amount = "only once" if name in names else "once"
    return RecsysError(
        "R203",
        f"{file!r} must have the column {name!r} {amount}"
        f" (expected: {', '.join(dict.fromkeys(expected))}).",
        cure or "Correct the columns in the config, or the file.",
        list(names),
    )


def _other_delimiter(names: Sequence[str], dialect: Dialect) -> str:
    """Returns the cure where the columns seem to stand between something else."""
    if len(names) != 1:
        return ""
    other = next((sign for sign in _OTHER_DELIMITERS if sign in names[0]), None)
    if other is None or other == dialect.delimiter:
        return ""
    return f"The columns stand between {other!r}: set csv.delimiter to it, beside files."
