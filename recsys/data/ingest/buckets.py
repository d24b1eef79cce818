"""Tables of ids in files, by bucket or in order, of which a worker holds a part at a time."""

from __future__ import annotations

import bisect
import functools
import threading
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.hashes import hash_buckets
from recsys.data.ingest.spills import Spill, SpillWriter, read_spills
from recsys.data.vocabulary import as_texts

_BUCKET_IDS = 1 << 19
_RUN_ROWS = 1 << 14
_KEYS = ("order", "id")


def count_id_buckets(n_ids: int) -> int:
    """Returns the number of buckets for ids, a power of two; one for few ids."""
    return 1 << (n_ids // _BUCKET_IDS).bit_length()


class Buckets:
    """Rows by bucket, in a file; in memory if there is one bucket.

    Args:
        folder: Folder of the file.
        n: Number of buckets.
    """

    def __init__(self, folder: Path, n: int) -> None:
        self.n, self._one = n, threading.Lock()
        self._writer = SpillWriter(folder, n)
        self._tables: list[pa.Table] = []
        self._spills: list[list[Spill]] = [[] for _ in range(n)]

    def add(self, bucket: np.ndarray, rows: pa.Table) -> None:
        """Adds rows with their buckets `[n]`; they have the same columns each time."""
        if self.n == 1:
            self._tables.append(rows)
            return
        with self._one:
            ends = np.cumsum([0, *(len(batch) for batch in rows.to_batches())])
            for start, batch in zip(ends, rows.to_batches(), strict=False):
                self._keep(self._writer.add(bucket[start : start + len(batch)], batch))

    def add_ids(self, rows: pa.Table) -> None:
        """Adds rows to the buckets of the hashes of their `id`."""
        self.add(hash_buckets(as_texts(rows["id"]), self.n) if self.n > 1 else np.zeros(0), rows)

    def read(self, bucket: int) -> list[pa.Table]:
        """Returns the rows of a bucket as tables; those in the file without a copy."""
        if self.n == 1:
            return self._tables
        with self._one:
            self._keep(self._writer.flush())
        return [read_spills(self._spills[bucket])] if self._spills[bucket] else []

    def _keep(self, spills: Iterable[tuple[int, Spill]]) -> None:
        for bucket, spill in spills:
            self._spills[bucket].append(spill)


class Run:
    """A table in a file, read in slices.

    Args:
        folder: Folder of the file.
        schema: Its columns.
        tables: The rows, sorted by `order` and `id`.
    """

    def __init__(self, folder: Path, schema: pa.Schema, tables: Iterable[pa.Table]) -> None:
        self._file, self._schema, self._n = folder / uuid.uuid4().hex, schema, 0
        with pa.OSFile(str(self._file), "wb") as sink, pa.ipc.new_file(sink, schema) as out:
            for rows in regroup(tables, _RUN_ROWS):
                out.write_table(rows)
                self._n += len(rows)

    def __len__(self) -> int:
        return self._n

    def __iter__(self) -> Iterator[pa.Table]:
        for start in range(0, self._n, _RUN_ROWS):
            yield self.rows(start, start + _RUN_ROWS)

    def rows(self, first: int, end: int) -> pa.Table:
        """Returns the rows `first` … `end` - 1."""
        with pa.OSFile(str(self._file)) as file:
            reader = pa.ipc.open_file(file)
            at = range(first // _RUN_ROWS, -(-min(end, self._n) // _RUN_ROWS))
            table = pa.Table.from_batches([reader.get_batch(n) for n in at], self._schema)
        return table.slice(first % _RUN_ROWS, max(0, end - first))


def merge_runs(runs: Sequence[Run]) -> Iterator[pa.Table]:
    """Yields the rows of runs in the order of `order` and `id`; equal ones in the same table."""
    sources = [iter(run) for run in runs if len(run)]
    heads: dict[int, pa.Table] = {at: next(source) for at, source in enumerate(sources)}
    while heads:
        bound = min(_key(head, len(head) - 1) for head in heads.values())
        taken = []
        for at in list(heads):
            while at in heads and _key(heads[at], 0) <= bound:
                head = heads.pop(at)
                n = bisect.bisect_right(range(len(head)), bound, key=functools.partial(_key, head))
                taken.append(head.slice(0, n))
                rest = head.slice(n) if n < len(head) else next(sources[at], None)
                if rest is not None:
                    heads[at] = rest
        yield taken[0] if len(taken) == 1 else in_order(pa.concat_tables(taken))


def in_order(rows: pa.Table) -> pa.Table:
    """Returns rows sorted by `order` and `id`."""
    return rows.take(pc.sort_indices(rows, [(key, "ascending") for key in _KEYS]))


def _key(rows: pa.Table, at: int) -> tuple[Any, ...]:
    return tuple(rows[key][at].as_py() for key in _KEYS)


def regroup(tables: Iterable[pa.Table], n: int) -> Iterator[pa.Table]:
    """Yields the rows of tables in tables of `n` rows, of one chunk each; the last has fewer."""
    waiting: list[pa.Table] = []
    n_waiting = 0
    for table in tables:
        waiting.append(table)
        n_waiting += len(table)
        while n_waiting >= n:
            whole = pa.concat_tables(waiting)
            yield whole.slice(0, n).combine_chunks()
            waiting, n_waiting = [whole.slice(n)], n_waiting - n
    if n_waiting:
        yield pa.concat_tables(waiting).combine_chunks()
