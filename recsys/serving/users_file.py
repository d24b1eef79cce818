"""A file of users to recommend to: CSV, Parquet, JSON Lines, tf.Examples or plain text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from recsys import registry
from recsys.config import CsvFormat, SourceConfig
from recsys.data.dead_letters import dead_letters
from recsys.data.interactions import BAD_USER, NO_USER, is_bad_id, split_by_rules
from recsys.data.sources.csv_source import CsvSource, header_names
from recsys.data.sources.files import SourceFile, file_size
from recsys.data.sources.pieces import Piece, open_source, plan_pieces, read_piece
from recsys.data.sources.streams import read_line
from recsys.data.sources.values import to_ids
from recsys.errors import UsageError

# Small, because progress is reported by whole pieces.
_PIECE_BYTES = 256 << 10
_DELIMITERS = "\t;|,"
_NEVER = "\x1f"
_PLAIN = "user_id"


@dataclasses.dataclass(frozen=True)
class UsersFile:
    """The users of a file, in its order; it may have any size.

    Attributes:
        column: The column of the ids.
        pieces: The parts that it is read in.
    """

    column: str
    pieces: list[Piece]

    @classmethod
    def open(cls, file: Path, column: str | None = None) -> UsersFile:
        """Looks at the start of a file.

        Args:
            file: A file whose format its name or its first bytes tell. `.txt` without a
                `column` has an id a line, and no header.
            column: The column of the ids; the first one by default.

        Raises:
            UsageError: There is no such file (R546).
            RecsysError: It can't be read, is damaged, or lacks the column.
        """
        if not file.is_file():
            raise UsageError(
                "R546",
                "The file of users must be there.",
                "Name a file of ids: CSV, Parquet, JSON Lines, or text with an id a line.",
                str(file),
            )
        source, name = _look(str(file), column)
        return cls(name, plan_pieces(source, "users", [name], _PIECE_BYTES))

    @property
    def n_bytes(self) -> int:
        """Bytes of all pieces, about."""
        return sum(piece.n_bytes for piece in self.pieces)

    def __iter__(self) -> Iterator[tuple[pa.Array, pa.RecordBatch, int]]:
        """Yields ids `[n]` string, dead letters of other rows, and the bytes read since."""
        for piece in self.pieces:
            for batch in read_piece(piece):
                ids = to_ids(batch.columns.column(self.column))
                rules = [(ids.is_null(), NO_USER), (is_bad_id(ids), BAD_USER)]
                typed = pa.RecordBatch.from_arrays([ids], names=[_PLAIN])
                good, letters = split_by_rules(batch, typed, rules)
                yield good.column(0), letters, 0
            yield pa.array([], pa.string()), dead_letters([], "", [], []), piece.n_bytes


def _look(path: str, column: str | None) -> tuple[SourceConfig, str]:
    """Returns how a file is read, and which column has the ids."""
    file = open_source(SourceFile(path, file_size(path)), SourceConfig(files=path))
    name = registry.name_of("source", file.source)
    source = SourceConfig(files=path, format=name)
    if isinstance(file.source, CsvSource):
        line = read_line(file.source.open(file), path)
        return _csv(path, line, source, column)
    if column is not None:
        return source, column
    names = file.source.column_names(file)
    return source, names[0] if names else _PLAIN


def _csv(
    file: str, line: bytes, source: SourceConfig, column: str | None
) -> tuple[SourceConfig, str]:
    is_plain = column is None and ".txt" in [suffix.lower() for suffix in Path(file).suffixes]
    if is_plain:
        csv = CsvFormat(delimiter=_NEVER, quote=None, names=(_PLAIN,))
        return source.model_copy(update={"csv": csv}), _PLAIN
    text = line.decode("utf-8", "replace")
    delimiter = next((sign for sign in _DELIMITERS if sign in text), ",")
    csv = CsvFormat(delimiter=delimiter)
    return source.model_copy(update={"csv": csv}), column or header_names(file, line, csv)[0]
