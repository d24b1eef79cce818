"""Stores of events that are in memory, without an ingestion: for benchmarks and tests."""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data import store
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.event_log import COLUMNS, EventShard
from recsys.data.split import BY_TIME, SplitRule

_FEATURE = "feature:"


def write_store(
    folder: Path, cut: int, train: pa.Table, held_out: pa.Table, split: SplitRule = BY_TIME
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
    parts = {part: [write_shard(folder, part, 0, x)] if x else [] for part, x in tables.items()}
    store.write_manifest(folder, cut, parts, split)


def write_shard(folder: Path, part: str, index: int, events: pa.Table) -> store.ShardInfo:
    """Sorts all events of some users, and writes them as a shard.

    Users of `train` are sorted by (row, id), users of `eval` by id. The order of the rows of
    `events` changes nothing.

    Args:
        folder: Folder of the store.
        part: The part that the shard belongs to, one of `PARTS`.
        index: Its place among the shards of the part.
        events: Columns `user_id` (text), `user_row`, `item_row`, `timestamp` [seconds
            since 1970, UTC], `weight` and `valid` where the data have them, and `feature:<name>`
            with a list of each event's tokens or numbers; at least one row. `positive`: which
            are positives, if histories hold others, too.
    """
    encoded = events["user_id"].dictionary_encode().combine_chunks()
    codes = encoded.indices.to_numpy()
    rows = np.zeros(len(encoded.dictionary), np.int32)
    rows[codes] = events["user_row"].to_numpy()
    place, users = store.order_users(encoded.dictionary, rows, by_row=part == "train")
    columns = {name: events[name].to_numpy() for name in COLUMNS if name in events.column_names}
    features = {
        name.removeprefix(_FEATURE): np.stack(events[name].to_numpy())
        for name in events.column_names
        if name.startswith(_FEATURE)
    }
    if "positive" in events.column_names:
        columns["positive"] = events["positive"].to_numpy()
    shard = sorted_shard(place[codes], n_users=users.num_rows, features=features, **columns)
    return store.commit_shard(folder, part, index, shard, users)


def sorted_shard(
    user: np.ndarray,
    user_row: np.ndarray,
    item_row: np.ndarray,
    timestamp: np.ndarray,
    n_users: int,
    features: Mapping[str, np.ndarray] | None = None,
    positive: np.ndarray | None = None,
    **optional: np.ndarray,
) -> EventShard:
    """Returns a shard of events, sorted.

    Args:
        user: User of each event `[n]`, in 0 … `n_users` - 1.
        user_row: Row of the user of each event `[n]`.
        item_row: Row of the item of each event `[n]`.
        timestamp: Time of each event `[n]` [seconds since 1970, UTC].
        n_users: Users of the shard.
        features: Features of each event by name, `[n, width]`; None: there are none.
        positive: Which events are positives `[n]`; histories hold all. None: all are.
        **optional: `weight`, `valid` and `kind` (its row) of each event `[n]`, if the data have
            them.
    """
    order = store.event_order(user, timestamp, (item_row, *optional.values()))
    columns = {"user_row": user_row, "item_row": item_row, "timestamp": timestamp, **optional}
    ordered = {name: x[order].astype(COLUMNS[name], copy=False) for name, x in columns.items()}
    tied = store.count_tied(user[order], ordered["timestamp"])
    offsets = np.append(0, np.cumsum(np.bincount(user, minlength=n_users)))
    of_events = {name: x[order] for name, x in (features or {}).items()}
    shard = EventShard(tied=tied, offsets=offsets, features=of_events, **ordered)
    everything = np.ones(len(user), bool)
    return shard if positive is None else store.positives_of(shard, positive[order], everything)


def save_catalogue(catalogue: Catalogue, folder: Path) -> None:
    """Writes ids, titles and features into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    titles = pa.table({"id": catalogue.ids[1:], "title": catalogue.titles[1:]})
    pq.write_table(titles, folder / "titles.parquet")
    save_features(catalogue.features, folder)


def save_features(features: Iterable[FeatureBags], folder: Path) -> None:
    """Writes features into a folder."""
    folder.mkdir(parents=True, exist_ok=True)
    entries = []
    for feature in features:
        dtype = np.float32 if feature.floats else np.int32
        np.save(folder / f"{feature.name}.npy", np.asarray(feature.bags, dtype))
        if feature.tokens is not None:
            names = pa.table({"token": pa.array(list(feature.tokens), pa.string())})
            pq.write_table(names, folder / f"{feature.name}.tokens.parquet")
        floats = {"floats": feature.floats} if feature.floats else {}
        size = {"rows": feature.rows, "width": feature.width, **floats}
        entries.append({"name": feature.name, **size})
    (folder / "features.json").write_text(json.dumps({"features": entries}))
