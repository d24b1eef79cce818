"""The interface of sources: registered classes that list the columns of files and read them.

A source, such as a file format or a table in a database file, is a subclass of `Source`. The
config selects it with `format: name` or `format: {type: name, option: value}`:

    @recsys.register_source("lines")
    class Lines(Source):
        column: str = "text"                            # an option of the config

        def column_names(self, file: Piece) -> list[str]:
            return [self.column]

        def read(self, piece: Piece) -> Iterator[RawBatch]:
            lines = Path(piece.file).read_text().splitlines()
            yield RawBatch.of(piece, [pa.array(lines)], first=1)

Formats of lines of text are subclasses of `recsys.data.sources.text_source.TextSource`.
"""

from __future__ import annotations

import abc
import dataclasses
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import ClassVar, Self

import numpy as np
import pyarrow as pa

from recsys.data.config import ListOfEvents, SourceConfig
from recsys.data.dead_letters import NOT_TEXT, dead_letters
from recsys.data.sources.streams import Compression
from recsys.errors import RecsysError
from recsys.strict import Strict

RawRows = Callable[[np.ndarray], list[bytes]]
"""Returns the raw text of the rows at indices `[k]` among the good rows."""
Lines = Callable[[np.ndarray], np.ndarray]
"""Returns the lines of the rows at indices `[k]` among the good rows `[k]`, from 1 on."""


class Source(Strict, abc.ABC):
    """A format of files. Its fields are its options in the config."""

    title: ClassVar[str] = "of the format that"
    """Name of the format in messages."""
    extensions: ClassVar[tuple[str, ...]] = ()
    """File extensions of the format, such as `.csv`."""

    @classmethod
    def from_config(cls, config: SourceConfig) -> Self:
        """Returns the source for a config that gives only its name."""
        del config
        return cls()

    @classmethod
    def detects(cls, start: bytes) -> bool:
        """Returns whether a file's first bytes, decompressed, are certainly of this format."""
        del start
        return False

    @classmethod
    def fits(cls, start: bytes) -> bool:
        """Returns whether a file's first bytes, decompressed, may be of this format."""
        del start
        return True

    @abc.abstractmethod
    def column_names(self, file: Piece) -> list[str]:
        """Returns the names of a file's columns.

        Args:
            file: The whole file.

        Raises:
            RecsysError: The file is damaged.
        """

    @abc.abstractmethod
    def read(self, piece: Piece) -> Iterator[RawBatch]:
        """Yields the rows of a piece, with the columns `piece.columns`.

        Raises:
            RecsysError: The file is damaged, or was truncated since the plan.
        """

    def check(self, file: Piece) -> Piece:
        """Returns a file after a check of its start.

        Args:
            file: The whole file.

        Raises:
            RecsysError: The file lacks one of `file.columns`, or is damaged.
        """
        check_columns(file.file, self.column_names(file), file.columns)
        return file

    def split(self, file: Piece, piece_bytes: int) -> Iterable[Piece]:
        """Yields the pieces that workers read, in order; none for a file without rows.

        Args:
            file: The whole file, as `check` returned it.
            piece_bytes: Approximate size of a piece [bytes].
        """
        del piece_bytes
        yield file


@dataclasses.dataclass(frozen=True)
class Piece:
    """The description of a part of a file, which is sent to the worker that reads it.

    Attributes:
        source: Source that reads it.
        file: The file.
        file_index: Index of the file among the files of the config.
        compression: Compression of the file.
        columns: The columns to read.
        size: Size of the file during planning [bytes]; no more is read.
        start: First byte of text, row group of Parquet, or another unit of the source.
        stop: End of the part in the same unit, exclusive.
        first: Number of rows before the part, for sources that know it.
        n_bytes: Approximate size of its rows [bytes].
        names: All columns of the file in order, if the source needs them.
        explode: The column with a list of events, if there is one.
        folder: Columns in the names of its folders, with their values.
        ids: Columns of ids. After `check`, those whose integers are written with `.0`, which
            `read` removes.
        ends: Digest of its first and last bytes; empty: unknown.
        body: First byte of the rows of a text, after its header.
    """

    source: Source
    file: str
    file_index: int
    compression: Compression | None
    columns: tuple[str, ...]
    size: int
    start: int
    stop: int
    first: int
    n_bytes: int
    names: tuple[str, ...] = ()
    explode: ListOfEvents | None = None
    folder: tuple[tuple[str, str | None], ...] = ()
    ids: tuple[str, ...] = ()
    ends: str = ""
    body: int = 0


