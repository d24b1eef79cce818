"""Segments: events of some days by bucket, sorted by user, with ids numbered within the bucket.

Duplicate rows have the same time, so they are on the same UTC day, and the cut is a midnight:
days can be read, deduplicated and written independently. The rows of a span are divided into
blocks of days, of one day each if it has few days. Blocks of different spans that share a day
form one segment. So if another span holds a few late rows of a day, that day is made again, but
its neighbours aren't. Files without spans are one segment.

    segments.json                    the segments, the oldest first
    segments/00007-00000/            positives of a bucket of the eighth segment
        users.parquet items.parquet  id, count and last_seen of each id, in order of the id
        offsets.npy                  index of each user's first event, and the end
        item.npy                     index of each event's item
        timestamp.npy weight.npy     one value per event
        valid.npy                    whether validation holds an event back, if any is marked
        kinds.parquet kind.npy       kinds of event, as for items, and index of each event's kind
    Split-train/data-….parquet       its rows as examples, in the place that TFX expects

Users and items are numbered within the bucket: a segment contains neither vocabulary rows nor the
cut, so it stays valid.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.example_files import write_examples
from recsys.data.ingest.cache import key_of
from recsys.data.ingest.read_rows import StepProgress, run_tasks
from recsys.data.ingest.spans import SpanPart, SpanRows, join_parts
from recsys.data.split import DAY_S, PART, TIME, count_positive_days, event_times
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

SplitRows = Callable[[pa.Table], dict[str, pa.Table]]
"""Splits rows of whole users into `train` and `eval`."""

_SPAN_BLOCKS = 32


# --- the plan


@dataclasses.dataclass(frozen=True)
class Segment:
    """Some days of the window, and the spans that have rows of these days.

    Attributes:
        first: First UTC day [days since 1970].
        last: Last UTC day [days since 1970].
        spans: Indices of the spans that have rows of these days, ascending.
        parts: The rows of each of these spans.
        n_buckets: Number of buckets, a power of two.
        key: Key of its rows; equal for equal rows.
    """

    first: int
    last: int
    spans: tuple[int, ...]
    parts: tuple[SpanPart, ...]
    n_buckets: int
    key: str

    def is_cut_by(self, cut: int) -> bool:
        """Returns whether the midnight `cut` [seconds since 1970, UTC] divides the segment."""
        return self.first < cut // DAY_S <= self.last


def plan_segments(spans: Sequence[SpanRows]) -> list[Segment]:
    """Returns the segments of a window, the oldest first; no two share a day."""
    joined: list[list[int]] = []
    for first, last in sorted(block for span in spans for block in _blocks(span.days())):
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return [_segment(spans, first, last) for first, last in joined]


def whole_segment(span: SpanRows) -> Segment:
    """Returns the single segment of files without spans, with all their days."""
    days = list(span.days()) or [0]
    slices = tuple((0, bucket.get("rows", 0)) for bucket in span.buckets)
    part = SpanPart(span.folder, span.file_indices, slices)
    return Segment(days[0], days[-1], (0,), (part,), len(slices), span.key)


def _blocks(days: Iterable[int]) -> list[tuple[int, int]]:
    """Returns the first and last day of each block of a span."""
    ordered = sorted(days)
    width = 1
    while len({day // width for day in ordered}) > _SPAN_BLOCKS:
        width *= 2
    groups = itertools.groupby(ordered, key=lambda day: day // width)
    blocks = [list(group) for _, group in groups]
    return [(block[0], block[-1]) for block in blocks]


def _segment(spans: Sequence[SpanRows], first: int, last: int) -> Segment:
    inside = [
        at for at, span in enumerate(spans) if any(first <= day <= last for day in span.days())
    ]
    # Ranks decide which of two equal rows comes first, since indices change as the window moves.
    rank = {
        place: n
        for n, place in enumerate(sorted(p for at in inside for p in spans[at].file_indices))
    }
    made_of = [[spans[at].key, [rank[place] for place in spans[at].file_indices]] for at in inside]
    return Segment(
        first=first,
        last=last,
        spans=tuple(inside),
        parts=tuple(spans[at].part(first, last) for at in inside),
        n_buckets=max(len(spans[at].buckets) for at in inside),
        key=key_of("segment", first, last, made_of),
    )


# --- their files


@dataclasses.dataclass(frozen=True)
class SegmentPlan:
    """The output of a segment.

    Attributes:
        folder: Folder to write.
        segment: The segment.
        split: Splits the rows of each bucket; None: all of it will be in one split, which is
            decided later.
    """

    folder: Path
    segment: Segment
    split: SplitRows | None


def make_segments(
    like: beam.Pipeline,
    plans: Sequence[SegmentPlan],
    work: Path,
    step: str,
    with_examples: bool = True,
) -> list[dict[str, Any]]:
    """Writes segments into their folders with Beam.

    Args:
        like: A pipeline whose runner and options are used.
        plans: The segments.
        work: Folder for temporary files.
        step: Name of the step, for its progress.
        with_examples: Whether to write the examples, which TFX's statistics need.

    Returns:
        For each segment `parts`: `name`, `split`, `rows`, `events` and `days` (pairs of day and
        number of positives) of each bucket and split; and `dropped`: for each of its spans, the
        number of rows that equal rows of earlier spans.
    """
    tasks = [(at, b) for at, plan in enumerate(plans) for b in range(plan.segment.n_buckets)]
    progress = StepProgress(work / f"made-{uuid.uuid4().hex}", step, len(tasks))
    each = functools.partial(_make_bucket, plans, with_examples, progress)
    made = sorted(run_tasks(like, tasks, each, work), key=lambda result: result[:2])
    return [
        {
            "parts": [part for at, _, parts, _ in made if at == number for part in parts],
            "dropped": [
                sum(dropped)
                for dropped in zip(*(d for at, _, _, d in made if at == number), strict=True)
            ],
        }
        for number in range(len(plans))
    ]


def _make_bucket(
    plans: Sequence[SegmentPlan], with_examples: bool, progress: StepProgress, task: tuple[int, int]
) -> Iterator[tuple[int, int, list[dict[str, Any]], list[int]]]:
    """Writes a bucket of a segment; yields the facts of its parts."""
    at, bucket = task
    plan = plans[at]
    rows, dropped = join_parts(plan.segment.parts, bucket, plan.segment.n_buckets)
    facts = []
    if rows is not None:
        for split, part in (plan.split(rows) if plan.split else {None: rows}).items():
            name = f"{bucket:05d}" if split is None else f"{split}-{bucket:05d}"
            facts.append({"split": split, **_write_part(plan.folder, name, part, with_examples)})
    yield at, bucket, facts, dropped
    progress.advance(f"{at}-{bucket}", "events sorted by user")


def _write_part(folder: Path, name: str, rows: pa.Table, with_examples: bool) -> dict[str, Any]:
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
        split: The split.
        folder: Their folder; older segments come first in the order of names.
        events: Number of positives.
    """

    split: str
    folder: Path
    events: int

    def ids(self, file: str) -> pa.Array:
        """Returns the ids of its users, items or kinds, `large_string`, in ascending order."""
        table = pq.read_table(self.folder / file, columns=["id"], schema=COUNTS_SCHEMA)
        return pa.chunked_array(table["id"].chunks, pa.large_string()).combine_chunks()


def read_parts(examples: Path, split: str) -> list[SegmentPart]:
    """Returns the positives of a split, from the oldest segment to the newest.

    Args:
        examples: Folder that InteractionGen or `ingest` wrote.
        split: The split.
    """
    index = json.loads((examples / INDEX).read_text(encoding="utf-8"))
    return [
        SegmentPart(split, examples / FOLDER / part["name"], part["events"])
        for part in index["shards"]
        if part["split"] == split
    ]


def write_index(examples: Path, parts: Sequence[SegmentPart], cached: Iterable[str]) -> None:
    """Writes `segments.json`.

    Args:
        examples: Folder of the examples.
        parts: The positives, from the oldest segment to the newest.
        cached: Names of the cached folders whose files are linked into it.
    """
    shards = [{"name": p.folder.name, "split": p.split, "events": p.events} for p in parts]
    index = {"format": 2, "kept": sorted(cached), "shards": shards}
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
    files = [part.folder / file for part in read_parts(examples, split)]
    return merge_counts([pq.read_table(f, schema=COUNTS_SCHEMA) for f in files if f.exists()])
