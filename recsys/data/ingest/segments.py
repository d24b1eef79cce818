"""Segments: events of some days by bucket, sorted by user, with ids numbered within the bucket.

Files without spans are one segment, written as they are read. In a window, the rows of a span are
kept, each bucket in a file sorted by time, in which days are slices; segments are made of them.
Duplicate rows have the same time, so they are on the same UTC day: days can be deduplicated and
written independently. The rows of a span are divided into blocks of days, of one day each if it
has few days. Blocks of different spans that share a day form one segment. So if another span holds
a few late rows of a day, that day is made again, but its neighbours aren't. A window whose rows
have ids of impressions is one segment: rows of one event may have different days. `segment_parts`
writes the files of a segment.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recsys.data.hashes import hash_buckets
from recsys.data.ingest.cache import key_of
from recsys.data.ingest.segment_parts import write_part
from recsys.data.ingest.spans import Span
from recsys.data.ingest.tasks import StepProgress, run_tasks
from recsys.data.interactions import POSITION, POSITION_FILE_BITS, drop_duplicates
from recsys.data.labels import without_working
from recsys.data.split import DAY_S, TIME, count_days

if TYPE_CHECKING:
    import apache_beam as beam

SplitRows = Callable[[pa.Table], dict[str, pa.Table]]
"""Splits rows of whole users into `train` and `eval`."""

_SPAN_BLOCKS = 32
_BUCKET_ROWS = 1 << 21
_BATCH_ROWS = 1 << 20
_SPAN = "recsys:span"  # No column of interactions has this name.


# --- buckets of the rows of one source, as they are read


def write_segment_bucket(
    split: SplitRows | None, with_examples: bool, folder: Path, bucket: int, rows: pa.Table
) -> dict[str, Any]:
    """Writes the events of one bucket of files without spans.

    Args:
        split: Splits the rows; None: they are split in time, when they are read.
        with_examples: Whether to write the examples, which TFX's statistics need.
        folder: Folder of the segment.
        bucket: Index of the bucket, by the hash of the user.
        rows: Interactions with a column `position`; all rows of their users.

    Returns:
        `rows` and `duplicates`: numbers of rows kept and dropped; `parts`: facts of the parts.
    """
    kept, n_dropped = _without_duplicates(rows)
    kept = without_working(kept.drop_columns([POSITION.name]))
    tables = [(None, kept)] if split is None else split(kept).items()
    parts = [_write(folder, bucket, table, name, with_examples) for name, table in tables]
    return {"rows": kept.num_rows, "duplicates": n_dropped, "parts": parts}


def write_span_bucket(folder: Path, bucket: int, rows: pa.Table) -> dict[str, Any]:
    """Writes the rows of one bucket of a span, sorted by time; see `write_segment_bucket`.

    Returns:
        `rows` and `duplicates`: numbers of rows kept and dropped; `days`.
    """
    kept, n_dropped = _without_duplicates(rows)
    kept = kept.take(pa.array(np.argsort(kept[TIME.name].to_numpy(), kind="stable")))
    with (
        pa.OSFile(str(folder / _bucket_file(bucket)), "wb") as sink,
        pa.ipc.new_file(sink, kept.schema) as writer,
    ):
        writer.write_table(kept, _BATCH_ROWS)
    return {"rows": kept.num_rows, "duplicates": n_dropped, "days": count_days(kept)}


def _without_duplicates(rows: pa.Table) -> tuple[pa.Table, int]:
    """Drops duplicates; the ids of users and items become dictionaries of one chunk each."""
    for name in ("user_id", "item_id"):
        at, ids = rows.column_names.index(name), rows[name].combine_chunks()
        rows = rows.set_column(at, name, ids.dictionary_encode())
    return drop_duplicates(rows)


def _write(
    folder: Path, bucket: int, rows: pa.Table, split: str | None, with_examples: bool
) -> dict[str, Any]:
    name = f"{bucket:05d}" if split is None else f"{split}-{bucket:05d}"
    return {"split": split, **write_part(folder, name, rows, with_examples)}


def _bucket_file(bucket: int) -> str:
    return f"rows-{bucket:05d}.arrow"


# --- the segments of a window


@dataclasses.dataclass(frozen=True)
class Segment:
    """Some days of the window, and the spans that have rows of these days.

    Attributes:
        first: First UTC day [days since 1970].
        last: Last UTC day [days since 1970].
        spans: Indices of the spans that have rows of these days, ascending.
        n_buckets: Number of buckets, a power of two.
        key: Key of its rows; equal for equal rows.
    """

    first: int
    last: int
    spans: tuple[int, ...]
    n_buckets: int
    key: str


def plan_segments(spans: Sequence[Span], has_impressions: bool = False) -> list[Segment]:
    """Returns the segments of a window, the oldest first; no two share a day.

    Args:
        spans: The spans of the window.
        has_impressions: Whether rows of different days may be one event: then the window is one
            segment.
    """
    days = [sorted({day[0] for b in span.buckets for day in b.get("days", [])}) for span in spans]
    if has_impressions:
        every = [day for some in days for day in some]
        whole = _segment(spans, days, min(every), max(every))
        n_rows = sum(bucket.get("rows", 0) for span in spans for bucket in span.buckets)
        n_buckets = 1 << (n_rows // _BUCKET_ROWS).bit_length()
        return [dataclasses.replace(whole, n_buckets=max(whole.n_buckets, n_buckets))]
    joined: list[list[int]] = []
    for first, last in sorted(block for some in days for block in _blocks(some)):
        if joined and first <= joined[-1][1]:
            joined[-1][1] = max(joined[-1][1], last)
        else:
            joined.append([first, last])
    return [_segment(spans, days, first, last) for first, last in joined]


def _blocks(days: Sequence[int]) -> list[tuple[int, int]]:
    """Returns the first and last day of each block of a span."""
    width = 1
    while len({day // width for day in days}) > _SPAN_BLOCKS:
        width *= 2
    blocks = [list(group) for _, group in itertools.groupby(days, key=lambda day: day // width)]
    return [(block[0], block[-1]) for block in blocks]


def _segment(
    spans: Sequence[Span], days: Sequence[Sequence[int]], first: int, last: int
) -> Segment:
    inside = [at for at, some in enumerate(days) if any(first <= day <= last for day in some)]
    # Ranks decide which of two equal rows comes first, since indices change as the window moves.
    places = sorted(place for at in inside for place in spans[at].file_indices)
    rank = {place: n for n, place in enumerate(places)}
    made_of = [[spans[at].key, [rank[place] for place in spans[at].file_indices]] for at in inside]
    n_buckets = max(len(spans[at].buckets) for at in inside)
    return Segment(first, last, tuple(inside), n_buckets, key_of("segment", first, last, made_of))


def make_segments(
    like: beam.Pipeline | None,
    spans: Sequence[Span],
    plans: Sequence[tuple[Path, Segment]],
    work: Path,
    step: str,
    with_examples: bool,
) -> list[dict[str, Any]]:
    """Writes segments.

    Args:
        like: A pipeline whose runner and options are used; None: threads of this process.
        spans: The spans of the window.
        plans: The segments, each with the folder to write.
        work: Folder for temporary files.
        step: Name of the step, for its progress.
        with_examples: Whether to write the examples, which TFX's statistics need.

    Returns:
        For each segment `parts`: the facts of each bucket; and `dropped`: for each of its
        spans, the number of rows that equal rows of earlier spans.
    """
    tasks = [(at, b) for at, (_, segment) in enumerate(plans) for b in range(segment.n_buckets)]
    progress = StepProgress(work / f"made-{uuid.uuid4().hex}", step, len(tasks))
    # The pieces were read, and not all errors can be sent to other processes.
    read = [dataclasses.replace(span, pieces=(), error=None) for span in spans]
    each = functools.partial(_make_bucket, read, plans, with_examples, progress)
    facts: list[dict[str, Any]] = [
        {"parts": [], "dropped": [0] * len(segment.spans)} for _, segment in plans
    ]
    for at, part, dropped in sorted(run_tasks(like, tasks, each, work), key=lambda made: made[0]):
        facts[at]["parts"].append(part)
        facts[at]["dropped"] = np.add(facts[at]["dropped"], dropped).tolist()
    return facts


def _rows_of(span: Span, segment: Segment, bucket: int) -> pa.Table | None:
    """Returns the rows that a span has in a bucket of a segment, if there are any.

    Their positions are relative to all files of the window.
    """
    own = bucket % len(span.buckets)
    if span.rows is None or not span.buckets[own].get("rows"):
        return None
    with pa.memory_map(str(span.rows.path / _bucket_file(own))) as file:
        rows = pa.ipc.open_file(file).read_all()
    midnights = [segment.first * DAY_S, (segment.last + 1) * DAY_S]
    start, end = np.searchsorted(rows[TIME.name].to_numpy(), midnights)
    rows = rows.slice(start, end - start)
    if segment.n_buckets > len(span.buckets):
        buckets = hash_buckets(rows["user_id"].combine_chunks(), segment.n_buckets)
        rows = rows.filter(pa.array(buckets == bucket))
    position = rows[POSITION.name].to_numpy()
    file_index = position >> POSITION_FILE_BITS
    place = np.array(span.file_indices, np.int64)[file_index]
    moved = position + ((place - file_index) << POSITION_FILE_BITS)
    at = rows.column_names.index(POSITION.name)
    return rows.set_column(at, POSITION, pa.array(moved, POSITION.type))


def _make_bucket(
    spans: Sequence[Span],
    plans: Sequence[tuple[Path, Segment]],
    with_examples: bool,
    progress: StepProgress,
    task: tuple[int, int],
) -> Iterator[tuple[int, dict[str, Any], list[int]]]:
    """Writes a bucket of a segment; of duplicate rows, the one in the first file is kept.

    Yields:
        The index of the segment, the facts of the bucket, and the number of duplicates in each
        of its spans, if it has rows.
    """
    at, bucket = task
    folder, segment = plans[at]
    read = [_rows_of(spans[n], segment, bucket) for n in segment.spans]
    tables = [
        rows.append_column(_SPAN, pa.array(np.full(rows.num_rows, number, np.int32)))
        for number, rows in enumerate(read)
        if rows is not None
    ]
    if tables:
        # There are no duplicates within a span.
        rows = tables[0] if len(tables) == 1 else drop_duplicates(pa.concat_tables(tables))[0]
        before = [0 if table is None else table.num_rows for table in read]
        left = np.bincount(rows[_SPAN].to_numpy(), minlength=len(read))
        rows = without_working(rows.drop_columns([_SPAN, POSITION.name]))
        part = _write(folder, bucket, rows, None, with_examples)
        yield at, part, (np.array(before) - left).tolist()
    progress.advance("events sorted by user")
