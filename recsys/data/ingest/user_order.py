"""The users of a part of the store in its order, in files of which a shard is read at a time."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.ingest.buckets import Run, in_order, merge_runs
from recsys.data.ingest.id_places import IdRows
from recsys.data.ingest.segment_parts import USERS, SegmentPart
from recsys.data.ingest.tasks import in_threads

_MOST_RUNS = 64
"""Number of files that are merged at once; of more parts, some are merged before."""
_USER_EVENTS = 2
"""Number of events that take as much memory as a user, while a shard is written."""
_NUMBERS = ("order", "user_row", "start", "end", "in_history", "part")
_SCHEMA = pa.schema([("id", pa.large_string()), *((name, pa.int32()) for name in _NUMBERS)])


class UserOrder:
    """The users of a part of the store, divided into shards.

    Args:
        parts: The part's events.
        known: Rows of users.
        by_row: Whether users are sorted by (row, id), as in `train`, or by id.
        most: Approximate number of events per shard, fewer if it has many users; more if a single
            user has more.
        work: Folder of temporary files.
    """

    def __init__(
        self, parts: Sequence[SegmentPart], known: IdRows, by_row: bool, most: int, work: Path
    ) -> None:
        self._known, self._by_row, self._work = known, by_row, work
        made = in_threads(self._run, enumerate(parts))
        self._runs, self._run_of_part = [run for run, _ in made], np.arange(len(parts))
        if len(parts) > _MOST_RUNS:
            width = math.isqrt(len(parts))
            starts = range(0, len(parts), width)
            self._runs = in_threads(lambda at: self._merged(self._runs[at : at + width]), starts)
            self._run_of_part //= width
        size = sum(n for _, n in made)
        self.n_shards, self.n_written = 0, [0]
        """Number of shards, and number of events of histories before each."""
        self._borders = [np.zeros(len(self._runs), np.int64)]
        if size:
            self._divide(size, max(1, -(-size // most)))
            self.n_shards = len(self._borders) - 1

    def users(self, shard: int) -> pa.Table:
        """Returns the users of a shard, one line for each part that has events of the user.

        Returns:
            `id`, `user_row`; `part`, index of the part; `start` and `end` of its events there.
        """
        first, end = self._borders[shard : shard + 2]
        bounds = zip(self._runs, first.tolist(), end.tolist(), strict=True)
        rows = [run.rows(low, high) for run, low, high in bounds if high > low]
        table = rows[0] if len(rows) == 1 else in_order(pa.concat_tables(rows))
        return table.drop_columns(["order", "in_history"])

    def _run(self, numbered: tuple[int, SegmentPart]) -> tuple[Run, int]:
        """Returns the users of a part, and the size of its events and users [events]."""
        number, part = numbered
        part = dataclasses.replace(part)  # Its maps are closed afterwards.
        users, (starts, ends) = part.users, part.bounds
        ids = part.ids(USERS).take(pa.array(users))
        rows = self._known.rows(ids)
        order = rows if self._by_row else np.zeros(len(rows), np.int32)
        sorting = np.argsort(order, kind="stable")  # Ids are in ascending order.
        start, end = starts[users], ends[users]
        inside = part.column("history")
        inside = part.column("positive") if inside is None else inside
        n_in_history = end - start
        if inside is not None:
            n_before = np.concatenate([[0], np.cumsum(inside)])
            n_in_history = n_before[end] - n_before[start]
        columns = {"order": order, "user_row": rows, "start": start, "end": end}
        columns |= {"in_history": n_in_history, "part": np.full(len(rows), number)}
        # A part has fewer than 2³¹ events.
        table = {name: column[sorting].astype(np.int32) for name, column in columns.items()}
        users_of_part = pa.table({"id": ids.take(pa.array(sorting)), **table}, _SCHEMA)
        return Run(self._work, _SCHEMA, [users_of_part]), int((_USER_EVENTS + end - start).sum())

    def _merged(self, runs: Sequence[Run]) -> Run:
        return Run(self._work, _SCHEMA, merge_runs(runs))

    def _divide(self, size: int, n: int) -> None:
        """Divides the users into `n` shards of about the same size."""
        shares = np.arange(1, n) * (size / n)
        n_seen, n_in_history, at = 0, 0, self._borders[0]
        for rows in merge_runs(self._runs) if n > 1 else ():
            starts = np.flatnonzero(first_rows(rows))
            run = self._run_of_part[rows["part"].to_numpy()]
            length = _USER_EVENTS + rows["end"].to_numpy() - rows["start"].to_numpy()
            ends = n_seen + np.cumsum(np.add.reduceat(length, starts, dtype=np.int64))
            inside = shares[(shares > n_seen) & (shares <= ends[-1])]
            upto = np.append(starts, len(rows))
            for last in upto[np.unique(np.searchsorted(ends, inside, side="left") + 1)].tolist():
                self._borders.append(at + np.bincount(run[:last], minlength=len(at)))
                of_histories = rows["in_history"].slice(0, last)
                self.n_written.append(n_in_history + (pc.sum(of_histories).as_py() or 0))
            at = at + np.bincount(run, minlength=len(at))
            n_seen, n_in_history = int(ends[-1]), n_in_history + pc.sum(rows["in_history"]).as_py()
        end = np.array([len(run) for run in self._runs])
        if len(self._borders) == 1 or (self._borders[-1] < end).any():
            self._borders.append(end)


def first_rows(rows: pa.Table) -> np.ndarray:
    """Returns which of rows sorted by user are the first of their users `[n]` bool."""
    ids = rows["id"].combine_chunks()
    is_first = np.ones(len(ids), bool)
    changes = pc.not_equal(ids.slice(1), ids.slice(0, max(0, len(ids) - 1)))
    is_first[1:] = changes.to_numpy(zero_copy_only=False)
    return is_first
