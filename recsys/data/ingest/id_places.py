"""Ids joined with their rows, of which a worker holds one bucket at a time."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.hashes import fingerprints
from recsys.data.ingest.buckets import Buckets, count_id_buckets
from recsys.data.ingest.tasks import in_threads
from recsys.data.vocabulary import Vocabulary, as_texts, open_vocabulary

_NOWHERE = -1


class IdPlaces:
    """Finds ids in tables on disk.

    Args:
        tables: Columns `id`, unique or null, and `place`.
        n_ids: Upper bound of the number of ids.
        work: Folder of temporary files.
    """

    def __init__(self, tables: Iterable[pa.Table], n_ids: int, work: Path) -> None:
        self._folder = work
        work.mkdir(parents=True)
        buckets = Buckets(work, count_id_buckets(n_ids))
        for table in tables:
            buckets.add_ids(table.filter(pc.is_valid(table["id"])))
        self._n = buckets.n
        in_threads(lambda bucket: self._sort(bucket, buckets.read(bucket)), range(self._n))

    def find(self, ids: pa.Array) -> np.ndarray:
        """Returns the place `[n]` int64 of each id `[n]` `large_string`; -1 if not found."""
        places = np.full(len(ids), _NOWHERE)
        hashes = fingerprints(ids)
        buckets = hashes % np.uint64(self._n)
        for bucket in np.unique(buckets).tolist():
            at = np.flatnonzero(buckets == bucket) if self._n > 1 else np.arange(len(ids))
            places[at] = self._find(bucket, ids.take(pa.array(at)), hashes[at])
        return places

    def _find(self, bucket: int, ids: pa.Array, hashes: np.ndarray) -> np.ndarray:
        places, file = np.full(len(ids), _NOWHERE), self._file(bucket)
        if not file.exists():
            return places
        with pa.memory_map(str(file)) as source:
            known = pa.ipc.open_file(source).read_all()
        known_hashes, known_places = (known[name].chunk(0).to_numpy() for name in ("hash", "place"))
        known_ids = known["id"].chunk(0)
        at, left = np.searchsorted(known_hashes, hashes), np.arange(len(ids))
        while len(left):
            inside = np.minimum(at[left], len(known) - 1)
            left = left[(at[left] < len(known)) & (known_hashes[inside] == hashes[left])]
            equal = pc.equal(ids.take(pa.array(left)), known_ids.take(pa.array(at[left])))
            is_found = pc.fill_null(equal, False).to_numpy(zero_copy_only=False)
            places[left[is_found]] = known_places[at[left[is_found]]]
            left = left[~is_found]
            at[left] += 1
        return places

    def _sort(self, bucket: int, tables: list[pa.Table]) -> None:
        """Writes a bucket in the order of the hashes."""
        if not sum(map(len, tables)):
            return
        rows = pa.concat_tables(tables)
        hashes = fingerprints(as_texts(rows["id"]))
        order = np.argsort(hashes)
        rows = rows.take(pa.array(order)).append_column("hash", pa.array(hashes[order]))
        with (
            pa.OSFile(str(self._file(bucket)), "wb") as sink,
            pa.ipc.new_file(sink, rows.schema) as writer,
        ):
            writer.write_table(rows.combine_chunks())

    def _file(self, bucket: int) -> Path:
        return self._folder / f"{bucket:05d}.arrow"


class IdRows:
    """Rows of a vocabulary on disk.

    Args:
        vocabulary: File of the vocabulary.
        work: Folder of temporary files.
    """

    def __init__(self, vocabulary: Path, work: Path) -> None:
        file = open_vocabulary(vocabulary)
        self._rules = Vocabulary(pa.array([], pa.large_string()), np.zeros(0), config=file.config)
        self.n_rows, self.first_own_row = file.n_rows, self._rules.first_own_row
        self._places = IdPlaces(numbered_ids(file.lines(["id"])), file.n_rows, work)

    def rows(self, ids: pa.Array) -> np.ndarray:
        """Returns the rows `[n]` int32 of ids `[n]`, as `Vocabulary.rows` does."""
        ids = as_texts(ids)
        rows = self._places.find(ids)
        unknown = np.flatnonzero(rows < 0)
        rows[unknown] = self._rules.shared_rows(ids.take(pa.array(unknown)))
        return rows.astype(np.int32)


def numbered_ids(tables: Iterable[pa.Table]) -> Iterator[pa.Table]:
    """Yields the ids of tables with their `place` among all of them."""
    first = 0
    for table in tables:
        place = pa.array(np.arange(first, first + len(table)))
        yield pa.table({"id": as_texts(table["id"]), "place": place})
        first += len(table)
