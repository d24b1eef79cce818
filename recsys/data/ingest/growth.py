"""Ids of events → vocabularies, bucket by bucket of the ids' hashes.

Known ids keep their rows. In each bucket it is decided which ids get a row; the new ones are merged
in the order of their rows while the lines of the file are written.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.config import VocabularyConfig
from recsys.data.ingest.buckets import Buckets, Run, count_id_buckets, in_order, merge_runs, regroup
from recsys.data.ingest.tasks import in_threads
from recsys.data.split import BY_TIME, DAY_S, SplitRule
from recsys.data.vocabulary import (
    COLUMNS,
    COUNTS_SCHEMA,
    GROUP_ROWS,
    IdIndex,
    Vocabulary,
    as_texts,
    merge_counts,
    open_vocabulary,
    vocabulary_schema,
)
from recsys.errors import RecsysError

FREQUENT = 10_000
_EXAMPLES = 5
_NEVER = np.iinfo(np.int64).min


@dataclasses.dataclass
class _Grown:
    """What became of the ids of a bucket.

    Attributes:
        new: New ids, in order.
        shared: Number of positives of each shared row.
        sums: Statistics.
        tables: Examples of ids, and the most frequent ids.
    """

    new: Run
    shared: np.ndarray
    sums: Counter[str]
    tables: dict[str, pa.Table]


class Growth:
    """Extends a vocabulary by the ids of new data.

    An id keeps its row until it is evicted. Ids with at least `min_count` events, and the ids that
    are kept, get a row: first free rows in ascending order, then new ones at the end. The most
    frequent id is first; ties are in the order of ids.

    Args:
        previous: File of the previous vocabulary; None for the first one.
        config: Rules for getting and losing a row.
        cut: End of the training data [seconds since 1970, UTC].
        work: Folder of temporary files, in which only this growth writes.
        n_ids: Upper bound of the number of ids, to choose the number of buckets.

    Raises:
        RecsysError: `previous` has another number of hash rows, so rows would move.
    """

    def __init__(
        self, previous: Path | None, config: VocabularyConfig, cut: int, work: Path, n_ids: int
    ) -> None:
        self._config, self._cut, self._work = config, cut, work
        work.mkdir(exist_ok=True)
        days = config.evict_after_days
        self._oldest = _NEVER if days is None else cut - days * DAY_S
        self._rules = Vocabulary(pa.array([], pa.large_string()), np.zeros(0), config=config)
        self._before = None if previous is None else open_vocabulary(previous)
        if self._before and self._before.config.hash_buckets != config.hash_buckets:
            n_hash_rows = self._before.config.hash_buckets
            raise RecsysError(
                "R211",
                f"A vocabulary keeps its {n_hash_rows} hash rows permanently: with another number"
                " every id would move to another row.",
                f"Set hash_buckets to {n_hash_rows} again, or start in another root.",
                {"hash_buckets": config.hash_buckets},
            )
        n_before = self._n_before = 0 if self._before is None else self._before.n_rows
        n = count_id_buckets(n_ids + n_before)
        self._counts, self._kept, self._held_out, self._known = (Buckets(work, n) for _ in range(4))
        self._updates = Buckets(work, -(-max(n_before, 1) // GROUP_ROWS))
        for row, lines in self._lines_before():
            place = pa.array(np.arange(row, row + len(lines)))
            known = lines.select(["id", "last_seen"]).append_column("row", place)
            self._known.add_ids(known.filter(pc.is_valid(known["id"])))

    def count(self, counted: pa.Table) -> None:
        """Counts ids of training events, in the columns of `count_codes`; safe in threads."""
        if "events" not in counted.column_names:
            counted = counted.append_column("events", counted["count"])
        self._counts.add_ids(counted)

    def keep(self, ids: pa.ChunkedArray) -> None:
        """Adds ids of the catalogue, which always have a row."""
        self._kept.add_ids(pa.table({"id": as_texts(ids).drop_null()}))

    def hold_out(self, counted: pa.Table) -> None:
        """Counts ids of evaluation events, only for the statistics; safe in threads."""
        self._held_out.add_ids(counted.select(["id", "count"]))

    def decide(self) -> pa.Table:
        """Decides which ids have a row.

        Returns:
            The `FREQUENT` most frequent ids: `id`, `order` (the negative number of events),
            `count`, and whether each is `kept`.
        """
        grown = in_threads(self._decide, range(self._counts.n))
        self._new = [one.new for one in grown]
        self._shared = np.sum([one.shared for one in grown], axis=0)
        self._sums: Counter[str] = sum((one.sums for one in grown), Counter())
        self._tables = {
            name: _first(pa.concat_tables([one.tables[name] for one in grown]), n)
            for name, n in (
                ("below_min_count", _EXAMPLES),
                ("out_of_date", _EXAMPLES),
                ("frequent", FREQUENT),
            )
        }
        return self._tables["frequent"]

    @property
    def n_with_row(self) -> int:
        """Number of ids with a row, known after `decide`."""
        return self._sums["with_row"]

    def write(self, out: Path, split: SplitRule = BY_TIME) -> dict[str, Any]:
        """Writes the vocabulary to the Parquet file `out`.

        Returns:
            The changes, as docs/store.md describes `diff.json`.
        """
        rows: Counter[str] = Counter()
        evicted: list[str] = []
        schema = vocabulary_schema(self._cut, self._config, split)
        new = _Stream(merge_runs(self._new))
        with pq.ParquetWriter(out, schema) as writer:
            for group in regroup(self._lines(new, rows, evicted), GROUP_ROWS):
                writer.write_table(group.cast(schema), GROUP_ROWS)
                rows["after"] += len(group)
        sums, n_shared = self._sums, int(self._shared.sum())
        n_new = sum(len(run) for run in self._new)
        names = ("below_min_count", "below_min_count_events", "out_of_date")
        of_rows = {name: rows[name] for name in ("kept", "evicted", "recycled")}
        return {
            "new": n_new,
            **of_rows,
            **{name: sums[name] for name in names},
            "rows_before": self._n_before if rows["kept"] + rows["evicted"] else 0,
            "rows_after": rows["after"],
            "unknown_train_share": n_shared / max(sums["positives"], 1),
            "unknown_eval_share": sums["unknown"] / max(sums["held_out"], 1),
            "examples": {
                "evicted": evicted,
                "new": new.first,
                **{name: self._tables[name]["id"].to_pylist() for name in names[::2]},
            },
        }

    def _decide(self, bucket: int) -> _Grown:
        """Decides which ids of a bucket have a row."""
        ids, counts, n_events, seen, is_kept = _counted(
            merge_counts(self._counts.read(bucket)), self._kept.read(bucket), self._cut
        )
        known = _joined(self._known.read(bucket), _KNOWN)
        place = IdIndex(known["id"].combine_chunks()).find(ids)
        is_known, last_seen = place >= 0, known["last_seen"].to_numpy().copy()
        at, is_gone = place[is_known], np.ones(len(known), bool)
        last_seen[at] = np.maximum(last_seen[at], seen[is_known])
        # `last_seen` of members is the cut, so that an id that has left is older at the same cut.
        is_gone[at] = False
        last_seen[is_gone] = np.minimum(last_seen[is_gone], self._cut - 1)
        lives = is_known.copy()
        lives[is_known] = last_seen[at] >= self._oldest
        update = {"row": known["row"].take(pa.array(at)), "count": counts[is_known]}
        updates = pa.table({**update, "last_seen": last_seen[at]})
        self._updates.add(updates["row"].to_numpy() // GROUP_ROWS, updates)

        is_often = n_events >= self._config.min_count
        admitted = ~lives & (is_kept | (is_often & (seen >= self._oldest)))
        has_row = lives | admitted
        every = pa.table([-n_events, ids, counts, seen, is_kept], [*_NEW.names, "kept"])
        # Float64 represents integers up to 2^53 exactly.
        shared_rows = self._rules.shared_rows(ids.filter(pa.array(~has_row)))
        shared = np.bincount(shared_rows, counts[~has_row], minlength=self._rules.n_rows)
        is_seldom = ~has_row & ~is_often & (n_events > 0)
        is_out_of_date = ~has_row & is_often & (n_events > 0)
        sums = {
            "positives": counts.sum(),
            "with_row": has_row.sum() + (is_gone & (last_seen >= self._oldest)).sum(),
            "below_min_count": is_seldom.sum(),
            "below_min_count_events": n_events[is_seldom].sum(),
            "out_of_date": is_out_of_date.sum(),
        }
        held_out = _joined(self._held_out.read(bucket), _COUNTED)
        if len(held_out):
            left = pa.array(is_gone & (last_seen >= self._oldest))
            own = [ids.filter(pa.array(has_row)), known["id"].combine_chunks().filter(left)]
            found = IdIndex(pa.concat_arrays(own)).find(as_texts(held_out["id"])) >= 0
            of_events = held_out["count"].to_numpy()
            sums |= {"held_out": of_events.sum(), "unknown": of_events[~found].sum()}
        chosen = {"below_min_count": is_seldom, "out_of_date": is_out_of_date}
        tables = {n: _first(every.filter(pa.array(w)), _EXAMPLES) for n, w in chosen.items()}
        tables["frequent"] = _first(every.filter(pc.greater(every["count"], 0)), FREQUENT)
        new = every.filter(pa.array(admitted)).select(_NEW.names)
        return _Grown(
            Run(self._work, new.schema, [in_order(new)]),
            shared.astype(np.int64),
            Counter({name: int(n) for name, n in sums.items()}),
            tables,
        )

    def _lines_before(self) -> Iterator[tuple[int, pa.Table]]:
        """Yields the lines of the previous vocabulary, and the first one's row."""
        if self._before is None:
            return
        row = 0
        for lines in regroup(self._before.lines(), GROUP_ROWS):
            yield row, lines
            row += len(lines)

    def _lines(self, new: _Stream, rows: Counter[str], evicted: list[str]) -> Iterator[pa.Table]:
        """Yields the lines of the file; counts rows by what becomes of them."""
        n_shared = self._rules.n_rows
        yield _lines_of(
            pa.nulls(n_shared, pa.large_string()), self._shared, np.zeros(n_shared, np.int64)
        )
        for row, lines in self._lines_before():
            yield self._renewed(row, lines, new, rows, evicted)
        for some in new:
            yield _lines_of(some["id"], some["count"], some["last_seen"])

    def _renewed(
        self, row: int, lines: pa.Table, new: _Stream, rows: Counter[str], evicted: list[str]
    ) -> pa.Table:
        """Returns lines of the previous vocabulary, from `row` on, without shared ones."""
        n_skipped = min(max(self._rules.n_rows - row, 0), len(lines))
        updates = _joined(self._updates.read(row // GROUP_ROWS), _UPDATES)
        lines, at = lines.slice(n_skipped), updates["row"].to_numpy() - row - n_skipped
        ids = lines["id"].combine_chunks().cast(pa.large_string())
        counts, last_seen = np.zeros(len(lines), np.int64), lines["last_seen"].to_numpy().copy()
        last_seen = np.minimum(last_seen, self._cut - 1)
        counts[at], last_seen[at] = updates["count"].to_numpy(), updates["last_seen"].to_numpy()
        had_id = ids.is_valid().to_numpy(zero_copy_only=False)
        is_evicted = had_id & (last_seen < self._oldest)
        is_free = is_evicted | ~had_id
        chosen = new.take(int(is_free.sum()))
        recycled = np.flatnonzero(is_free)[: len(chosen)]
        counts[is_free] = last_seen[is_free] = 0
        counts[recycled] = chosen["count"].to_numpy()
        last_seen[recycled] = chosen["last_seen"].to_numpy()
        generation = lines["generation"].to_numpy().copy()
        generation[recycled] += 1
        source = np.where(is_free, -1, np.arange(len(lines)))
        source[recycled] = len(lines) + np.arange(len(chosen))
        rows["kept"] += int((had_id & ~is_evicted).sum())
        rows["evicted"] += int(is_evicted.sum())
        rows["recycled"] += len(recycled)
        n_wanted = _EXAMPLES - len(evicted)
        evicted += ids.take(pa.array(np.flatnonzero(is_evicted)[:n_wanted])).to_pylist()
        both = pa.concat_arrays([ids, *chosen["id"].chunks])
        return _lines_of(
            both.take(pa.array(source, mask=source < 0)), counts, last_seen, generation
        )


class _Stream:
    """New ids, taken in order.

    Args:
        tables: The ids.

    Attributes:
        first: The first ones.
    """

    def __init__(self, tables: Iterator[pa.Table]) -> None:
        self._tables, self._rest = tables, pa.table(_NEW.empty_table())
        self.first: list[str] = []

    def __iter__(self) -> Iterator[pa.Table]:
        while len(some := self.take(max(len(self._rest), 1))):
            yield some

    def take(self, n: int) -> pa.Table:
        """Returns the next `n` ids, or all that are left."""
        waiting, n_waiting = [self._rest], len(self._rest)
        while n_waiting < n and (table := next(self._tables, None)) is not None:
            waiting.append(table)
            n_waiting += len(table)
        whole = pa.concat_tables(waiting)
        taken, self._rest = whole.slice(0, n), whole.slice(n)
        self.first += taken["id"].slice(0, _EXAMPLES - len(self.first)).to_pylist()
        return taken


_KNOWN = pa.schema({"id": pa.large_string(), "last_seen": pa.int64(), "row": pa.int64()})
_UPDATES = pa.schema({"row": pa.int64(), "count": pa.int64(), "last_seen": pa.int64()})
_COUNTED = pa.schema({"id": pa.large_string(), "count": pa.int64()})
_NEW = pa.schema({"order": pa.int64(), **{f.name: f.type for f in COUNTS_SCHEMA}})


def _joined(tables: Sequence[pa.Table], schema: pa.Schema) -> pa.Table:
    table = pa.concat_tables([schema.empty_table(), *(one.cast(schema) for one in tables)])
    return table.combine_chunks()


def _first(rows: pa.Table, n: int) -> pa.Table:
    """Returns the first rows in the order of `order` and `id`."""
    keys = [("order", "ascending"), ("id", "ascending")]
    return rows.take(pc.select_k_unstable(rows, min(n, len(rows)), keys)) if len(rows) else rows


def _lines_of(
    ids: pa.Array | pa.ChunkedArray,
    counts: np.ndarray | pa.ChunkedArray,
    last_seen: np.ndarray | pa.ChunkedArray,
    generation: np.ndarray | None = None,
) -> pa.Table:
    generation = np.zeros(len(ids)) if generation is None else generation
    columns = [pa.array(c) if isinstance(c, np.ndarray) else c for c in (counts, last_seen)]
    return pa.table([ids, *columns, generation.astype(np.int32)], COLUMNS)


def _counted(
    counted: pa.Table, kept: Sequence[pa.Table], cut: int
) -> tuple[pa.Array, np.ndarray, np.ndarray, np.ndarray, np.ndarray]:
    """Returns all counted or kept ids: id, positives, events, time last seen, and if it is kept."""
    ids = as_texts(counted["id"])
    members = pc.unique(_joined(kept, pa.schema({"id": pa.large_string()}))["id"].combine_chunks())
    place = IdIndex(ids).find(members) if len(members) else np.zeros(0, np.int64)
    unseen = members.filter(pa.array(place < 0))
    is_kept = np.arange(len(ids) + len(unseen)) >= len(ids)
    is_kept[place[place >= 0]] = True
    none = np.zeros(len(unseen), np.int64)
    counts, n_events, seen = (
        np.concatenate([counted[name].to_numpy(), none]) if len(ids) else none.copy()
        for name in ("count", "events", "last_seen")
    )
    seen[is_kept] = np.maximum(seen[is_kept], cut)
    return pa.concat_arrays([ids, unseen]), counts, n_events, seen, is_kept
