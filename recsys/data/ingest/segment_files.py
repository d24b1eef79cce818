"""The files of segments: events sorted by user, with ids numbered within the segment.

    segments.json                    the segments, the oldest first
    segments/00007-00000/            positives of a bucket of the eighth segment
        users.parquet items.parquet  id, count and last_seen of each id, in order of the id
        offsets.npy                  first event of each user, and the end
        item.npy                     which item each event is of
        timestamp.npy weight.npy     one value an event
    Split-train/data-….parquet       its rows as examples, where TFX looks at them

Users and items are numbered by the bucket itself: no row of a vocabulary is in a
segment, and no cut, so what was written once stays true.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.event_log import event_order
from recsys.data.event_times import TIME, event_times
from recsys.data.vocabulary import COUNTS_SCHEMA, merge_counts

USERS, ITEMS = "users.parquet", "items.parquet"
COLUMNS = {"offsets": np.int64, "item": np.int32, "timestamp": np.int64, "weight": np.float32}
"""Columns of the events; `weight` only where the data have one."""


def write_events(folder: Path, positives: pa.Table) -> int:
    """Writes the positives of one bucket of a segment.

    Args:
        folder: Where to, made where there is none.
        positives: Columns `user_id`, `item_id`, what orders them (see `event_times`), and
            `weight` where the data have one; all that the segment has of these users.

    Returns:
        How many there are; without one nothing is written.
    """
    if not positives.num_rows:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    user, user_ids = _encode(positives["user_id"])
    item, item_ids = _encode(positives["item_id"])
    time = event_times(positives).to_numpy()
    weight = positives["weight"].to_numpy() if "weight" in positives.column_names else None
    order = event_order(user, time, item, weight)
    count = np.bincount(user, minlength=len(user_ids))
    columns = {
        "offsets": np.concatenate([[0], np.cumsum(count)]),
        "item": item[order],
        "timestamp": time[order],
        "weight": None if weight is None else weight[order],
    }
    for name, dtype in COLUMNS.items():
        column = columns[name]
        if column is not None:
            np.save(folder / f"{name}.npy", column.astype(dtype, copy=False))
    # Places and random numbers are no times to be seen at.
    seen = time if TIME.name in positives.column_names else np.zeros(len(time), np.int64)
    pq.write_table(_counted(user_ids, user, seen), folder / USERS)
    pq.write_table(_counted(item_ids, item, seen), folder / ITEMS)
    return positives.num_rows


def read_ids(folder: Path, file: str) -> pa.Array:
    """Returns the ids of a bucket's users or items, `large_string`, in order."""
    table = pq.read_table(folder / file, columns=["id"], schema=COUNTS_SCHEMA)
    return pa.chunked_array(table["id"].chunks, pa.large_string()).combine_chunks()


def _encode(ids: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Returns the code `[n]` int32 of each id, and the ids by code: in order of the id."""
    encoded = ids.cast(pa.large_string()).combine_chunks().dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary)
    place = np.empty(len(order), np.int32)
    place[order.to_numpy()] = np.arange(len(order), dtype=np.int32)
    return place[encoded.indices.to_numpy()], encoded.dictionary.take(order)


def _counted(ids: pa.Array, codes: np.ndarray, time: np.ndarray) -> pa.Table:
    last_seen = np.full(len(ids), np.iinfo(np.int64).min)
    np.maximum.at(last_seen, codes, time)
    count = pa.array(np.bincount(codes, minlength=len(ids)), pa.int64())
    return pa.Table.from_arrays([ids, count, pa.array(last_seen)], schema=COUNTS_SCHEMA)


INDEX = "segments.json"
FOLDER = "segments"


@dataclasses.dataclass(frozen=True)
class SegmentPart:
    """The positives of a bucket of a segment that are in one split.

    Attributes:
        name: Name of their folder; those of older segments come first.
        split: The split.
        folder: Their folder.
        events: How many they are.
    """

    name: str
    split: str
    folder: Path
    events: int


def read_parts(examples: Path) -> list[SegmentPart]:
    """Returns the positives of all segments, those of older segments first.

    Args:
        examples: Folder that InteractionGen or `ingest` wrote.
    """
    index = json.loads((examples / INDEX).read_text(encoding="utf-8"))
    return [
        SegmentPart(part["name"], part["split"], examples / FOLDER / part["name"], part["events"])
        for part in index["shards"]
    ]


def write_index(examples: Path, parts: Sequence[SegmentPart], cached: Iterable[str]) -> None:
    """Writes `segments.json`.

    Args:
        examples: Folder of the examples.
        parts: The positives, those of older segments first.
        cached: Names of the cached folders whose files are linked into it.
    """
    index = {
        "format": 2,
        "kept": sorted(cached),
        "shards": [
            {"name": part.name, "split": part.split, "events": part.events} for part in parts
        ],
    }
    (examples / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def segments_in_use(examples: Sequence[Path]) -> set[str]:
    """Returns the names of the cached folders that examples were made of, for `sweep`.

    Args:
        examples: Folders of artifacts of examples; those without segments say nothing.
    """
    names: set[str] = set()
    for folder in examples:
        if (folder / INDEX).is_file():
            names.update(json.loads((folder / INDEX).read_text(encoding="utf-8"))["kept"])
    return names


def counts_of(examples: Path, split: str, file: str) -> pa.Table:
    """Returns how often each id is in the positives of a split, and when last.

    Args:
        examples: Folder of the examples.
        split: The split.
        file: `users.parquet` or `items.parquet`.
    """
    parts = [part for part in read_parts(examples) if part.split == split]
    return merge_counts([pq.read_table(part.folder / file, schema=COUNTS_SCHEMA) for part in parts])
