"""Rows of spans → segments: examples, and positives sorted by user, bucket by bucket."""

from __future__ import annotations

import dataclasses
import json
import shutil
import uuid
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.ingest.step_progress import Progress
from recsys.data.ingest.unique import ToOne
from recsys.data.examples import write_examples
from recsys.data.ingest.segments import write_events
from recsys.data.ingest.span_rows import SpanPart, join_parts
from recsys.data.split import count_positive_days

EXAMPLES = "examples.parquet"
"""The rows of a bucket, as examples."""


@dataclasses.dataclass(frozen=True)
class SegmentPlan:
    """What a segment is made of.

    Attributes:
        folder: Folder to write.
        parts: The rows that spans have of it.
        n_buckets: Buckets of its rows.
    """

    folder: str
    parts: tuple[SpanPart, ...]
    n_buckets: int


class MakeSegments(beam.PTransform):
    """Writes segments into their folders; writes what was counted as `out`.

    Args:
        plans: The segments.
        work: Folder of what only the work needs.
        out: A file: for each segment its facts, as JSON.
        step: Name of the step, for its progress.
    """

    def __init__(self, plans: Sequence[SegmentPlan], work: Path, out: Path, step: str) -> None:
        super().__init__()
        self._plans, self._out = list(plans), out
        n_tasks = sum(plan.n_buckets for plan in plans)
        progress = Progress(work / f"{out.stem}-done", step, n_tasks)
        self._make = _MakeBucket(self._plans, progress)

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        """Returns a collection of the file alone."""
        buckets = [
            (at, bucket) for at, plan in enumerate(self._plans) for bucket in range(plan.n_buckets)
        ]
        return (
            begin
            | "Buckets" >> beam.Create(buckets)
            | "Spread" >> beam.Reshuffle()
            | "Make" >> beam.ParDo(self._make)
            | "All" >> ToOne()
            | "Write" >> beam.Map(_write_facts, self._plans, str(self._out))
        )


class _MakeBucket(beam.DoFn):
    """Writes a bucket of a segment; yields what was counted."""

    def __init__(self, plans: Sequence[SegmentPlan], progress: Progress) -> None:
        self._plans, self._progress = list(plans), progress

    def process(self, element: tuple[int, int]) -> Iterator[tuple[int, dict[str, Any]]]:
        at, bucket = element
        plan = self._plans[at]
        rows, dropped = join_parts(plan.parts, bucket, plan.n_buckets)
        facts: dict[str, Any] = {"bucket": bucket, "rows": 0, "events": 0, "days": []}
        if rows is not None and rows.num_rows:
            facts |= _write_bucket(Path(plan.folder), bucket, rows)
        yield at, {**facts, "dropped": dropped}
        self._progress.advance(f"{at}-{bucket}", "segments written")


def _write_bucket(folder: Path, bucket: int, rows: pa.Table) -> dict[str, Any]:
    name = f"{bucket:05d}"
    temporary = folder / f".{name}-{uuid.uuid4().hex}"  # Two tries of a task write two.
    temporary.mkdir()
    with (temporary / EXAMPLES).open("wb") as sink:
        write_examples(rows, sink)
    positives = rows.filter(pc.equal(rows["label"], 1))
    n_events = write_events(temporary, positives)
    shutil.rmtree(folder / name, ignore_errors=True)
    temporary.rename(folder / name)
    days = sorted(count_positive_days(rows).items())
    return {"rows": rows.num_rows, "events": n_events, "days": [list(day) for day in days]}


def _write_facts(
    found: Sequence[tuple[int, dict[str, Any]]], plans: Sequence[SegmentPlan], out: str
) -> None:
    facts = []
    for number, plan in enumerate(plans):
        buckets = sorted((one for at, one in found if at == number), key=lambda one: one["bucket"])
        dropped = [sum(some) for some in zip(*(one["dropped"] for one in buckets), strict=True)]
        facts.append({"buckets": buckets, "dropped": dropped, "n_buckets": plan.n_buckets})
    Path(out).write_text(json.dumps(facts))