@dataclasses.dataclass(frozen=True)
class RawBatch:
    """Rows of one file.

    Attributes:
        file: The file.
        columns: The columns of the good rows, in the types of the format: text for CSV.
        position: Line or row number of each good row `[n]` int64, from 1 on; or, with `lines`,
            any number that rises from row to row of the file.
        rejected: Dead letters for the other rows.
        raw_rows: Returns the raw text of rows; `None` if the format isn't text: the columns
            as JSON replace it.
        element: Index of each event in the list of its row `[n]`, from 0 on; `None` if a row
            is an event.
        n_empty: Number of rows with an empty list of events, which aren't counted as read.
        lines: Returns the lines of rows, if they aren't their positions.
        shares_position: Whether the events of a list have the position of their row.
    """

    file: str
    columns: pa.RecordBatch
    position: np.ndarray
    rejected: pa.RecordBatch
    raw_rows: RawRows | None = None
    element: np.ndarray | None = None
    n_empty: int = 0
    lines: Lines | None = None
    shares_position: bool = False

    @classmethod
    def of(cls, piece: Piece, columns: Sequence[pa.Array], first: int) -> RawBatch:
        """Returns a batch of consecutive rows; rows with damaged text are rejected.

        Args:
            piece: The piece that was read.
            columns: The columns `piece.columns` of the rows `[n]`, in any Arrow types.
            first: Line or number of the first row, from 1 on.
        """
        position = first + np.arange(len(columns[0]) if columns else 0)
        return cls.at(piece, columns, position)

    @classmethod
    def at(cls, piece: Piece, columns: Sequence[pa.Array], position: np.ndarray) -> RawBatch:
        """Returns a batch of rows with their lines or numbers `[n]`; see `of`."""
        names, nothing = list(piece.columns), dead_letters([], piece.file, [], [])

        def batch(arrays: Iterable[pa.Array]) -> RawBatch:
            rows = pa.RecordBatch.from_arrays(list(arrays), names=names)
            return cls(piece.file, rows, position, nothing)

        if all(map(_is_text, columns)):
            return batch(columns)
        columns = list(map(_unpacked, columns))
        rows = range(len(position))
        is_good = np.array(
            [all(_is_text(column[at : at + 1]) for column in columns) for at in rows]
        )
        reasons = [NOT_TEXT] * int(np.count_nonzero(~is_good))
        letters = batch(map(_binary, columns)).reject(pa.array(~is_good), reasons)
        return dataclasses.replace(batch(columns).take(is_good), rejected=letters)

    @property
    def n_read(self) -> int:
        """Number of good and rejected rows."""
        return len(self.position) + self.rejected.num_rows

    def reject(self, bad: pa.Array, reasons: Sequence[str]) -> pa.RecordBatch:
        """Returns the dead letters of the batch, then those for its rows that are `bad`.

        Args:
            bad: Whether each good row breaks a rule `[n]` bool.
            reasons: Reason for each bad row.
        """
        at = np.flatnonzero(bad.to_numpy(zero_copy_only=False))
        if len(at) == 0:
            return self.rejected
        if self.raw_rows is None:
            raw = [as_json(row) for row in self.columns.take(pa.array(at)).to_pylist()]
        else:
            raw = self.raw_rows(at)
        letters = dead_letters(reasons, self.file, self.line(at), raw)
        return join_batches([self.rejected, letters])

    def line(self, at: np.ndarray) -> np.ndarray:
        """Returns the lines, or numbers, of the rows at indices `[k]` among the good rows."""
        return self.position[at] if self.lines is None else self.lines(at)

    def take(self, keep: np.ndarray) -> RawBatch:
        """Returns a batch with the good rows that `keep` `[n]` bool selects."""
        at, raw_rows, lines = np.flatnonzero(keep), self.raw_rows, self.lines
        return dataclasses.replace(
            self,
            columns=self.columns.filter(pa.array(keep)),
            position=self.position[at],
            raw_rows=None if raw_rows is None else lambda rows: raw_rows(at[rows]),
            element=None if self.element is None else self.element[at],
            lines=None if lines is None else lambda rows: lines(at[rows]),
        )


