"""What a source of rows is: a registered class that says which columns files have and reads them.

A format of files, or a table in a database file, is one subclass of `Source`. It is used
by `format: name`, or `format: {type: name, option: value}`, in the config:

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
from recsys.data.sources.decompression import Compression
from recsys.errors import RecsysError
from recsys.strict import Strict

RawRows = Callable[[np.ndarray], list[bytes]]
"""Returns the rows at places `[k]` among the whole ones, as they stand in the file."""


class Source(Strict, abc.ABC):
    """How rows are read: a format of files. Its fields are its options in the config."""

    title: ClassVar[str] = "of the format that"
    """What a file of the format is called in messages."""
    extensions: ClassVar[tuple[str, ...]] = ()
    """Ends of names that tell the format, as `.csv`."""

    @classmethod
    def from_config(cls, config: SourceConfig) -> Self:
        """Returns the source of a config that names it without options."""
        del config
        return cls()

    @classmethod
    def detects(cls, start: bytes) -> bool:
        """Returns whether the first bytes of a file, decompressed, can be of no other format."""
        del start
        return False

    @classmethod
    def fits(cls, start: bytes) -> bool:
        """Returns whether the first bytes of a file, decompressed, may be of this format."""
        del start
        return True

    @abc.abstractmethod
    def column_names(self, file: Piece) -> list[str]:
        """Returns the names of the columns that a file has.

        Args:
            file: The whole file.

        Raises:
            RecsysError: It is damaged.
        """

    @abc.abstractmethod
    def read(self, piece: Piece) -> Iterator[RawBatch]:
        """Yields the rows of a piece, with the columns `piece.columns`.

        Raises:
            RecsysError: The file is damaged, or got shorter since the plan.
        """

    def check(self, file: Piece) -> Piece:
        """Returns a file after a look at its start.

        Args:
            file: The whole file.

        Raises:
            RecsysError: It lacks one of `file.columns`, or is damaged.
        """
        check_columns(file.file, self.column_names(file), file.columns)
        return file

    def split(self, file: Piece, piece_bytes: int) -> Iterable[Piece]:
        """Yields the pieces that workers read, in order; none of a file without rows.

        Args:
            file: The whole file, as `check` returned it.
            piece_bytes: Bytes of a piece, about.
        """
        del piece_bytes
        yield file


@dataclasses.dataclass(frozen=True)
class Piece:
    """The description of a part of a file, which is sent to the worker that reads it.

    Attributes:
        source: What reads it.
        file: The file.
        file_index: Its place among the files of the config.
        compression: How it is compressed.
        columns: The columns to read.
        size: Bytes of the file, as the plan saw it; no more are read.
        start: First byte of text, row group of Parquet, or what else a source counts.
        stop: One past the last.
        first: Line that the part begins at, from 1 on, or the rows before it.
        n_bytes: Bytes of its rows, about.
        names: Columns of the file in their order, where the source needs them.
        explode: The column with a list of events, if there is one.
        folder: Columns that are in the names of its folders, with their value in all rows.
        ids: Columns of ids. After `check` those whose whole numbers are written with `.0`, which
            `read` leaves out.
        ends: Digest of its first and last bytes; empty: unknown.
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


