"""TFRecord files of tf.Examples as Arrow batches; a damaged record becomes a dead letter.

A record is framed by its length, the checksum of that, and behind its bytes their checksum.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import struct
from collections.abc import Callable, Iterator, Sequence
from typing import Any, ClassVar

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.dead_letters import dead_letters
from recsys.data.sources.source import Piece, RawBatch, Source, join_batches, missing_column
from recsys.data.sources.streams import LINE_LIMIT_BYTES, Readable, open_bytes, read_some
from recsys.data.sources.values import to_text
from recsys.distribution import install_extra
from recsys.errors import RecsysError
from recsys.registry import register_source

HEADER = struct.Struct("<QI")
FOOTER = struct.Struct("<I")
_MASK_DELTA = 0xA282EAD8
DAMAGED = "damaged record: its checksum is wrong"
NO_EXAMPLE = "not a tf.Example"

_RECORDS_OF_A_BATCH = 1 << 15
_Record = tuple[int, bytes, bool]
"""Number of a record, from 1 on, its bytes, and whether its checksum is right."""


@register_source("tfrecord")
class TFRecordSource(Source):
    """TFRecord files of serialized tf.Examples; the columns are their features."""

    title: ClassVar[str] = "TFRecord"
    extensions: ClassVar[tuple[str, ...]] = (".tfrecord", ".tfrecords", ".tfr")

    @classmethod
    def detects(cls, start: bytes) -> bool:
        """Returns whether bytes begin with the header of a record."""
        if len(start) < HEADER.size:
            return False
        _, crc = HEADER.unpack_from(start)
        return masked_crc(start[:8]) == crc

    @classmethod
    def fits(cls, start: bytes) -> bool:
        """Returns whether bytes begin with the header of a record."""
        return cls.detects(start)

    def column_names(self, file: Piece) -> list[str]:
        """Returns the names of the features of the first records."""
        records: list[bytes] = []
        n_bytes = 0
        for data, is_whole in itertools.islice(_records_of(file), _RECORDS_OF_A_BATCH):
            records += [data] if is_whole else []
            n_bytes += len(data)
            if n_bytes >= LINE_LIMIT_BYTES:
                break
        parts = [part for _, part in _decode(_new_decoder(), records) if part is not None]
        if not parts:
            raise RecsysError(
                "R254",
                f"{file.file!r} must hold tf.Examples.",
                "Convert it.",
                "none in its first records",
            )
        return list(dict.fromkeys(name for part in parts for name in part.schema.names))

    def check(self, file: Piece) -> Piece:
        """Returns a file after a look for the columns in its first records."""
        columns = next(self.read(file)).columns
        for name, column in zip(file.columns, columns.columns, strict=True):
            if columns.num_rows and column.null_count == len(column):
                raise missing_column(file.file, name, ["other features"], file.columns)
        return file

    def read(self, piece: Piece) -> Iterator[RawBatch]:
        """Yields the rows of a file; a column is null where a record has no such feature.

        Raises:
            RecsysError: The frames are damaged: where the next record begins is lost.
        """
        decoder = _new_decoder()
        records: list[_Record] = []
        n_bytes = 0
        for number, (data, is_whole) in enumerate(_records_of(piece), start=1):
            records.append((number, data, is_whole))
            n_bytes += len(data)
            if len(records) == _RECORDS_OF_A_BATCH or n_bytes >= LINE_LIMIT_BYTES:
                yield _batch(piece, records, decoder)
                records, n_bytes = [], 0
        if records:
            yield _batch(piece, records, decoder)


def _records_of(file: Piece) -> Iterator[tuple[bytes, bool]]:
    return read_records(file.file, open_bytes(file.file, 0, file.size, file.compression))


def read_records(file: str, stream: Readable) -> Iterator[tuple[bytes, bool]]:
    """Yields each record, and whether its checksum is right.

    Raises:
        RecsysError: A length is damaged or larger than `LINE_LIMIT_BYTES`, or the file is
            cut off.
    """
    offset = 0
    while header := read_some(stream, HEADER.size):
        if len(header) < HEADER.size:
            raise _lost(file, offset, "the file is cut off")
        length, crc = HEADER.unpack(header)
        if masked_crc(header[:8]) != crc:
            raise _lost(file, offset, "a damaged length")
        if length > LINE_LIMIT_BYTES:
            raise _lost(file, offset, f"a record of {length:,} bytes")
        data = read_some(stream, length)
        footer = read_some(stream, FOOTER.size)
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


def _decode(
    decoder: Any, records: Sequence[bytes], first: int = 0
) -> Iterator[tuple[range, pa.RecordBatch | None]]:
    """Yields parts of records, in order, as columns; `None` for one that is no tf.Example.

    Records are decoded together if each feature has one type in them; else by halves.
    """
    places = range(first, first + len(records))
    try:
        yield places, decoder.DecodeBatch(list(records))
    except (RuntimeError, ValueError):
        middle = len(records) // 2
        if middle == 0:
            yield places, None
        else:
            yield from _decode(decoder, records[:middle], first)
            yield from _decode(decoder, records[middle:], first + middle)


def _new_decoder() -> Any:
    try:
        from tfx_bsl.coders.example_coder import ExamplesToRecordBatchDecoder
    except ImportError:
        raise RecsysError(
            "R252",
            "TFRecord files are decoded by tfx-bsl.",
            install_extra("pipeline"),
        ) from None
    return ExamplesToRecordBatchDecoder()


def _column(parts: Sequence[pa.RecordBatch], name: str) -> pa.Array:
    """Returns a feature of all parts; as text where its type differs, null where it is none."""
    n_rows = sum(part.num_rows for part in parts)
    lists = [_lists(part, name) for part in parts]
    kinds = {column.type for column in lists} - {pa.null()}
    if not kinds:
        return pa.nulls(n_rows, pa.string())
    kind = kinds.pop()
    if kinds or pa.types.is_large_binary(kind.value_type):
        return _one_value(pa.concat_arrays([_as_text(column) for column in lists]))
    return _one_value(pa.concat_arrays([column.cast(kind) for column in lists]))


def _lists(part: pa.RecordBatch, name: str) -> pa.Array:
    place = part.schema.get_field_index(name)
    return part.column(place) if place >= 0 else pa.nulls(part.num_rows)


def _as_text(column: pa.Array) -> pa.Array:
    """Returns lists as lists of text, which may not be UTF-8; null as an empty one."""
    if pa.types.is_null(column.type):
        column = column.cast(pa.list_(pa.string()))
    values = column.flatten()
    if pa.types.is_large_binary(values.type):
        texts = values.cast(pa.binary()).view(pa.string())
    else:
        texts = to_text(values)
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    offsets = np.concatenate([[0], np.cumsum(lengths)]).astype(np.int32)
    return pa.ListArray.from_arrays(pa.array(offsets), texts)


def _one_value(column: pa.Array) -> pa.Array:
    """Returns lists of one value at most as single values; others as they are."""
    lengths = pc.fill_null(pc.list_value_length(column), 0).to_numpy(zero_copy_only=False)
    if (lengths > 1).any():
        return column
    place = pa.array(np.cumsum(lengths) - 1, mask=lengths == 0)
    return column.flatten().take(place)


def _batch(piece: Piece, records: Sequence[_Record], decoder: Any) -> RawBatch:
    whole = [record for record in records if record[2]]
    letters = [_letters(piece.file, [record for record in records if not record[2]], DAMAGED)]
    parts = list(_decode(decoder, [data for _, data, _ in whole]))
    undecoded = [whole[at] for places, part in parts if part is None for at in places]
    letters.append(_letters(piece.file, undecoded, NO_EXAMPLE))
    places = [at for places, part in parts if part is not None for at in places]
    decoded = [part for _, part in parts if part is not None]
    columns = [_column(decoded, name) for name in piece.columns]
    rows = RawBatch.at(piece, columns, np.array([whole[at][0] for at in places], np.int64))
    return dataclasses.replace(rows, rejected=join_batches([*letters, rows.rejected]))


def _letters(file: str, records: Sequence[_Record], reason: str) -> pa.RecordBatch:
    numbers = [record[0] for record in records]
    return dead_letters([reason] * len(records), file, numbers, [data for _, data, _ in records])


# --- checksums


def masked_crc(data: bytes) -> int:
    """Returns the masked CRC-32C of `data`, as TFRecord writes it."""
    crc = _crc32c()(data)
    return (((crc >> 15) | (crc << 17)) + _MASK_DELTA) & 0xFFFFFFFF


@functools.cache
def _crc32c() -> Callable[[bytes], int]:
    try:
        from google_crc32c import value
    except ImportError:
        return _slow_crc32c
    return value


def _slow_crc32c(data: bytes) -> int:
    table, crc = _table(), 0xFFFFFFFF
    for byte in data:
        crc = (crc >> 8) ^ table[(crc ^ byte) & 0xFF]
    return crc ^ 0xFFFFFFFF


@functools.cache
def _table() -> list[int]:
    table = []
    for value in range(256):
        for _ in range(8):
            value = (value >> 1) ^ (0x82F63B78 if value & 1 else 0)
        table.append(value)
    return table
