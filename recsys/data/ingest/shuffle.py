"""Shuffles rows through files: Beam groups references while the rows stay on disk.

Beam's local runners hold what they shuffle in the memory of one process. So a
worker writes its rows to a file, ordered by bucket, and what goes through Beam is
`(bucket, Spill)`: a few bytes for a million rows. Whatever runs the pipeline needs
the folder of the files in reach of all workers; that is where the artifacts are too.
"""

from __future__ import annotations

import dataclasses
import uuid
from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa

_FLUSH_BYTES = 64 << 20


@dataclasses.dataclass(frozen=True)
class Spill:
    """Rows of one bucket in a file.

    Attributes:
        file: Path of the file.
        offset: Where they begin in it [bytes].
        length: How long they are in it [bytes].
        rows: How many they are.
    """

    file: str
    offset: int
    length: int
    rows: int


class SpillWriter:
    """Writes rows by bucket into one new file; memory is bounded by what it holds back.

    Args:
        folder: Folder of the file. Its name is drawn, so that a task that Beam runs
            twice writes two files, and what was grouped refers to one of them.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = folder / f"{uuid.uuid4().hex}.arrows"
        self._sink: pa.OSFile | None = None
        self._waiting: list[tuple[np.ndarray, pa.RecordBatch]] = []
        self._n_bytes = 0

    def add(self, buckets: np.ndarray, rows: pa.RecordBatch) -> Iterator[tuple[int, Spill]]:
        """Adds rows with the bucket `[n]` of each; yields the spills written so far."""
        if rows.num_rows:
            self._waiting.append((buckets, rows))
            self._n_bytes += rows.get_total_buffer_size()
        if self._n_bytes >= _FLUSH_BYTES:
            yield from self._flush()

    def close(self) -> Iterator[tuple[int, Spill]]:
        """Yields the last spills."""
        yield from self._flush()
        if self._sink is not None:
            self._sink.close()

    def _flush(self) -> Iterator[tuple[int, Spill]]:
        if not self._waiting:
            return
        bucket = np.concatenate([buckets for buckets, _ in self._waiting])
        rows = pa.Table.from_batches([rows for _, rows in self._waiting]).combine_chunks()
        self._waiting, self._n_bytes = [], 0
        # Sixteen bits are sorted by radix, in linear time.
        key = bucket.astype(np.uint16) if bucket.max() < 1 << 16 else bucket
        order = np.argsort(key, kind="stable")
        ordered = rows.take(pa.array(order))
        used, starts = np.unique(bucket[order], return_index=True)
        ends = [*starts[1:], len(order)]
        if self._sink is None:
            self._sink = pa.OSFile(str(self._file), "wb")
        for number, start, end in zip(used.tolist(), starts.tolist(), ends, strict=True):
            yield number, _append(self._sink, str(self._file), ordered.slice(start, end - start))


def write_spill(folder: Path, rows: pa.Table) -> Spill:
    """Writes rows into a file of their own."""
    folder.mkdir(parents=True, exist_ok=True)
    file = str(folder / f"{uuid.uuid4().hex}.arrows")
    with pa.OSFile(file, "wb") as sink:
        return _append(sink, file, rows)


def read_spills(spills: Iterable[Spill]) -> pa.Table:
    """Returns the rows of spills, in the order of their files; nothing is copied."""
    # In whatever order Beam groups them, the rows come in one order.
    ordered = sorted(spills, key=lambda spill: (spill.file, spill.offset))
    return pa.concat_tables([_read(spill) for spill in ordered])


def _append(sink: pa.NativeFile, file: str, rows: pa.Table) -> Spill:
    offset = sink.tell()
    with pa.ipc.new_stream(sink, rows.schema) as stream:
        stream.write_table(rows)
    return Spill(file, offset, sink.tell() - offset, rows.num_rows)


def _read(spill: Spill) -> pa.Table:
    with pa.memory_map(spill.file) as file:
        file.seek(spill.offset)
        return pa.ipc.open_stream(pa.py_buffer(file.read_buffer(spill.length))).read_all()
