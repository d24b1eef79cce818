"""TFRecord files of tf.Examples as Arrow batches; a damaged record becomes a dead letter."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.dead_letters import dead_letters
from recsys.data.sources.csv_rows import Readable
from recsys.data.sources.framing import FOOTER, HEADER, masked_crc
from recsys.data.sources.limits import LINE_LIMIT_BYTES
from recsys.data.sources.parquet_source import text_checked
from recsys.data.sources.raw_batch import RawBatch, one_batch
from recsys.data.sources.text import read_some
from recsys.data.sources.values import to_text
from recsys.distribution import install_extra
from recsys.errors import RecsysError

DAMAGED = "damaged record: its checksum is wrong"
NO_EXAMPLE = "not a tf.Example"

_RECORDS_OF_A_BATCH = 1 << 15


def read_tfrecord(file: str, stream: Readable, columns: Sequence[str]) -> Iterator[RawBatch]:
    """Yields the rows of a TFRecord file.

    Args:
        file: The file.
        stream: Its bytes, decompressed.
        columns: Features to return; null where a row has none.

    Raises:
        RecsysError: The frames are damaged: where the next record begins is lost.
    """
    decoder = _new_decoder()
    records: list[tuple[int, bytes, bool]] = []
    n_bytes = 0
    for number, (data, is_whole) in enumerate(read_records(file, stream), start=1):
        records.append((number, data, is_whole))
        n_bytes += len(data)
        if len(records) == _RECORDS_OF_A_BATCH or n_bytes >= LINE_LIMIT_BYTES:
            yield _batch(file, records, columns, decoder)
            records, n_bytes = [], 0
    if records:
        yield _batch(file, records, columns, decoder)


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


def _lost(file: str, offset: int, found: str) -> RecsysError:
    return RecsysError(
        "R253",
        f"{file!r} must be a whole TFRecord file; at byte {offset:,} it isn't.",
        "The records before are good; where the next one begins is lost. Write it again.",
        found,
    )


def feature_names(file: str, stream: Readable) -> list[str]:
    """Returns the names of the features of the first records.

    Raises:
        RecsysError: As `read_records`; or they are no tf.Examples.
    """
    whole: list[bytes] = []
    n_bytes = 0
    for data, is_whole in itertools.islice(read_records(file, stream), _RECORDS_OF_A_BATCH):
        whole += [data] if is_whole else []
        n_bytes += len(data)
        if n_bytes >= LINE_LIMIT_BYTES:
            break
    parts = [part for _, part in _decode(_new_decoder(), whole) if part is not None]
    if not parts:
        raise RecsysError(
            "R254", f"{file!r} must hold tf.Examples.", "Convert it.", "none in its first records"
        )
    return list(dict.fromkeys(name for part in parts for name in part.schema.names))


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


def _batch(
    file: str,
    records: Sequence[tuple[int, bytes, bool]],
    columns: Sequence[str],
    decoder: Any,
) -> RawBatch:
    whole = [record for record in records if record[2]]
    letters = [_letters(file, [r for r in records if not r[2]], DAMAGED)]
    parts = list(_decode(decoder, [data for _, data, _ in whole]))
    lost = [whole[at] for places, part in parts if part is None for at in places]
    letters.append(_letters(file, lost, NO_EXAMPLE))
    whole = [whole[at] for places, part in parts if part is not None for at in places]
    decoded = [part for _, part in parts if part is not None]
    picked = [_column(decoded, name) for name in columns]
    checked = text_checked(file, picked, columns, 1)
    number = np.array([record[0] for record in whole], np.int64)
    rejected = _renumbered(checked.rejected, number)
    return RawBatch(
        file,
        checked.columns,
        number[checked.position - 1],
        one_batch([*letters, rejected]),
    )


def _letters(file: str, records: Sequence[tuple[int, bytes, bool]], reason: str) -> pa.RecordBatch:
    numbers = [record[0] for record in records]
    return dead_letters([reason] * len(records), file, numbers, [r[1] for r in records])


def _renumbered(letters: pa.RecordBatch, number: np.ndarray) -> pa.RecordBatch:
    """Returns letters whose lines are places among whole records, with the records' numbers."""
    place = letters.schema.get_field_index("line")
    lines = pa.array(number[letters.column(place).to_numpy() - 1], pa.int64())
    return letters.set_column(place, letters.schema.field(place), lines)
