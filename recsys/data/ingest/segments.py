"""Which days make a segment: what has to be looked at together, and no more.

Rows that are duplicates have one second, so they lie in one UTC day, and the cut is a
midnight: days can be read, deduplicated and written each by itself. A span's rows are
laid into blocks of days, one day each where it has few days; blocks of several spans
that share a day are one segment. So a day that another span holds a few late rows of is
made anew, and its neighbours aren't.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Mapping, Sequence

from recsys.data.ingest.cache import key_of
from recsys.data.split import DAY_S


from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.event_order import event_order
from recsys.data.id_counts import SCHEMA


import dataclasses
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.id_counts import SCHEMA, merge_counts

_BLOCKS_OF_A_SPAN = 32


@dataclasses.dataclass(frozen=True)
class SpanDays:
    """What is known of the rows of a span.

    Attributes:
        key: Name of what made them.
        places: Place of each of its files among all files of the window.
        days: Rows of each UTC day [days since 1970].
        n_buckets: Buckets that its rows lie in, a power of two.
    """

    key: str
    places: tuple[int, ...]
    days: Mapping[int, int]
    n_buckets: int


@dataclasses.dataclass(frozen=True)
class Segment:
    """Some days of the window, and who has rows of them.

    Attributes:
        first: First UTC day [days since 1970].
        last: Last UTC day.
        spans: Places of the spans that have rows of these days, ascending.
        ranks: For each of these spans, the rank of each of its files among all files of
            these spans: which of two equal rows is the first.
        n_buckets: Buckets that the rows are laid into, a power of two.
        key: Equal for equal rows.
    """

    first: int
    last: int
    spans: tuple[int, ...]
    ranks: tuple[tuple[int, ...], ...]
    n_buckets: int
    key: str

    def is_cut_by(self, cut: int) -> bool:
        """Returns whether the midnight `cut` [seconds since 1970, UTC] lies within."""
        return self.first < cut // DAY_S <= self.last


def plan_segments(spans: Sequence[SpanDays]) -> list[Segment]:
    """Returns the segments of a window, the oldest first; no two share a day."""
    blocks = sorted(block for span in spans for block in _blocks(span.days))
    joined: list[list[int]] = []
    for first, last in blocks:
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return [_segment(spans, first, last) for first, last in joined]


def split_segment(spans: Sequence[SpanDays], segment: Segment, cut: int) -> list[Segment]:
    """Returns the two segments that the midnight `cut` makes of one."""
    day = cut // DAY_S
    return [
        _segment(spans, segment.first, day - 1),
        _segment(spans, day, segment.last),
    ]


def _blocks(days: Iterable[int]) -> list[tuple[int, int]]:
    """Returns first and last day of each block of a span."""
    ordered = sorted(days)
    width = 1
    while len({day // width for day in ordered}) > _BLOCKS_OF_A_SPAN:
        width *= 2
    groups = itertools.groupby(ordered, key=lambda day: day // width)
    blocks = [list(group) for _, group in groups]
    return [(block[0], block[-1]) for block in blocks]


def _segment(spans: Sequence[SpanDays], first: int, last: int) -> Segment:
    inside = [at for at, span in enumerate(spans) if any(first <= day <= last for day in span.days)]
    places = sorted(place for at in inside for place in spans[at].places)
    rank = {place: number for number, place in enumerate(places)}
    ranks = tuple(tuple(rank[place] for place in spans[at].places) for at in inside)
    made_of = [[spans[at].key, list(some)] for at, some in zip(inside, ranks, strict=True)]
    return Segment(
        first=first,
        last=last,
        spans=tuple(inside),
        ranks=ranks,
        n_buckets=max((spans[at].n_buckets for at in inside), default=1),
        key=key_of("segment", first, last, made_of),
    )


# --- events


USERS, ITEMS = "users.parquet", "items.parquet"
COLUMNS = {"offsets": np.int64, "item": np.int32, "timestamp": np.int64, "weight": np.float32}
"""Columns of the events; `weight` only where the data have one."""


def write_events(folder: Path, positives: pa.Table) -> int:
    """Writes the positives of one bucket of a segment.

    Args:
        folder: Where to, made where there is none.
        positives: Columns `user_id`, `item_id`, `timestamp`, and `weight` where the data
            have one; all positives that the segment has of these users.

    Returns:
        How many there are; without one nothing is written.
    """
    if not positives.num_rows:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    user, user_ids = _encode(positives["user_id"])
    item, item_ids = _encode(positives["item_id"])
    time = positives["timestamp"].to_numpy()
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
    pq.write_table(_counted(user_ids, user, time), folder / USERS)
    pq.write_table(_counted(item_ids, item, time), folder / ITEMS)
    return positives.num_rows


def read_ids(folder: Path, file: str) -> pa.Array:
    """Returns the ids of a bucket's users or items, `large_string`, in order."""
    table = pq.read_table(folder / file, columns=["id"], schema=SCHEMA)
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
    return pa.Table.from_arrays([ids, count, pa.array(last_seen)], schema=SCHEMA)


# --- linked


FILE = "segments.json"
FOLDER = "segments"


@dataclasses.dataclass(frozen=True)
class LinkedShard:
    """The positives of a bucket of a segment, as they lie in the examples.

    Attributes:
        name: Name of their folder; older segments come first.
        split: The split that they are in.
        folder: Their folder.
        events: How many they are.
        files: `bytes` and `sha256` of each of their files.
    """

    name: str
    split: str
    folder: Path
    events: int
    files: dict[str, dict[str, Any]]


def has_segments(examples: Path) -> bool:
    """Returns whether examples are made of segments."""
    return (examples / FILE).is_file()


def read_linked(examples: Path) -> list[LinkedShard]:
    """Returns the positives of all segments of examples, the oldest first."""
    told = json.loads((examples / FILE).read_text(encoding="utf-8"))
    return [
        LinkedShard(
            one["name"], one["split"], examples / FOLDER / one["name"], one["events"], one["files"]
        )
        for one in told["shards"]
    ]


def write_linked(examples: Path, shards: Sequence[LinkedShard], kept: Sequence[str]) -> None:
    """Writes `segments.json`.

    Args:
        examples: Folder of the examples.
        shards: The positives that were linked into it, the oldest first.
        kept: Names of the kept folders that the examples were made of.
    """
    told = {
        "format": 1,
        "kept": sorted(kept),
        "shards": [
            {"name": one.name, "split": one.split, "events": one.events, "files": one.files}
            for one in shards
        ],
    }
    (examples / FILE).write_text(json.dumps(told, indent=1) + "\n", encoding="utf-8")


def segments_in_use(examples: Sequence[Path]) -> set[str]:
    """Returns the names of the kept folders that examples were made of, for `sweep`.

    Args:
        examples: Folders of artifacts of examples; those without segments say nothing.
    """
    names: set[str] = set()
    for folder in examples:
        if has_segments(folder):
            told = json.loads((folder / FILE).read_text(encoding="utf-8"))
            names.update(told["kept"])
    return names


def counts_of(examples: Path, split: str, file: str) -> pa.Table:
    """Returns the counted ids of a split: what its segments counted, added up.

    Args:
        examples: Folder of the examples.
        split: The split.
        file: `users.parquet` or `items.parquet`.
    """
    shards = [shard for shard in read_linked(examples) if shard.split == split]
    return merge_counts([pq.read_table(one.folder / file, schema=SCHEMA) for one in shards])
