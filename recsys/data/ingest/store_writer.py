"""Segments and vocabularies → the interaction store.

Users are put into the order of the store. The events of a user lie sorted in each
segment, and no two segments share a second, so they are laid end to end: nothing is
sorted again but the events of one user and second, whose order is that of the items'
rows. No more than a shard of the store is in memory.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterator, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.event_log import EventShard, count_tied
from recsys.data.ingest.segment_files import (
    COLUMNS,
    ITEMS,
    USERS,
    SegmentPart,
    read_ids,
    read_parts,
)
from recsys.data.shard import EVENTS_OF_A_SHARD, PARTS, USERS_SCHEMA, ShardInfo, commit_shard
from recsys.data.split_rule import BY_TIME, SplitRule
from recsys.data.store import write_manifest
from recsys.data.vocabulary import Vocabulary
from recsys.ragged import ranges
from recsys.system.events import emit

_STEP = "InteractionEncoder"


@dataclasses.dataclass(frozen=True)
class Source:
    """The events of a bucket of a segment.

    Attributes:
        place: Place of each of its users among the users of the log `[users]` int32.
        offsets: First event of each of its users, and the end `[users + 1]` int64.
        item: Which of its items each event is of `[n]` int32.
        item_row: Row of each of its items `[items]` int32.
        timestamp: Time of each event `[n]` int64 [seconds since 1970, UTC].
        weight: Weight of each event `[n]` float32; None: all are 1.
    """

    place: np.ndarray
    offsets: np.ndarray
    item: np.ndarray
    item_row: np.ndarray
    timestamp: np.ndarray
    weight: np.ndarray | None


def build_store(
    examples: Path,
    vocabularies: Path,
    cut: int,
    store: Path,
    split: SplitRule = BY_TIME,
    most: int = EVENTS_OF_A_SHARD,
) -> None:
    """Writes the store of a run.

    Args:
        examples: What InteractionGen or `ingest` made of the interactions.
        vocabularies: Folder of the vocabularies.
        cut: The moment that the training data end [seconds since 1970, UTC].
        store: Folder to write.
        split: How the examples were split.
        most: Events of a shard, about, unless a user has more.
    """
    users, items = (Vocabulary.load(vocabularies / name) for name in (USERS, ITEMS))
    parts = read_parts(examples)
    infos: dict[str, list[ShardInfo]] = {}
    for done, name in enumerate(PARTS):
        chosen = [part for part in parts if part.split == name]
        infos[name] = list(_write_part(store, name, chosen, users, items, most))
        emit("progress", step=_STEP, done=done + 1, total=2, text=f"{name} events written")
    write_manifest(store, cut, infos, split)


def _write_part(
    store: Path,
    name: str,
    parts: Sequence[SegmentPart],
    users: Vocabulary,
    items: Vocabulary,
    most: int,
) -> Iterator[ShardInfo]:
    """Writes the shards of a part of the store."""
    ids = [read_ids(part.folder, USERS) for part in parts]
    places, table = number_users(ids, users, by_row=name == "train")
    sources = [_open(part, place, items) for part, place in zip(parts, places, strict=True)]
    first = 0
    for index, shard in enumerate(merge(sources, table["user_row"].to_numpy(), most)):
        n_users = len(shard.offsets) - 1
        yield commit_shard(store, name, index, shard, table.slice(first, n_users))
        first += n_users


def _open(part: SegmentPart, place: np.ndarray, items: Vocabulary) -> Source:
    columns = {
        name: np.load(file, mmap_mode="r", allow_pickle=False)
        for name in COLUMNS
        if (file := part.folder / f"{name}.npy").exists()
    }
    item_row = items.rows(read_ids(part.folder, ITEMS))
    return Source(**{"weight": None, **columns}, place=place, item_row=item_row)


def number_users(
    ids: Sequence[pa.Array], users: Vocabulary, by_row: bool
) -> tuple[list[np.ndarray], pa.Table]:
    """Returns the place of the users of each bucket, and all users in that order.

    Args:
        ids: Ids of the users of each bucket `[users of it]`.
        users: Vocabulary of the users.
        by_row: Whether they are sorted by (row, id), as in `train`, or by id.
    """
    whole = pa.chunked_array(ids, pa.large_string()).combine_chunks().dictionary_encode()
    columns = {"id": whole.dictionary, "user_row": users.rows(whole.dictionary)}
    table = pa.table(columns, USERS_SCHEMA)
    keys = ["user_row", "id"] if by_row else ["id"]
    order = pc.sort_indices(table, [(key, "ascending") for key in keys])
    place = np.empty(table.num_rows, np.int32)
    place[order.to_numpy()] = np.arange(table.num_rows, dtype=np.int32)
    codes = whole.indices.to_numpy()
    ends = np.cumsum([len(some) for some in ids])
    return np.split(place[codes], ends[:-1]) if len(ids) else [], table.take(order)


def merge(
    sources: Sequence[Source], user_rows: np.ndarray, most: int = EVENTS_OF_A_SHARD
) -> Iterator[EventShard]:
    """Yields the events of all users, in shards of whole users.

    Args:
        sources: Buckets of segments, those of older segments first; each user of a
            segment is in one of its buckets.
        user_rows: Row of each user of the log `[users]` int32.
        most: Events of a shard, about, unless a user has more.
    """
    n_events = np.zeros(len(user_rows), np.int64)
    for source in sources:
        n_events[source.place] += np.diff(source.offsets)
    # The users of each source in the order of the log.
    orders = [np.argsort(source.place, kind="stable") for source in sources]
    for first, end in itertools.pairwise(_borders(n_events, most)):
        yield _shard(sources, orders, user_rows, n_events, first, end)


def _borders(n_events: np.ndarray, most: int) -> list[int]:
    """Returns the first user of each shard, and the end."""
    if not len(n_events):
        return []
    ends = np.cumsum(n_events)
    n = max(1, -(-int(ends[-1]) // most))
    shares = np.arange(1, n) * (ends[-1] / n)
    inside = np.unique(np.searchsorted(ends, shares, side="left") + 1)
    return [0, *inside[inside < len(ends)].tolist(), len(ends)]


def _shard(
    sources: Sequence[Source],
    orders: Sequence[np.ndarray],
    user_rows: np.ndarray,
    n_events: np.ndarray,
    first: int,
    end: int,
) -> EventShard:
    """Returns the events of the users `first` … `end` - 1."""
    counts = n_events[first:end]
    offsets = np.concatenate([[0], np.cumsum(counts)])
    n = int(offsets[-1])
    item_row, time = np.empty(n, np.int32), np.empty(n, np.int64)
    has_weight = any(source.weight is not None for source in sources)
    weight = np.empty(n, np.float32) if has_weight else None
    free = offsets[:-1].copy()
    for source, order in zip(sources, orders, strict=True):
        low, high = np.searchsorted(source.place, [first, end], sorter=order)
        users = order[low:high]
        to, start = source.place[users] - first, source.offsets[users]
        length = source.offsets[users + 1] - start
        here, there = ranges(free[to], length), ranges(start, length)
        item_row[here] = source.item_row[source.item[there]]
        time[here] = source.timestamp[there]
        if weight is not None and source.weight is not None:
            weight[here] = source.weight[there]
        free[to] += length
    user = np.repeat(np.arange(end - first, dtype=np.int32), counts)
    tied = count_tied(user, time)
    _order_ties(tied, item_row, weight)
    return EventShard(user_rows[first:end][user], item_row, time, weight, tied, offsets)


def _order_ties(tied: np.ndarray, item_row: np.ndarray, weight: np.ndarray | None) -> None:
    """Puts events of one user and second into the order of their items' rows, then weights."""
    behind = np.flatnonzero(tied)
    if not len(behind):
        return
    first = np.unique(behind - tied[behind])
    run = np.unique(np.concatenate([first, behind]))
    group = np.cumsum(tied[run] == 0)
    keys = (item_row[run], group) if weight is None else (weight[run], item_row[run], group)
    order = run[np.lexsort(keys)]
    item_row[run] = item_row[order]
    if weight is not None:
        weight[run] = weight[order]
