"""The shuffle of rows: batches of Arrow by bucket, in files.

A worker writes its rows to a file, ordered by bucket, and only `(bucket, Spill)` is shuffled: a few
bytes for a million rows. Shuffled by the engine, rows would stay in memory: all of them with a
runner on one machine, a bucket's with Spark, and a hundred messages of a worker with Flink. All
workers have access to the folder of these files, which is beside the artifacts.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

_SPILL_BYTES = 64 << 10
_LEAST_BUFFER, _MOST_BUFFER = 8 << 20, 64 << 20


@dataclasses.dataclass(frozen=True)
class Spill:
    """Rows of one bucket in a file.

    Attributes:
        file: Path of the file.
        offset: Position of the rows in the file [bytes].
        length: Size of the rows in the file [bytes].
    """

    file: str
    offset: int
    length: int


class SpillWriter:
    """Orders rows by bucket, with a bounded buffer in memory.

    Args:
        folder: Folder of the file for the rows. The name of the file is random, so that a task
            that Beam runs twice writes two files, and the spills refer to one of them.
        n_buckets: Number of buckets; with more, the buffer is larger, so that spills aren't tiny.
    """

    def __init__(self, folder: Path, n_buckets: int) -> None:
        self._file = folder / f"{uuid.uuid4().hex}.arrows"
        self._waiting: list[tuple[np.ndarray, pa.RecordBatch]] = []
        self._n_bytes = self._offset = 0
        self._most_bytes = min(max(n_buckets * _SPILL_BYTES, _LEAST_BUFFER), _MOST_BUFFER)

    def add(self, buckets: np.ndarray, rows: pa.RecordBatch) -> Iterator[tuple[int, Spill]]:
        """Adds rows with their buckets `[n]`; yields the full buffer by bucket."""
        if rows.num_rows:
            self._waiting.append((buckets, rows))
            self._n_bytes += rows.nbytes
        if self._n_bytes >= self._most_bytes:
            yield from self.flush()

    def flush(self) -> Iterator[tuple[int, Spill]]:
        """Yields the rows in the buffer by bucket."""
        if not self._waiting:
            return
        bucket = np.concatenate([buckets for buckets, _ in self._waiting])
        rows = pa.Table.from_batches([rows for _, rows in self._waiting]).combine_chunks()
        self._waiting, self._n_bytes = [], 0
        # NumPy sorts 16-bit integers by radix, in linear time.
        key = bucket.astype(np.uint16) if bucket.max() < 1 << 16 else bucket
        order = np.argsort(key, kind="stable")
        ordered = rows.take(pa.array(order))
        used, lengths = np.unique(bucket, return_counts=True)
        start = 0
        for number, length in zip(used.tolist(), lengths.tolist(), strict=True):
            yield number, self._kept(ordered.slice(start, length))
            start += length

    def _kept(self, rows: pa.Table) -> Spill:
        sink = pa.BufferOutputStream()
        with pa.ipc.new_stream(sink, rows.schema) as stream:
            stream.write_table(rows)
        content = sink.getvalue()
        self._file.parent.mkdir(parents=True, exist_ok=True)
        with self._file.open("ab") as file:
            file.write(content)
        self._offset += content.size
        return Spill(str(self._file), self._offset - content.size, content.size)


def read_spills(spills: Iterable[Spill]) -> pa.Table:
    """Returns the rows of spills without a copy."""
    return pa.concat_tables([_read(spill) for spill in spills])


def _read(spill: Spill) -> pa.Table:
    with pa.memory_map(spill.file) as file:
        file.seek(spill.offset)
        return pa.ipc.open_stream(pa.py_buffer(file.read_buffer(spill.length))).read_all()
