"""Stores of events that are in memory, without an ingestion: for benchmarks and tests."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from recsys.data.event_log import COLUMNS, OPTIONAL, EventShard
from recsys.data.split import BY_TIME, SplitRule
from recsys.data.store import (
    ShardInfo,
    commit_shard,
    count_tied,
    event_order,
    order_users,
    write_manifest,
)


def write_store(
    folder: Path,
    cut: int,
    train: pa.Table,
    held_out: pa.Table,
    split: SplitRule = BY_TIME,
) -> None:
    """Writes a store of events that fit into memory, a shard a part.

    Args:
        folder: Folder of the store.
        cut: The moment that the training data end [seconds since 1970, UTC].
        train: Events to train on, columns as `write_shard` takes them.
        held_out: Events that are held out.
        split: How they were split.
    """
    tables = {"train": train, "eval": held_out}
    infos = {
        part: [write_shard(folder, part, 0, table)] if table.num_rows else []
        for part, table in tables.items()
    }
    write_manifest(folder, cut, infos, split)


def write_shard(folder: Path, part: str, index: int, events: pa.Table) -> ShardInfo:
    """Sorts all events of some users, and writes them as a shard.

    Users of `train` are sorted by (row, id), those of `eval` by id. The order of the
    rows of `events` changes nothing.

    Args:
        folder: Folder of the store.
        part: The part that the shard belongs to, one of `PARTS`.
        index: Its place among the shards of the part.
        events: Columns `user_id` (text), `user_row`, `item_row`, `timestamp` [seconds
            since 1970, UTC], and `weight`, `valid` and `kind` (the row of the kind) where the
            data have them; at least one row.
    """
    encoded = events["user_id"].dictionary_encode().combine_chunks()
    codes = encoded.indices.to_numpy()
    rows = np.zeros(len(encoded.dictionary), np.int32)
    rows[codes] = events["user_row"].to_numpy()
    place, users = order_users(encoded.dictionary, rows, by_row=part == "train")
    columns = {name: events[name].to_numpy() for name in COLUMNS if name in events.column_names}
    shard = sorted_shard(place[codes], n_users=users.num_rows, **columns)
    return commit_shard(folder, part, index, shard, users)


def sorted_shard(
    user: np.ndarray,
    user_row: np.ndarray,
    item_row: np.ndarray,
    timestamp: np.ndarray,
    n_users: int,
    weight: np.ndarray | None = None,
    valid: np.ndarray | None = None,
    kind: np.ndarray | None = None,
) -> EventShard:
    """Returns a shard of events, sorted.

    Args:
        user: User of each event `[n]`, in 0 … `n_users` - 1.
        user_row: Row of the user of each event `[n]`.
        item_row: Row of the item of each event `[n]`.
        timestamp: Time of each event `[n]` [seconds since 1970, UTC].
        n_users: Users of the shard.
        weight: Weight of each event `[n]`, if the data have one.
        valid: Which events the data name for validation `[n]`, if they name any.
        kind: Row of the kind of each event `[n]`, if the data have kinds.
    """
    columns = dict(zip(OPTIONAL, (weight, valid, kind), strict=True))
    optional = {name: column for name, column in columns.items() if column is not None}
    order = event_order(user, timestamp, (item_row, *optional.values()))
    offsets = np.zeros(n_users + 1, np.int64)
    np.cumsum(np.bincount(user, minlength=n_users), out=offsets[1:])
    time = timestamp[order].astype(np.int64, copy=False)
    return EventShard(
        user_row=user_row[order].astype(np.int32, copy=False),
        item_row=item_row[order].astype(np.int32, copy=False),
        timestamp=time,
        tied=count_tied(user[order], time),
        offsets=offsets,
        **{
            name: column[order].astype(COLUMNS[name], copy=False)
            for name, column in optional.items()
        },
    )
