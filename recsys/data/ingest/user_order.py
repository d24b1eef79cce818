"""The users of a part of the store, in its order, found by row rather than by id.

A row of its own identifies a user, so only the ids of users who share a row are compared.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

from recsys.data.ingest.segment_parts import USERS, SegmentPart
from recsys.data.ingest.tasks import in_threads
from recsys.data.store import USERS_SCHEMA, order_users
from recsys.data.vocabulary import IdIndex, Vocabulary


class UserOrder:
    """The users of a part of the store.

    Args:
        parts: The part's events.
        known: The vocabulary of users.
        by_row: Whether users are sorted by (row, id), as in `train`, or by id.
    """

    def __init__(self, parts: Sequence[SegmentPart], known: Vocabulary, by_row: bool) -> None:
        self._known, first = known, known.first_own_row
        has_events = np.zeros(known.n_rows, bool)

        def find(part: SegmentPart) -> tuple[np.ndarray, pa.Array]:
            ids = part.ids(USERS).take(pa.array(part.users))
            rows = known.rows(ids)
            has_events[rows] = True
            return rows, ids.filter(pa.array(rows < first))

        found = in_threads(find, parts)
        self._rows = [rows for rows, _ in found]
        sharing = [pa.array([], pa.large_string()), *(ids for _, ids in found)]
        own = first + np.flatnonzero(has_events[first:]).astype(np.int32)
        ids = pa.concat_arrays(sharing)
        unique = ids.unique()
        rows = np.concatenate([known.rows(unique), own])
        if by_row:
            # Shared rows come first.
            place, table = order_users(unique, rows[: len(unique)], by_row)
            place = np.concatenate([place, len(unique) + np.arange(len(own), dtype=np.int32)])
        else:
            place, table = order_users(pa.concat_arrays([unique, self._ids(own)]), rows, by_row)
        self._index = IdIndex(unique)
        self._place = place[: len(unique)]
        self._place_of_row = np.full(known.n_rows, -1, np.int32)
        self._place_of_row[own] = place[len(unique) :]
        self._table, self._own = table, own
        self._lengths = [len(part) for part in sharing[1:]]
        self._sharing = ids
        self.n_users = len(rows)

    def _ids(self, own: np.ndarray) -> pa.Array:
        return self._known.own_ids.take(pa.array(own - self._known.first_own_row))

    def places_of_parts(self) -> list[np.ndarray]:
        """Returns the index of each user of each part `[users]` int32."""
        ends = np.cumsum([0, *self._lengths])
        return [
            self._places(rows, self._sharing.slice(start, n))
            for rows, start, n in zip(self._rows, ends, self._lengths, strict=False)
        ]

    def find(self, users: pa.Table) -> np.ndarray:
        """Returns the index of each user `[n]` int32 of `users` (`USERS_SCHEMA`); -1: not found."""
        rows = users["user_row"].to_numpy()
        shares = pa.array(rows < self._known.first_own_row)
        return self._places(rows, users["id"].combine_chunks().filter(shares))

    def _places(self, rows: np.ndarray, sharing: pa.Array) -> np.ndarray:
        """Returns the index of users with `rows` `[n]`; `sharing` are the ids of shared ones."""
        place = self._place_of_row[rows]
        at = self._index.find(sharing)
        place[rows < self._known.first_own_row] = np.append(self._place, np.int32(-1))[at]
        return place

    def table(self, first: int, end: int) -> pa.Table:
        """Returns the users `first` … `end` - 1 in the columns of `USERS_SCHEMA`."""
        n = self._table.num_rows
        listed = self._table.slice(first, max(0, min(end, n) - first))
        own = self._own[max(first - n, 0) : max(end - n, 0)] if n < self.n_users else self._own[:0]
        return pa.concat_tables([listed, pa.table([self._ids(own), own], USERS_SCHEMA)])