def moved(batch: RawBatch, shift: int) -> RawBatch:
    """Returns a batch whose positions leave room for the events in lists of earlier rows.

    Args:
        batch: Rows, whose positions are their lines or numbers.
        shift: What is added to the positions.
    """
    numbers = batch.position
    return dataclasses.replace(batch, position=numbers + shift, lines=lambda at: numbers[at])


def as_json(row: object) -> bytes:
    """Returns a row as JSON; values without a JSON type are written as text."""
    return json.dumps(row, ensure_ascii=False, default=_as_text).encode("utf-8", "replace")


def _as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def join_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Concatenates batches of one schema, at least one."""
    if len(batches) == 1:
        return batches[0]
    joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined[0] if joined else batches[0]


# --- required columns


def check_columns(file: str, names: Sequence[str], columns: Sequence[str], cure: str = "") -> None:
    """Raises an error if a file lacks a column, or has it twice.

    Args:
        file: The file, or another container of the columns.
        names: Its columns.
        columns: Required columns.
        cure: Advice, if known.
    """
    for name in columns:
        if list(names).count(name) != 1:
            raise missing_column(file, name, names, columns, cure)


def missing_column(
    file: str, name: str, names: Sequence[str], columns: Sequence[str], cure: str = ""
) -> RecsysError:
    """Returns the error for a file that lacks a column, or has it twice."""
    amount = "only once" if name in names else "once"
    return RecsysError(
        "R203",
        f"{file!r} must have the column {name!r} {amount}"
        f" (expected: {', '.join(dict.fromkeys(columns))}).",
        cure or "Correct the columns in the config, or the file.",
        list(names),
    )


# --- text that isn't UTF-8


def _is_text(column: pa.Array) -> bool:
    """Returns whether all text in a column is UTF-8."""
    if pa.types.is_dictionary(column.type):
        return _is_text(column.dictionary)
    if pa.types.is_list(column.type) or pa.types.is_large_list(column.type):
        return _is_text(column.flatten())
    if not (pa.types.is_string(column.type) or pa.types.is_large_string(column.type)):
        return True
    try:
        column.validate(full=True)
    except pa.ArrowInvalid:
        return False
    return True


def _unpacked(column: pa.Array) -> pa.Array:
    """Returns a column with dictionaries decoded."""
    kind = column.type
    if pa.types.is_list(kind) and pa.types.is_dictionary(kind.value_type):
        return column.cast(pa.list_(kind.value_type.value_type))
    return column.dictionary_decode() if pa.types.is_dictionary(kind) else column


def _binary(column: pa.Array) -> pa.Array:
    """Returns text as bytes, so that it can be shown even if it is damaged."""
    kind = column.type
    if pa.types.is_string(kind):
        return column.view(pa.binary())
    if pa.types.is_large_string(kind):
        return column.view(pa.large_binary())
    is_texts = pa.types.is_list(kind) and pa.types.is_string(kind.value_type)
    return column.cast(pa.list_(pa.binary())) if is_texts else column
