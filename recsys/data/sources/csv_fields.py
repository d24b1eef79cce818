"""The fields of one row, as Python's csv splits them; delimiters of several characters too."""

from __future__ import annotations

import dataclasses

from recsys.config import CsvFormat


@dataclasses.dataclass(frozen=True)
class Dialect:
    """How the fields of a row are written.

    Attributes:
        delimiter: What stands between two of them.
        quote: One ASCII character that stands around a field; empty: none does.
    """

    delimiter: str = ","
    quote: str = '"'

    @classmethod
    def of(cls, csv: CsvFormat) -> Dialect:
        """Returns the dialect that a config describes."""
        return cls(csv.delimiter, csv.quote or "")


def split_fields(row: str, dialect: Dialect) -> list[str]:
    """Returns the fields of a row; none if it is more than one row."""
    fields, _ = _scan(row, dialect)
    return fields


def is_open(row: str, dialect: Dialect) -> bool:
    """Returns whether a quoted field is still open at the end of a row."""
    return _scan(row, dialect)[1]


def split_rest(line: str, dialect: Dialect, is_open: bool = False) -> tuple[int, bool]:
    """Returns how many fields a line has, and whether the last one is left open.

    Args:
        line: A line of a row; no line end is in it.
        dialect: How the row is written.
        is_open: Whether a quote was opened in a line before.
    """
    fields, is_left_open = _scan(f"{dialect.quote}{line}" if is_open else line, dialect)
    return len(fields), is_left_open


def _scan(row: str, dialect: Dialect) -> tuple[list[str], bool]:
    fields, at = [], 0
    while True:
        field, stop, is_left_open = _field(row, at, dialect)
        if field is None:
            return [], False
        fields.append(field)
        if is_left_open or stop == len(row):
            return fields, is_left_open
        at = stop + len(dialect.delimiter)


def _field(row: str, at: int, dialect: Dialect) -> tuple[str | None, int, bool]:
    """Returns the field that begins at `at`, where it ends, and whether it is left open.

    The field is `None` where a line ends outside of quotes.
    """
    quoted = ""
    if dialect.quote and row.startswith(dialect.quote, at):
        quoted, at = _quoted(row, at + 1, dialect.quote)
        if at < 0:
            return quoted, len(row), True
    stop = row.find(dialect.delimiter, at)
    stop = len(row) if stop < 0 else stop
    plain = row[at:stop]
    if "\n" in plain or "\r" in plain:
        return None, stop, False
    return quoted + plain, stop, False


def _quoted(row: str, at: int, quote: str) -> tuple[str, int]:
    """Returns a quoted text and the place behind its closing quote; -1 where there is none."""
    parts: list[str] = []
    while True:
        end = row.find(quote, at)
        if end < 0:
            return "".join([*parts, row[at:]]), -1
        parts.append(row[at:end])
        if not row.startswith(quote, end + 1):
            return "".join(parts), end + 1
        parts.append(quote)
        at = end + 2
