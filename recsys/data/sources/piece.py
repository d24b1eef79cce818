"""A part of a file that one worker reads; small, so that it goes to any worker."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from recsys.config import CsvFormat, ListOfEvents
from recsys.data.sources.csv_fields import Dialect
from recsys.data.sources.detection import Compression, Format


@dataclasses.dataclass(frozen=True)
class Piece:
    """A part of a file that one worker reads.

    Attributes:
        file: The file.
        file_index: Its place among the files of the source.
        format: How it is written.
        compression: How it is compressed.
        csv: How the rows of CSV are written.
        columns: The asked columns.
        names: Columns of CSV, in their order.
        size: Bytes of the file, as the plan saw it; no more are read.
        start: First byte of text, or first row group of Parquet.
        stop: One past the last.
        first: Line that the part begins at, or rows before it, from 1 or 0 on.
        n_bytes: Bytes of its rows, about.
        explode: The column with a list of events, if there is one.
    """

    file: str
    file_index: int
    format: Format
    compression: Compression | None
    csv: CsvFormat
    columns: tuple[str, ...]
    names: tuple[str, ...]
    size: int
    start: int
    stop: int
    first: int
    n_bytes: int
    explode: ListOfEvents | None = None

    @property
    def dialect(self) -> Dialect:
        """How the fields of CSV are written."""
        return Dialect(self.csv.delimiter, "") if self.has_rest else Dialect.of(self.csv)

    @property
    def has_rest(self) -> bool:
        """Whether the last column of CSV is the rest of its line, delimiters included."""
        return is_rest(self.explode, self.csv, self.names)


def is_rest(events: ListOfEvents | None, csv: CsvFormat, names: Sequence[str]) -> bool:
    """Returns whether the last column of CSV is the rest of its line, a list of events."""
    if events is None or events.separator != csv.delimiter or not names:
        return False
    return names[-1] == events.column
