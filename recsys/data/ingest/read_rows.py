"""Raw files → typed rows in buckets, dead letters and counts, by Beam.

All sources of a step (the spans of a window, or the files of items) are read by one
pipeline. A file that can't be read to its end fails only its own source: the error is
returned as a value. The graph is a chain without side inputs and second
outputs, which not every distributed runner has; between workers rows go through files
(`shuffle`).
"""

from __future__ import annotations

import dataclasses
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, NamedTuple

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data import dead_letters
from recsys.data.farmhash import hash_buckets
from recsys.data.ingest.shuffle import SpillWriter, read_spills
from recsys.data.ingest.tally import Tally, add_up, letters_tally, rows_tally
from recsys.data.sources.files import unreadable
from recsys.data.sources.pieces import Piece, read_piece
from recsys.data.sources.source import RawBatch
from recsys.errors import RecsysError, UsageError
from recsys.system.events import emit

_BYTES_OF_A_BUCKET = 64 << 20
_COUNTS = -1
"""The bucket of what is counted, and of failures."""


class Parsed(NamedTuple):
    """A batch, typed.

    Attributes:
        rows: The good rows, with a column `position`.
        rejected: The dead letters.
        future: Earliest time of the batch that lies in the future; None: there is none
            [seconds since 1970, UTC].
    """

    rows: pa.RecordBatch
    rejected: pa.RecordBatch
    future: int | None = None


Parse = Callable[[RawBatch, int], Parsed]
"""Types a batch of the file at an index."""
WriteBucket = Callable[[Path, int, pa.Table], dict[str, Any]]
"""Writes all rows of a bucket into a source's folder; returns its facts as plain JSON."""


@dataclasses.dataclass(frozen=True)
class ReadPlan:
    """How a source is read.

    Attributes:
        folder: Folder to write.
        letters: Folder of the dead letters.
        pieces: Parts of its files.
        n_buckets: Buckets of its rows, a power of two: those of one number divide those
            of a larger one.
    """

    folder: str
    letters: str
    pieces: tuple[Piece, ...]
    n_buckets: int

    @classmethod
    def of(cls, folder: Path, letters: Path, pieces: Sequence[Piece]) -> ReadPlan:
        """Returns the plan for pieces."""
        wanted = sum(piece.n_bytes for piece in pieces) // _BYTES_OF_A_BUCKET
        return cls(str(folder), str(letters), tuple(pieces), 1 << int(wanted).bit_length())


class ReadRows(beam.PTransform):
    """Reads sources into their folders, and writes what was counted into a file.

    The file is JSON: of each source `tally`, `future` and `buckets`, the facts of each
    bucket (empty for one without rows); or `failure`, with `file` and `error`.

    Args:
        plans: The sources.
        parse: Types a batch.
        key: Column that all of equal rows share; its hash decides the bucket.
        write: Writes the rows of a bucket.
        work: Folder of temporary files.
        out: The file.
        step: Name of the step, for its progress.
    """

    def __init__(
        self,
        plans: Sequence[ReadPlan],
        parse: Parse,
        key: str,
        write: WriteBucket,
        work: Path,
        out: Path,
        step: str,
    ) -> None:
        super().__init__()
        self._plans, self._out = list(plans), out
        n_tasks = sum(len(plan.pieces) + plan.n_buckets for plan in plans)
        progress = StepProgress(work / f"{out.stem}-done", step, n_tasks)
        self._read = _ReadPiece(self._plans, parse, key, work / f"{out.stem}-rows", progress)
        self._write = _WriteRows(self._plans, write, progress)

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        """Returns a collection of nothing, when the file is written."""
        pieces = [(at, piece) for at, plan in enumerate(self._plans) for piece in plan.pieces]
        return (
            begin
            | "Pieces" >> beam.Create(list(enumerate(pieces)))
            | "Spread" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(self._read)
            | "ToBuckets" >> beam.GroupByKey()
            | "WriteBuckets" >> beam.ParDo(self._write)
            | "All" >> ToOne()
            | "Facts" >> beam.Map(_write_facts, self._plans, str(self._out))
        )


class ToOne(beam.PTransform):
    """Collects all elements into one list."""

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        """Returns a collection of one list."""
        return (
            elements
            | "Pair" >> beam.Map(lambda element: (0, element))
            | "Group" >> beam.GroupByKey()
            | "List" >> beam.Map(lambda pair: list(pair[1]))
        )


def run_transform(like: beam.Pipeline, transform: beam.PTransform) -> None:
    """Runs a transform by the runner and options of a pipeline, which itself runs once."""
    with beam.Pipeline(runner=like.runner, options=like.options) as pipeline:
        _ = pipeline | type(transform).__name__ >> transform


