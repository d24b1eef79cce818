"""The files of a segment's bucket, and their index.

    segments.json                    the segments, the oldest first
    segments/00007-00000/            positives of a bucket of the eighth segment
        users.parquet items.parquet  id, count and last_seen of each id, in order of the id
        offsets.npy                  index of each user's first event, and the end
        item.npy                     index of each event's item
        timestamp.npy weight.npy     one value per event
        valid.npy                    whether validation holds an event back, if any is marked
        kinds.parquet kind.npy       kinds of event, as for items, and index of each event's kind
    Split-train/data-….parquet       its rows as examples, in the place that TFX expects

Users and items are numbered within the bucket: the files contain neither vocabulary rows nor the
cut, so they stay valid. The positives of a folder are in one split, or are split at the cut when
they are read.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import uuid
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.example_files import write_examples
from recsys.data.split import PART, TIME, count_positive_days, event_times
from recsys.data.store import event_order
from recsys.data.vocabulary import COUNTS_SCHEMA, KINDS_FILE, count_codes, merge_counts

USERS, ITEMS, KINDS = "users.parquet", "items.parquet", KINDS_FILE
EXAMPLES = "examples.parquet"
COLUMNS = {
    "offsets": np.int64,
    "item": np.int32,
    "timestamp": np.int64,
    "weight": np.float32,
    "valid": np.bool_,
    "kind": np.int32,
}
"""Columns of the events; `recsys.data.event_log.OPTIONAL` ones exist only if the data have them."""
INDEX, FOLDER = "segments.json", "segments"


def write_part(folder: Path, name: str, rows: pa.Table, with_examples: bool) -> dict[str, Any]:
    temporary = folder / f".{name}-{uuid.uuid4().hex}"  # Beam may run a task twice.
    temporary.mkdir()
    if with_examples:
        with (temporary / EXAMPLES).open("wb") as sink:
            write_examples(_as_text(rows), sink)
    n_events = write_events(temporary, rows.filter(pc.equal(rows["label"], 1)))
    shutil.rmtree(folder / name, ignore_errors=True)
    temporary.rename(folder / name)
    days = count_positive_days(rows) if TIME.name in rows.column_names else {}
    return {"name": name, "rows": rows.num_rows, "events": n_events, "days": sorted(days.items())}


def write_events(folder: Path, positives: pa.Table) -> int:
    """Writes the positives of one bucket of a segment.

    Args:
        folder: Folder to write to, created if missing.
        positives: Columns `user_id`, `item_id`, the column of the order (see `event_times`), and
            `weight`, `part` and `event` if the data have them; all positives of these users in
            the segment.

    Returns:
        Number of positives; nothing is written if it is 0.
    """
    if not positives.num_rows:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    user, user_ids = _encode(positives["user_id"])
    item, item_ids = _encode(positives["item_id"])
    time = event_times(positives).to_numpy()
    # Positions and random numbers can't serve as `last_seen`.
    seen = time if TIME.name in positives.column_names else np.zeros(len(time), np.int64)
    optional = {}
    if "weight" in positives.column_names:
        optional["weight"] = positives["weight"].to_numpy()
    if PART.name in positives.column_names:
        optional["valid"] = pc.equal(positives[PART.name], "valid").to_numpy()
    if "event" in positives.column_names:
        optional["kind"], kinds = _encode(positives["event"])
        pq.write_table(count_codes(kinds, optional["kind"], seen), folder / KINDS)
    order = event_order(user, time, (item, *optional.values()))
    ends = np.cumsum(np.bincount(user, minlength=len(user_ids)))
    np.save(folder / "offsets.npy", np.concatenate([[0], ends]).astype(COLUMNS["offsets"]))
    for name, column in {"item": item, "timestamp": time, **optional}.items():
        np.save(folder / f"{name}.npy", column[order].astype(COLUMNS[name], copy=False))
    pq.write_table(count_codes(user_ids, user, seen), folder / USERS)
    pq.write_table(count_codes(item_ids, item, seen), folder / ITEMS)
    return positives.num_rows


def _as_text(rows: pa.Table) -> pa.Table:
    """Returns the columns of examples, with ids as text."""
    fields = [
        pa.field(field.name, pa.string()) if pa.types.is_dictionary(field.type) else field
        for field in rows.schema
        if field.name != PART.name
    ]
    return rows.select([field.name for field in fields]).cast(pa.schema(fields))


def _encode(ids: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Returns the code `[n]` int32 of each id, and the ids by code, in ascending order."""
    encoded = ids.combine_chunks().dictionary_encode()
    codes = encoded.indices.to_numpy()
    used = np.flatnonzero(np.bincount(codes, minlength=len(encoded.dictionary)))
    unique = encoded.dictionary.take(pa.array(used)).cast(pa.large_string())
    order = pc.array_sort_indices(unique)
    place = np.zeros(len(encoded.dictionary), np.int32)
    place[used[order.to_numpy()]] = np.arange(len(used), dtype=np.int32)
    return place[codes], unique.take(order)


