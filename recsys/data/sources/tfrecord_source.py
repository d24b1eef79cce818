"""TFRecord files of tf.Examples as Arrow batches; a damaged record becomes a dead letter.

A record has a frame: its length, the checksum of the length, its bytes, and their checksum. Nothing
marks where a frame begins, and the bytes of a record may hold frames. So a file is read from its
start, as one piece.
"""

from __future__ import annotations

import dataclasses
import struct
from collections.abc import Iterator, Sequence
from typing import Any, BinaryIO, ClassVar

import numpy as np
import pyarrow as pa

from recsys.data.dead_letters import dead_letters
from recsys.data.sources.source import (
    Piece,
    RawBatch,
    Source,
    join_batches,
    missing_column,
    moved,
)
from recsys.data.sources.streams import LINE_LIMIT_BYTES, open_bytes
from recsys.data.sources.values import last_values, list_lengths, lists_of, to_text
from recsys.errors import RecsysError
from recsys.system.installation import extra_needed

try:
    from google_crc32c import value as crc32c
except ImportError:  # It is installed with the decoder of the records.
    crc32c = None

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
DAMAGED = "damaged record: its checksum is wrong"
NO_EXAMPLE = "not a tf.Example"

_BATCH_RECORDS = 1 << 15
_Record = tuple[int, bytes, bool]
"""Number of a record, from 1 on, its bytes, and whether its checksum is correct."""


class TFRecordSource(Source):
    """TFRecord files of serialized tf.Examples; the columns are their features."""

    title: ClassVar[str] = "TFRecord"
    extensions: ClassVar[tuple[str, ...]] = (".tfrecord", ".tfrecords", ".tfr")

    @classmethod
    def detects(cls, start: bytes) -> bool:
        """Returns whether bytes begin with the header of a record."""
        if crc32c is None or len(start) < HEADER.size:
            return False
        _, crc = HEADER.unpack_from(start)
        return masked_crc(start[:8]) == crc

    @classmethod
    def fits(cls, start: bytes) -> bool:
        """Returns whether bytes may begin with the header of a record."""
        return crc32c is None or cls.detects(start)

    def column_names(self, file: Piece) -> list[str]:
        """Returns the names of the features of the first records."""
        decoder, records = _new_decoder(), next(_portions(file), [])
        examples = [_decode(decoder, [data]) for _, data, is_whole in records if is_whole]
        names = [name for one in examples if one is not None for name in one.schema.names]
        if not names:
            raise RecsysError(
                "R254",
                f"{file.file!r} must hold tf.Examples.",
                "Convert it.",
                "none in its first records",
            )
        return list(dict.fromkeys(names))

    def check(self, file: Piece) -> Piece:
        """Returns a file after a check for the columns in its first records."""
        columns = next(self.read(file)).columns
        for name, column in zip(file.columns, columns.columns, strict=True):
            if columns.num_rows and column.null_count == len(column):
                raise missing_column(file.file, name, ["other features"], file.columns)
        return file

    def read(self, piece: Piece) -> Iterator[RawBatch]:
        """Yields the rows of a file; a column is null if a record lacks the feature.

        Raises:
            RecsysError: A frame is damaged, so the next record can't be found.
        """
        decoder = _new_decoder()
        for records in _portions(piece):
            yield _batch(piece, records, decoder)


def _portions(file: Piece) -> Iterator[list[_Record]]:
    """Yields the records of a file in groups of bounded number and size."""
    stream = open_bytes(file.file, 0, file.size, file.compression)
    portion: list[_Record] = []
    n_bytes = 0
    for number, (data, is_whole) in enumerate(read_records(file.file, stream), start=1):
        portion.append((number, data, is_whole))
        n_bytes += len(data)
        if len(portion) == _BATCH_RECORDS or n_bytes >= LINE_LIMIT_BYTES:
            yield portion
            portion, n_bytes = [], 0
    if portion:
        yield portion


