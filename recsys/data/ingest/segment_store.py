"""The interaction store of segments: their events as they are, and rows for their ids.

    store.json                     the cut, and what is in each part
    train/users.parquet            id and user_row of each user, in the order of the log
    train/00007-00000/ …           a bucket of a segment: its columns (`events.py`), and
        place.npy                  place of each of its users among the users of the log
        item_row.npy               row of each of its items
    eval/users.parquet, …          the same, from the cut on

The columns are hard links to what is kept: what a night writes are the ids' rows.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.commit import commit_text
from recsys.data.event_log import EventLog
from recsys.data.ingest.segments import COLUMNS, ITEMS, USERS, read_ids
from recsys.data.ingest.cache import link
from recsys.data.ingest.segments import LinkedShard, read_linked
from recsys.data.ingest.merge import Source, merge
from recsys.data.shard import PARTS, ShardInfo, check_file, describe, map_column, read_users_file
from recsys.data.vocabulary import Vocabulary

FORMAT = 3
_PLACE, _ITEM_ROW = "place.npy", "item_row.npy"
_READERS = 4
_SCHEMA = pa.schema({"id": pa.large_string(), "user_row": pa.int32()})


def write_segmented_store(
    folder: Path, examples: Path, users: Vocabulary, items: Vocabulary, cut: int
) -> None:
    """Writes the store of examples that are made of segments.

    Args:
        folder: Folder of the store.
        examples: Examples with `segments.json`.
        users: Vocabulary of the users.
        items: Vocabulary of the items.
        cut: The moment of the split [seconds since 1970, UTC].
    """
    linked = read_linked(examples)
    parts = {}
    for part in PARTS:
        ours = [shard for shard in linked if shard.split == part]
        parts[part] = _write_part(folder / part, ours, users, items)
    manifest = {
        "format": FORMAT,
        "cut": cut,
        **{f"{part}_events": described["events"] for part, described in parts.items()},
        **{f"{part}_users": described["users"] for part, described in parts.items()},
        "parts": parts,
    }
    commit_text(json.dumps(manifest, indent=1) + "\n", folder / "store.json")


@dataclasses.dataclass(frozen=True)
class SegmentedPart:
    """A part of a store of segments, as its manifest describes it.

    Attributes:
        folder: Folder of the part.
        shards: Buckets of segments, those of older segments first.
        users_file: `bytes` and `sha256` of the users.
    """

    folder: Path
    shards: tuple[ShardInfo, ...]
    users_file: Mapping[str, Any]

    @classmethod
    def from_json(cls, folder: Path, described: Mapping[str, Any]) -> SegmentedPart:
        """Returns the part that a manifest describes."""
        shards = tuple(ShardInfo.from_json(shard) for shard in described["shards"])
        return cls(folder, shards, described["users_file"])

    def open(self, verify: bool) -> EventLog:
        """Returns the events of all segments as one log.

        Args:
            verify: Whether every byte is read and compared with the manifest's sha256.

        Raises:
            RecsysError: A file is missing, or not as the manifest says.
        """
        check_file(self.folder / USERS, self.users_file, verify)
        rows = self.users()["user_row"].to_numpy()
        # Hashing lets other threads run.
        with ThreadPoolExecutor(_READERS) as pool:
            sources = list(pool.map(lambda info: self._source(info, verify), self.shards))
        return EventLog(merge(sources, rows, self.folder))

    def users(self) -> pa.Table:
        """Returns `id` and `user_row` of each user, in the order of the log."""
        return read_users_file(self.folder / USERS)

    def _source(self, info: ShardInfo, verify: bool) -> Source:
        path = self.folder / info.name
        for name, described in info.files.items():
            check_file(path / name, described, verify)
        lengths = {"offsets": info.users + 1}
        columns = {
            name: map_column(path / f"{name}.npy", dtype, lengths.get(name, info.events))
            for name, dtype in COLUMNS.items()
            if f"{name}.npy" in info.files
        }
        place = map_column(path / _PLACE, np.int32, info.users)
        item_row = map_column(path / _ITEM_ROW, np.int32, None)
        return Source(**{"weight": None, **columns}, place=place, item_row=item_row)  # type: ignore[arg-type]


def _write_part(
    folder: Path, shards: Sequence[LinkedShard], users: Vocabulary, items: Vocabulary
) -> dict[str, Any]:
    folder.mkdir(parents=True, exist_ok=True)
    ids = [read_ids(shard.folder, USERS) for shard in shards]
    places, table = _number(ids, users, by_row=folder.name == "train")
    pq.write_table(table, folder / USERS)
    infos = [
        _write_shard(folder, shard, place, items)
        for shard, place in zip(shards, places, strict=True)
    ]
    return {
        "events": sum(info.events for info in infos),
        "users": table.num_rows,
        "users_file": describe(folder / USERS),
        "shards": [info.to_json() for info in infos],
    }


def _write_shard(
    folder: Path, shard: LinkedShard, place: np.ndarray, items: Vocabulary
) -> ShardInfo:
    target = folder / shard.name
    files = {}
    for name in (f"{column}.npy" for column in COLUMNS):
        if name in shard.files:
            link(shard.folder / name, target / name)
            files[name] = dict(shard.files[name])
    np.save(target / _PLACE, place)
    np.save(target / _ITEM_ROW, items.rows(read_ids(shard.folder, ITEMS)))
    files |= {name: describe(target / name) for name in (_PLACE, _ITEM_ROW)}
    return ShardInfo(shard.name, shard.events, len(place), files)


def _number(
    ids: Sequence[pa.Array], users: Vocabulary, by_row: bool
) -> tuple[list[np.ndarray], pa.Table]:
    """Returns the place of each shard's users, and all users in that order.

    Users of `train` are sorted by (row, id), those of `eval` by id.
    """
    whole = pa.chunked_array(ids, pa.large_string()).combine_chunks().dictionary_encode()
    table = pa.table({"id": whole.dictionary, "user_row": users.rows(whole.dictionary)}, _SCHEMA)
    keys = ["user_row", "id"] if by_row else ["id"]
    order = pc.sort_indices(table, [(key, "ascending") for key in keys])
    place = np.empty(table.num_rows, np.int32)
    place[order.to_numpy()] = np.arange(table.num_rows, dtype=np.int32)
    codes = whole.indices.to_numpy()
    ends = np.cumsum([len(some) for some in ids])
    return np.split(place[codes], ends[:-1]) if len(ids) else [], table.take(order)