class _ReadPiece(beam.DoFn):
    """Reads a piece into rows by (source, bucket), counts and dead letters."""

    def __init__(
        self,
        plans: Sequence[ReadPlan],
        parse: Parse,
        key: str,
        spills: Path,
        progress: StepProgress,
    ) -> None:
        self._plans = [(plan.letters, plan.n_buckets) for plan in plans]
        self._parse, self._key = parse, key
        self._spills, self._progress = spills, progress

    def process(
        self, element: tuple[int, tuple[int, Piece]]
    ) -> Iterator[tuple[tuple[int, int], Any]]:
        number, (source, piece) = element
        letters, n_buckets = self._plans[source]
        has_failed = self._spills / f"failed-{source}"
        if has_failed.exists():
            return
        spills = SpillWriter(self._spills)
        rejected = LetterFile(Path(letters) / f"letters-{number:05d}.parquet")
        read: Tally = {"read": 0, "read_by_file": {piece.file: 0}}
        future: list[int] = []
        try:
            for batch in _batches(piece):
                parsed = self._parse(batch, piece.file_index)
                read = add_up([read, rows_tally(batch)])
                rejected.add(parsed.rejected)
                future += [] if parsed.future is None else [parsed.future]
                buckets = hash_buckets(parsed.rows.column(self._key), n_buckets)
                for bucket, spill in spills.add(buckets, parsed.rows):
                    yield (source, bucket), spill
        except RecsysError as error:
            if isinstance(error, UsageError):
                raise
            has_failed.touch()
            failure = {"file": piece.file, "error": error.to_json()}
            yield (source, _COUNTS), {"failure": failure}
        for bucket, spill in spills.close():
            yield (source, bucket), spill
        counted = add_up([read, rejected.close()])
        yield (source, _COUNTS), {"tally": counted, "future": future}
        self._progress.advance(f"piece-{number}", f"{piece.file} read")


def _batches(piece: Piece) -> Iterator[RawBatch]:
    """Yields the rows of a piece; an error of the system is one of the file."""
    try:
        yield from read_piece(piece)
    except OSError as error:
        raise unreadable(piece.file, error.strerror or str(error)) from error


class LetterFile:
    """Dead letters of a piece: a file where there are any, and their tally.

    Args:
        file: The file, which is there whole or not at all.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writer: pq.ParquetWriter | None = None
        self._tallies: list[Tally] = []
        # Two tries of a task write two files.
        self._temporary = file.with_name(f".{file.name}-{uuid.uuid4().hex}")

    def add(self, letters: pa.RecordBatch) -> None:
        """Writes letters."""
        if not letters.num_rows:
            return
        if self._writer is None:
            self._file.parent.mkdir(parents=True, exist_ok=True)
            self._writer = pq.ParquetWriter(self._temporary, dead_letters.SCHEMA)
        self._writer.write_batch(letters)
        self._tallies.append(letters_tally(letters))

    def close(self) -> Tally:
        """Ends the file; returns what was counted."""
        if self._writer is not None:
            self._writer.close()
            # Whole or not there: Beam may run the task again.
            self._temporary.replace(self._file)
        return add_up(self._tallies)


class _WriteRows(beam.DoFn):
    """Writes the rows of a bucket; yields what was counted."""

    def __init__(
        self, plans: Sequence[ReadPlan], write: WriteBucket, progress: StepProgress
    ) -> None:
        self._folders = [plan.folder for plan in plans]
        self._write, self._progress = write, progress

    def process(
        self, element: tuple[tuple[int, int], Iterable[Any]]
    ) -> Iterator[tuple[int, dict[str, Any]]]:
        (source, bucket), parts = element
        if bucket == _COUNTS:
            yield source, _join_counts(list(parts))
            return
        facts = self._write(Path(self._folders[source]), bucket, read_spills(parts))
        yield source, {"bucket": bucket, **facts}
        self._progress.advance(f"bucket-{source}-{bucket}", "rows without duplicates")


def _join_counts(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    failures = [part["failure"] for part in parts if "failure" in part]
    if failures:
        return {"failure": min(failures, key=lambda failure: failure["file"])}
    future = [time for part in parts for time in part["future"]]
    return {"tally": add_up(part["tally"] for part in parts), "future": min(future, default=None)}


def _write_facts(
    counted: Sequence[tuple[int, dict[str, Any]]], plans: Sequence[ReadPlan], out: str
) -> None:
    by_source: list[list[dict[str, Any]]] = [[] for _ in plans]
    for source, facts in counted:
        by_source[source].append(facts)
    joined = [_join(parts, plan.n_buckets) for parts, plan in zip(by_source, plans, strict=True)]
    Path(out).write_text(json.dumps(joined))


def _join(parts: Sequence[dict[str, Any]], n_buckets: int) -> dict[str, Any]:
    counts = next(part for part in parts if "bucket" not in part)
    buckets = {part["bucket"]: part for part in parts if "bucket" in part}
    return {**counts, "buckets": [buckets.get(bucket, {}) for bucket in range(n_buckets)]}


@dataclasses.dataclass(frozen=True)
class StepProgress:
    """Emits how many tasks of a step are done.

    Attributes:
        folder: Folder of the marks, in reach of all workers.
        step: Name of the step.
        total: Tasks of the step.
    """

    folder: Path
    step: str
    total: int

    def advance(self, task: str, text: str) -> None:
        """Marks `task` as done; a task that Beam runs again counts once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / task).touch()
        done = sum(1 for _ in self.folder.iterdir())
        emit("progress", step=self.step, done=done, total=max(self.total, done), text=text)