@dataclasses.dataclass(frozen=True)
class RawBatch:
    """Rows of one file.

    Attributes:
        file: The file.
        columns: The columns of the rows that are whole, in the types that the format
            gives: text for CSV.
        position: Line of each of them, or its row number `[n]` int64, from 1 on.
        rejected: Dead letters of the rows that are not.
        raw_rows: Returns rows as they stand in the file; `None` where the format has
            no text: the columns as JSON take its place.
        element: Place of each event in the list of its row `[n]`, from 0 on; `None` where
            a row is an event.
        n_empty: Rows whose list of events is empty; they are not among the read ones.
    """

    file: str
    columns: pa.RecordBatch
    position: np.ndarray
    rejected: pa.RecordBatch
    raw_rows: RawRows | None = None
    element: np.ndarray | None = None
    n_empty: int = 0

    @classmethod
    def of(cls, piece: Piece, columns: Sequence[pa.Array], first: int) -> RawBatch:
        """Returns rows that stand one after the other; those with damaged text are rejected.

        Args:
            piece: Where they were read.
            columns: The columns `piece.columns` of the rows `[n]`, in any Arrow types.
            first: Line or number of the first row, from 1 on.
        """
        position = first + np.arange(len(columns[0]) if columns else 0)
        return cls.at(piece, columns, position)

    @classmethod
    def at(cls, piece: Piece, columns: Sequence[pa.Array], position: np.ndarray) -> RawBatch:
        """Returns rows at their lines or numbers `[n]`; those with damaged text are rejected."""
        columns = [column if _is_text(column) else _unpacked(column) for column in columns]
        names = list(piece.columns)
        rows = pa.RecordBatch.from_arrays(columns, names=names)
        whole = cls(piece.file, rows, position, dead_letters([], piece.file, [], []))
        damaged = [column for column in columns if not _is_text(column)]
        if not damaged:
            return whole
        is_good = np.array(
            [
                all(_is_text(column[at : at + 1]) for column in damaged)
                for at in range(len(position))
            ]
        )
        shown = pa.RecordBatch.from_arrays([_binary(column) for column in columns], names=names)
        bad = pa.array(~is_good)
        letters = dataclasses.replace(whole, columns=shown).reject(
            bad, [NOT_TEXT] * int((~is_good).sum())
        )
        return cls(piece.file, rows.filter(pa.array(is_good)), position[is_good], letters)

    @property
    def n_read(self) -> int:
        """Rows of the batch, whole or not."""
        return len(self.position) + self.rejected.num_rows

    def reject(self, bad: pa.Array, reasons: Sequence[str]) -> pa.RecordBatch:
        """Returns the dead letters of the batch, then those of its whole rows that are `bad`.

        Args:
            bad: Which of the whole rows break a rule `[n]` bool.
            reasons: What is wrong with each of them, as many as `bad` has.
        """
        at = np.flatnonzero(bad.to_numpy(zero_copy_only=False))
        if len(at) == 0:
            return self.rejected
        raw = self._as_json(at) if self.raw_rows is None else self.raw_rows(at)
        letters = dead_letters(reasons, self.file, self.position[at], raw)
        return join_batches([self.rejected, letters])

    def _as_json(self, at: np.ndarray) -> list[bytes]:
        rows = self.columns.take(pa.array(at)).to_pylist()
        return [as_json(row) for row in rows]


def as_json(row: object) -> bytes:
    """Returns a row as JSON; what JSON has no word for is written as text."""
    return json.dumps(row, ensure_ascii=False, default=_as_text).encode("utf-8", "replace")


def _as_text(value: object) -> str:
    return value.decode("utf-8", "replace") if isinstance(value, bytes) else str(value)


def join_batches(batches: Sequence[pa.RecordBatch]) -> pa.RecordBatch:
    """Returns batches of one schema, at least one, as one batch."""
    if len(batches) == 1:
        return batches[0]
    joined = pa.Table.from_batches(batches).combine_chunks().to_batches()
    return joined[0] if joined else batches[0]


# --- columns that a file must have


def check_columns(file: str, names: Sequence[str], columns: Sequence[str], cure: str = "") -> None:
    """Raises an error if a file lacks a column, or has it twice.

    Args:
        file: The file, or what else has the columns.
        names: Columns that it has.
        columns: Columns that it must have.
        cure: What to do, where that is known.
    """
    for name in columns:
        if list(names).count(name) != 1:
            raise missing_column(file, name, names, columns, cure)


def missing_column(
    file: str, name: str, names: Sequence[str], columns: Sequence[str], cure: str = ""
) -> RecsysError:
    """Returns the error of a file that lacks a column, or has it twice."""
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
    """Returns a column with each value in its row, where it may be in a dictionary."""
    kind = column.type
    if pa.types.is_list(kind) and pa.types.is_dictionary(kind.value_type):
        return column.cast(pa.list_(kind.value_type.value_type))
    return column.dictionary_decode() if pa.types.is_dictionary(kind) else column


def _binary(column: pa.Array) -> pa.Array:
    """Returns text as bytes, so that it can be shown, however damaged."""
    kind = column.type
    if pa.types.is_string(kind):
        return column.view(pa.binary())
    if pa.types.is_large_string(kind):
        return column.view(pa.large_binary())
    is_texts = pa.types.is_list(kind) and pa.types.is_string(kind.value_type)
    return column.cast(pa.list_(pa.binary())) if is_texts else column