@dataclasses.dataclass(frozen=True)
class SegmentPart:
    """The positives of a bucket of a segment in one split.

    Attributes:
        split: The split; None: they are not split yet, see `read_parts`.
        folder: Their folder; older segments come first in the order of names.
        events: Number of positives in the folder.
        cut: Time at which the folder's positives are split [seconds since 1970, UTC]; None: all of
            them are in one split.
    """

    split: str | None
    folder: Path
    events: int
    cut: int | None = None

    def column(self, name: str) -> np.ndarray:
        """Returns a column of the folder, memory-mapped: one of `COLUMNS`."""
        return np.load(self.folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)

    @functools.cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Index of each user's first event in the split, and the end `[users]` int64 each."""
        offsets = self.column("offsets")
        starts, ends = offsets[:-1], offsets[1:]
        if self.cut is None:
            return starts, ends
        n_before = np.concatenate([[0], np.cumsum(self.column("timestamp") < self.cut)])
        borders = starts + n_before[ends] - n_before[starts]
        return (starts, borders) if self.split == "train" else (borders, ends)

    @functools.cached_property
    def users(self) -> np.ndarray:
        """Indices of the users with events in the split `[n]` int64, ascending."""
        starts, ends = self.bounds
        return np.flatnonzero(ends > starts)

    def ids(self, file: str) -> pa.Array:
        """Returns the ids of its users, items or kinds, `large_string`, in ascending order."""
        table = pq.read_table(self.folder / file, columns=["id"], schema=COUNTS_SCHEMA)
        return pa.chunked_array(table["id"].chunks, pa.large_string()).combine_chunks()

    def counts(self, file: str) -> pa.Table:
        """Returns the users, items or kinds of the split, with `count` and `last_seen`."""
        path = self.folder / file
        if not path.exists():
            return COUNTS_SCHEMA.empty_table()
        if self.cut is None:
            return pq.read_table(path, schema=COUNTS_SCHEMA)
        starts, ends = self.bounds
        if file == USERS:
            first, end = starts[self.users], ends[self.users]
            columns = [pa.array(end - first), pa.array(self.column("timestamp")[end - 1])]
            ids = self.ids(file).take(pa.array(self.users))
            return pa.Table.from_arrays([ids, *columns], schema=COUNTS_SCHEMA)
        is_inside = (self.column("timestamp") < self.cut) == (self.split == "train")
        codes = self.column("item" if file == ITEMS else "kind")[is_inside]
        counted = count_codes(self.ids(file), codes, self.column("timestamp")[is_inside])
        return counted.filter(pc.greater(counted["count"], 0))


def read_parts(examples: Path, split: str) -> list[SegmentPart]:
    """Returns the positives of a split, from the oldest segment to the newest.

    Args:
        examples: Folder that InteractionGen or `ingest` wrote.
        split: The split.
    """
    index = json.loads((examples / INDEX).read_text(encoding="utf-8"))
    return [
        SegmentPart(
            split,
            examples / FOLDER / part["name"],
            part["events"],
            index["cut"] if part["split"] is None else None,
        )
        for part in index["shards"]
        if part["split"] in (split, None)
    ]


def write_index(
    examples: Path, parts: Sequence[SegmentPart], cached: Iterable[str], cut: int | None = None
) -> None:
    """Writes `segments.json`.

    Args:
        examples: Folder of the examples.
        parts: The positives, from the oldest segment to the newest.
        cached: Names of the cached folders whose files are linked into it.
        cut: Time at which parts without a split are split [seconds since 1970, UTC].
    """
    shards = [{"name": p.folder.name, "split": p.split, "events": p.events} for p in parts]
    index = {"format": 3, "cut": cut, "kept": sorted(cached), "shards": shards}
    (examples / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def segments_in_use(examples: Sequence[Path]) -> set[str]:
    """Returns the names of the cached folders from which examples were made, for `sweep`.

    Args:
        examples: Folders of artifacts of examples; those without segments are ignored.
    """
    indices = [folder / INDEX for folder in examples if (folder / INDEX).is_file()]
    return {name for file in indices for name in json.loads(file.read_text())["kept"]}


def counts_of(examples: Path, split: str, file: str) -> pa.Table:
    """Returns the count and the time of the last occurrence of each id in a split's positives.

    Args:
        examples: Folder of the examples.
        split: The split.
        file: `users.parquet`, `items.parquet`, or `kinds.parquet`, which may be missing.
    """
    return merge_counts([part.counts(file) for part in read_parts(examples, split)])