def read_records(file: str, stream: BinaryIO) -> Iterator[tuple[bytes, bool]]:
    """Yields each record, and whether its checksum is correct.

    Raises:
        RecsysError: A length is damaged or larger than `LINE_LIMIT_BYTES`, or the file is
            truncated.
    """
    offset = 0
    while header := stream.read(HEADER.size):
        if len(header) < HEADER.size:
            raise _lost(file, offset, "the file is cut off")
        length, crc = HEADER.unpack(header)
        if masked_crc(header[:8]) != crc:
            raise _lost(file, offset, "a damaged length")
        if length > LINE_LIMIT_BYTES:
            raise _lost(file, offset, f"a record of {length:,} bytes")
        data = stream.read(length)
        footer = stream.read(FOOTER.size)
        if len(footer) < FOOTER.size:
            raise _lost(file, offset, "the file is cut off")
        yield data, masked_crc(data) == FOOTER.unpack(footer)[0]
        offset += HEADER.size + length + FOOTER.size


def _lost(file: str, offset: int, received: str) -> RecsysError:
    return RecsysError(
        "R253",
        f"{file!r} must be a whole TFRecord file; at byte {offset:,} it isn't.",
        "The records before are good; where the next one begins is lost. Write it again.",
        received,
    )


def _decode(decoder: Any, records: Sequence[bytes]) -> pa.RecordBatch | None:
    """Returns records as columns; `None` if one is no tf.Example, or a feature has two types."""
    try:
        return decoder.DecodeBatch(list(records))
    except (RuntimeError, ValueError):
        return None


def _new_decoder() -> Any:
    with extra_needed("pipeline", "R252", "TFRecord files are decoded by tfx-bsl."):
        from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder
    return ExamplesToRecordBatchDecoder()


def _column(parts: Sequence[pa.RecordBatch], name: str) -> pa.Array:
    """Returns a feature of all parts; text if its types differ, null if it is missing."""
    lists = [
        part.column(name) if name in part.schema.names else pa.nulls(part.num_rows)
        for part in parts
    ]
    kinds = {column.type for column in lists} - {pa.null()}
    if not kinds:
        return pa.nulls(sum(map(len, lists)), pa.string())
    kind = kinds.pop()
    if kinds or pa.types.is_large_binary(kind.value_type):
        lists = [_as_text(column) for column in lists]
    else:
        lists = [column.cast(kind) for column in lists]
    column = pa.concat_arrays(lists)
    lengths = list_lengths(column)
    return column if (lengths > 1).any() else last_values(column, lengths == 0)


def _as_text(column: pa.Array) -> pa.Array:
    """Returns lists as lists of text, which may not be UTF-8; null as an empty list."""
    if pa.types.is_null(column.type):
        column = column.cast(pa.list_(pa.string()))
    values = column.flatten()
    if pa.types.is_large_binary(values.type):
        texts = values.cast(pa.binary()).view(pa.string())
    else:
        texts = to_text(values)
    return lists_of(texts, list_lengths(column))


def _batch(piece: Piece, records: Sequence[_Record], decoder: Any) -> RawBatch:
    good = [record for record in records if record[2]]
    letters = [_letters(piece.file, [record for record in records if not record[2]], DAMAGED)]
    parts = [_decode(decoder, [data for _, data, _ in good])]
    if parts[0] is None:
        parts = [_decode(decoder, [data]) for _, data, _ in good]
        judged = list(zip(good, parts, strict=True))
        undecoded = [record for record, part in judged if part is None]
        letters.append(_letters(piece.file, undecoded, NO_EXAMPLE))
        good = [record for record, part in judged if part is not None]
    decoded = [part for part in parts if part is not None]
    columns = [_column(decoded, name) for name in piece.columns]
    rows = RawBatch.at(piece, columns, np.array([number for number, _, _ in good], np.int64))
    rows = dataclasses.replace(rows, rejected=join_batches([*letters, rows.rejected]))
    return moved(rows, 0)  # The file is one piece.


def _letters(file: str, records: Sequence[_Record], reason: str) -> pa.RecordBatch:
    numbers = [record[0] for record in records]
    return dead_letters([reason] * len(records), file, numbers, [data for _, data, _ in records])


def masked_crc(data: bytes) -> int:
    """Returns the masked CRC-32C of `data`, as in TFRecord."""
    crc = crc32c(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF
