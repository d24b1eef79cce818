"""A file of users to recommend to: CSV, Parquet, JSON Lines, tf.Examples or plain text."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path

import pyarrow as pa

from recsys.config import CsvFormat, SourceConfig
from recsys.data.dead_letters import dead_letters
from recsys.data.interactions import BAD_USER, NO_USER, is_bad_id, split_by_rules
from recsys.data.sources import parquet_source, tfrecord
from recsys.data.sources.csv_fields import Dialect
from recsys.data.sources.csv_source import header_names
from recsys.data.sources.detection import START_BYTES, by_name, compression_of, format_of
from recsys.data.sources.files import Section, SourceFile, file_size
from recsys.data.sources.jsonl import field_names, find_fields
from recsys.data.sources.pieces import Piece, plan_pieces, read_piece
from recsys.data.sources.text import open_bytes, read_some
from recsys.data.sources.values import to_ids
from recsys.errors import UsageError

# Small, because progress is told by whole ones.
_PIECE_BYTES = 256 << 10
_LOOK_BYTES = 1 << 20
_DELIMITERS = "\t;|,"
_NEVER = "\x1f"
_PLAIN = "user_id"


@dataclasses.dataclass(frozen=True)
class AskedUsers:
    """The users of a file, in its order; it may have any size.

    Attributes:
        column: The column of the ids.
        pieces: The parts that it is read in.
    """

    column: str
    pieces: list[Piece]

    @classmethod
    def open(cls, file: Path, column: str | None = None) -> AskedUsers:
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
        source, found = _look(str(file), column)
        return cls(found, plan_pieces(source, "users", [found], _PIECE_BYTES))

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


def _look(file: str, column: str | None) -> tuple[SourceConfig, str]:
    """Returns how a file is read, and which column has the ids."""
    size = file_size(file)
    start = read_some(Section(file, 0, size), START_BYTES)
    compression = compression_of(file, start)
    start = read_some(open_bytes(file, 0, size, compression), _LOOK_BYTES)
    source = SourceConfig(files=file)
    format_ = format_of(file, start, source)
    if by_name(file) is None:
        source = source.model_copy(update={"format": format_})
    if format_ == "csv":
        return _csv(file, start, source, column)
    if column is not None:
        return source, column
    if format_ == "parquet":
        names = parquet_source.column_names(SourceFile(file, size))
    elif format_ == "jsonl":
        names = [name for row in find_fields(start.split(b"\n")[:100]) for name in field_names(row)]
    else:
        names = tfrecord.feature_names(file, open_bytes(file, 0, size, compression))
    return source, names[0] if names else _PLAIN


def _csv(
    file: str, start: bytes, source: SourceConfig, column: str | None
) -> tuple[SourceConfig, str]:
    is_plain = column is None and ".txt" in [suffix.lower() for suffix in Path(file).suffixes]
    if is_plain:
        csv = CsvFormat(delimiter=_NEVER, quote=None, names=(_PLAIN,))
        return source.model_copy(update={"csv": csv}), _PLAIN
    line = start.removeprefix(b"\xef\xbb\xbf").split(b"\n", 1)[0]
    text = line.decode("utf-8", "replace")
    delimiter = next((sign for sign in _DELIMITERS if sign in text), ",")
    source = source.model_copy(update={"csv": CsvFormat(delimiter=delimiter)})
    return source, column or header_names(file, line, Dialect(delimiter))[0]
