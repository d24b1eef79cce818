"""Rows of spans → segments: events sorted by user, and examples, bucket by bucket."""

from __future__ import annotations

import dataclasses
import json
import shutil
import uuid
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.event_times import TIME
from recsys.data.examples import write_examples
from recsys.data.ingest.read_rows import StepProgress, ToOne
from recsys.data.ingest.segment_files import write_events
from recsys.data.ingest.span_rows import SpanPart, join_parts
from recsys.data.split import count_positive_days

EXAMPLES = "examples.parquet"
"""The rows of a bucket, as examples."""

SplitRows = Callable[[pa.Table], dict[str, pa.Table]]
"""Returns the rows of whole users as `train` and `eval`."""


@dataclasses.dataclass(frozen=True)
class SegmentPlan:
    """The inputs and the output folder of a segment.

    Attributes:
        folder: Folder to write.
        parts: The rows that spans have of it.
        n_buckets: Buckets of its rows.
    """

    folder: str
    parts: tuple[SpanPart, ...]
    n_buckets: int


class MakeSegments(beam.PTransform):
    """Writes segments into their folders, and their facts as JSON into a file.

    Args:
        plans: The segments.
        work: Folder of temporary files.
        out: The file.
        step: Name of the step, for its progress.
        split: Splits the rows of each bucket; None: a segment is in one split as a whole,
            which is decided later.
        with_examples: Whether to write the examples, which TFX's statistics need.
    """

    def __init__(
        self,
        plans: Sequence[SegmentPlan],
        work: Path,
        out: Path,
        step: str,
        split: SplitRows | None = None,
        with_examples: bool = True,
    ) -> None:
        super().__init__()
        self._plans, self._out = list(plans), out
        n_tasks = sum(plan.n_buckets for plan in plans)
        progress = StepProgress(work / f"{out.stem}-done", step, n_tasks)
        self._make = _MakeBucket(self._plans, progress, split, with_examples)

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        """Returns a collection of nothing, when the file is written."""
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
    """Writes a bucket of a segment; yields the facts of its parts."""

    def __init__(
        self,
        plans: Sequence[SegmentPlan],
        progress: StepProgress,
        split: SplitRows | None,
        with_examples: bool,
    ) -> None:
        self._plans, self._progress = list(plans), progress
        self._split, self._with_examples = split, with_examples

    def process(self, element: tuple[int, int]) -> Iterator[tuple[int, dict[str, Any]]]:
        at, bucket = element
        plan = self._plans[at]
        rows, dropped = join_parts(plan.parts, bucket, plan.n_buckets)
        facts = [] if rows is None else list(self._write(Path(plan.folder), bucket, rows))
        yield at, {"bucket": bucket, "parts": facts, "dropped": dropped}
        self._progress.advance(f"{at}-{bucket}", "events sorted by user")

    def _write(self, folder: Path, bucket: int, rows: pa.Table) -> Iterator[dict[str, Any]]:
        if self._split is None:
            yield self._write_part(folder, f"{bucket:05d}", None, rows)
            return
        for split, part in self._split(rows).items():
            yield self._write_part(folder, f"{split}-{bucket:05d}", split, part)

    def _write_part(
        self, folder: Path, name: str, split: str | None, rows: pa.Table
    ) -> dict[str, Any]:
        temporary = folder / f".{name}-{uuid.uuid4().hex}"  # Two tries of a task write two.
        temporary.mkdir()
        if self._with_examples:
            with (temporary / EXAMPLES).open("wb") as sink:
                write_examples(rows, sink)
        n_events = write_events(temporary, rows.filter(pc.equal(rows["label"], 1)))
        shutil.rmtree(folder / name, ignore_errors=True)
        temporary.rename(folder / name)
        has_days = TIME.name in rows.column_names
        days = sorted(count_positive_days(rows).items()) if has_days else []
        return {
            "name": name,
            "split": split,
            "rows": rows.num_rows,
            "events": n_events,
            "days": [list(day) for day in days],
        }


def _write_facts(
    made: Sequence[tuple[int, dict[str, Any]]], plans: Sequence[SegmentPlan], out: str
) -> None:
    facts = []
    for number, plan in enumerate(plans):
        of_plan = sorted(
            (piece for at, piece in made if at == number), key=lambda piece: piece["bucket"]
        )
        dropped = [sum(some) for some in zip(*(piece["dropped"] for piece in of_plan), strict=True)]
        parts = [part for piece in of_plan for part in piece["parts"]]
        facts.append({"parts": parts, "dropped": dropped, "n_buckets": plan.n_buckets})
    Path(out).write_text(json.dumps(facts))
