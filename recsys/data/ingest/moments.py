"""What the times and the order of a user's events say: gaps, and numbers of impressions."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.event_log import ShardedColumn
from recsys.data.ingest.id_places import IdPlaces, numbered_ids
from recsys.data.ingest.segment_parts import MISSING, SegmentPart
from recsys.data.store import ShardInfo, count_tied, map_array
from recsys.data.vocabulary import as_texts
from recsys.ragged import ranges, run_starts


class TrainedTimes:
    """Times of the training events by user.

    Args:
        folder: Folder of the training part of the store.
        shards: Its shards.
        work: Folder of temporary files.
    """

    def __init__(self, folder: Path, shards: Sequence[ShardInfo], work: Path) -> None:
        own = [folder / shard.name for shard in shards]
        folders = [
            one if shard.history is None else one / "history"
            for one, shard in zip(own, shards, strict=True)
        ]
        self._times = ShardedColumn([map_array(one / "timestamp.npy") for one in folders], np.int64)
        counts = [np.diff(map_array(one / "offsets.npy")) for one in folders]
        self._offsets = np.cumsum(np.concatenate([[0], *counts]))
        tables = numbered_ids(pq.read_table(one / "users.parquet") for one in own)
        self._users = IdPlaces(tables, len(self._offsets), work)

    def of(self, users: pa.Table) -> tuple[np.ndarray, np.ndarray]:
        """Returns the index in `users` and the time `[n]` of each of their events."""
        place = self._users.find(as_texts(users["id"]))
        known = np.flatnonzero(place >= 0)
        starts = self._offsets[place[known]]
        counts = self._offsets[place[known] + 1] - starts
        return np.repeat(known, counts), self._times[ranges(starts, counts)]


def gaps_of(
    user: np.ndarray,
    time: np.ndarray,
    is_in_history: np.ndarray | None,
    trained: TrainedTimes | None,
    users: pa.Table,
) -> np.ndarray:
    """Returns the time since the newest event of each event's history `[n]` int64 [s].

    It is the lowest int64 if the history is empty.

    Args:
        user: Index of the user of each event `[n]`, from 0 on, ascending.
        time: Time of each event `[n]` [seconds since 1970, UTC], ascending within a user.
        is_in_history: Which events a history can hold `[n]` bool; None: all.
        trained: Earlier events of the users; None: there are none.
        users: The users, in the columns of `USERS_SCHEMA`.
    """
    inside = np.ones(len(user), bool) if is_in_history is None else is_in_history
    if trained is None:
        return _gaps(user, time, inside)
    earlier, times = trained.of(users)
    n = len(earlier)
    user, time = np.concatenate([earlier, user]), np.concatenate([times, time])
    inside = np.concatenate([np.ones(n, bool), inside])
    order, gaps = np.lexsort((time, user)), np.empty(len(user), np.int64)
    gaps[order] = _gaps(user[order], time[order], inside[order])
    return gaps[n:]


def _gaps(user: np.ndarray, time: np.ndarray, inside: np.ndarray) -> np.ndarray:
    first = np.arange(len(user)) - count_tied(user, time)
    newest = np.concatenate([[0], np.cumsum(inside)])[first] - 1
    times, users = (np.append(column[inside], -1) for column in (time, user))
    return np.where(users[newest] == user, time - times[newest], int(MISSING[np.int64]))


def numbered(user: np.ndarray, impression: np.ndarray) -> np.ndarray:
    """Returns the number of each row's impression among those of its user `[n]` int32.

    Args:
        user: Index of the user of each row `[n]`, ascending.
        impression: Hash of the impression of each row `[n]`, 0: none.

    Returns:
        Numbers from 1 on, in the order of the first rows; 0 for rows without an impression.
    """
    order = np.lexsort((impression, user))
    starts = np.flatnonzero(run_starts(user[order], impression[order]))
    first = np.repeat(order[starts], np.diff(np.append(starts, len(order))))
    is_first = np.zeros(len(order), bool)
    is_first[order[starts]] = True
    is_first &= impression != 0
    upto = np.cumsum(is_first)
    before = np.concatenate([[0], upto])[np.searchsorted(user, user)]
    out = np.empty(len(order), np.int32)
    out[order] = upto[first] - before[order]
    return np.where(impression != 0, out, np.int32(0))


def newest_time(parts: Sequence[SegmentPart]) -> int:
    """Returns the newest time of the events of parts; 0 without events."""
    times = (part.time[part.inside] for part in parts)
    return max((int(time.max()) for time in times if len(time)), default=0)
