"""Segments: events of some days by bucket, sorted by user, with ids numbered within the bucket.

Duplicate rows have the same time, so they are on the same UTC day, and the cut is a midnight:
days can be read, deduplicated and written independently. The rows of a span are divided into
blocks of days, of one day each if it has few days. Blocks of different spans that share a day
form one segment. So if another span holds a few late rows of a day, that day is made again, but
its neighbours aren't. Files without spans are one segment, and so is a window whose rows have
ids of impressions: rows of one event may have different days. `segment_parts` writes their files.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa

from recsys.data.ingest.cache import key_of
from recsys.data.ingest.read_rows import StepProgress, run_tasks
from recsys.data.ingest.segment_parts import write_part
from recsys.data.ingest.spans import SpanPart, SpanRows, join_parts
from recsys.data.split import DAY_S

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


def plan_segments(spans: Sequence[SpanRows], has_impressions: bool = False) -> list[Segment]:
    """Returns the segments of a window, the oldest first; no two share a day.

    Args:
        spans: The spans of the window.
        has_impressions: Whether rows of different days may be one event: then the window is one
            segment.
    """
    if has_impressions:
        days = sorted({day for span in spans for day in span.days()})
        return [_segment(spans, days[0], days[-1])]
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
            facts.append({"split": split, **write_part(plan.folder, name, part, with_examples)})
    yield at, bucket, facts, dropped
    progress.advance(f"{at}-{bucket}", "events sorted by user")
