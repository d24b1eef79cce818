"""Raw files → typed rows in buckets, dead letters and counts, by Beam.

All sources of a step (the spans of a window, or the files of items) are read by one
pipeline. A file that can't be read to its end fails only its own source: the error is
returned as a value. The graph is a chain without side inputs and second outputs, which not
every distributed runner has.

Beam's local runners hold what they shuffle in the memory of one process. So a worker writes
its rows to a file, ordered by bucket, and what goes through Beam is `(bucket, Spill)`: a few
bytes for a million rows. All workers must reach the folder of the files; that is where the
artifacts are too.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.options.pipeline_options import PipelineOptions, StandardOptions

from recsys.data import dead_letters
from recsys.data.dead_letters import Tally, add_up, letters_tally
from recsys.data.farmhash import hash_buckets
from recsys.data.forgotten import LeaveOut
from recsys.data.sources.pieces import Piece, read_piece
from recsys.data.sources.source import RawBatch
from recsys.data.sources.source_files import unreadable
from recsys.errors import RecsysError, UsageError
from recsys.system.events import emit

_BYTES_OF_A_BUCKET = 64 << 20
_FLUSH_BYTES = 64 << 20
_COUNTS = -1
"""The bucket of what is counted, and of failures."""

Parse = Callable[[RawBatch, int], tuple[pa.RecordBatch, pa.RecordBatch, int | None]]
"""Types a batch of the file at an index: the good rows with a column `position`, the dead
letters, and the earliest time that lies in the future [seconds since 1970, UTC]."""
WriteBucket = Callable[[Path, int, pa.Table], dict[str, Any]]
"""Writes all rows of a bucket into a source's folder; returns its facts as plain JSON."""


def run_tasks(
    like: beam.Pipeline,
    tasks: Iterable[Any],
    each: Callable[[Any], Iterable[Any]],
    work: Path,
    group: Callable[[Any, Iterable[Any]], Iterable[Any]] | None = None,
) -> list[Any]:
    """Runs tasks by Beam; returns what they yield, which is plain JSON, in any order.

    Args:
        like: A pipeline whose runner and options are used.
        tasks: The tasks, at least one; Beam may run one twice.
        each: Yields the results of a task; with `group`, pairs of a key and a value.
        work: Folder of temporary files.
        group: Yields the results of a key and all of its values.
    """
    with beam.Pipeline(runner=like.runner, options=like.options) as pipeline:
        spread = pipeline | beam.Create(list(tasks)) | beam.Reshuffle()
        results = spread | "Each" >> beam.FlatMap(each)
        if group is not None:
            results = results | "ByKey" >> beam.GroupByKey() | "Group" >> beam.FlatMapTuple(group)
        listed = to_json_list(results, work)
    return listed()


def to_json_list(results: beam.PCollection, work: Path) -> Callable[[], list[Any]]:
    """Writes a collection of plain JSON into one file; returns what reads it after the run."""
    file = work / f"results-{uuid.uuid4().hex}.json"
    _ = (
        results
        | "Pair" >> beam.Map(lambda result: (0, result))
        | "ToOne" >> beam.GroupByKey()
        | "List" >> beam.MapTuple(lambda _, all_: file.write_text(json.dumps(list(all_))))
    )
    return lambda: json.loads(file.read_text()) if file.exists() else []


@dataclasses.dataclass(frozen=True)
class ReadPlan:
    """How a source is read.

    Attributes:
        folder: Folder to write.
        letters: Folder of the dead letters.
        pieces: Parts of its files.
    """

    folder: Path
    letters: Path
    pieces: Sequence[Piece]

    @property
    def n_buckets(self) -> int:
        """Buckets of its rows, a power of two: the numbers of two sources divide each other."""
        return 1 << (sum(piece.n_bytes for piece in self.pieces) // _BYTES_OF_A_BUCKET).bit_length()


def read_sources(
    like: beam.Pipeline,
    plans: Sequence[ReadPlan],
    parse: Parse,
    key: str,
    write: WriteBucket,
    work: Path,
    step: str,
    leave_out: LeaveOut | None = None,
) -> list[dict[str, Any]]:
    """Reads sources into their folders.

    Args:
        like: A pipeline whose runner and options are used.
        plans: The sources.
        parse: Types a batch.
        key: Column that all of equal rows share; its hash decides the bucket.
        write: Writes the rows of a bucket.
        work: Folder of temporary files.
        step: Name of the step, for its progress.
        leave_out: Which rows are left out and counted as `forgotten`; None: none.

    Returns:
        Of each source `tally`, `future` and `buckets`, the facts of each bucket (empty for
        one without rows); or `failure`, with `file` and `error`.
    """
    tasks = [(source, piece) for source, plan in enumerate(plans) for piece in plan.pieces]
    n_tasks = len(tasks) + sum(plan.n_buckets for plan in plans)
    progress = StepProgress(work / "read", step, n_tasks)
    targets = [(plan.letters, plan.n_buckets) for plan in plans]
    folders = [plan.folder for plan in plans]
    results = run_tasks(
        like,
        [(number, source, piece) for number, (source, piece) in enumerate(tasks)],
        functools.partial(_read_piece, targets, parse, key, work / "rows", progress, leave_out),
        work,
        functools.partial(_write_bucket, folders, write, progress),
    )
    facts: list[dict[str, Any]] = [{"buckets": [{}] * plan.n_buckets} for plan in plans]
    for source, bucket, result in results:
        if bucket == _COUNTS:
            facts[source].update(result)
        else:
            facts[source]["buckets"][bucket] = result
    return facts


def _read_piece(
    targets: Sequence[tuple[Path, int]],
    parse: Parse,
    key: str,
    spills: Path,
    progress: StepProgress,
    leave_out: LeaveOut | None,
    task: tuple[int, int, Piece],
) -> Iterator[tuple[tuple[int, int], Any]]:
    """Reads a piece into rows by (source, bucket), counts and dead letters."""
    number, source, piece = task
    letters, n_buckets = targets[source]
    has_failed = spills / f"failed-{source}"
    if has_failed.exists():
        return
    writer = SpillWriter(spills)
    rejected = _LetterFile(letters / f"letters-{number:05d}.parquet")
    tallies: list[Tally] = [{"read": 0, "read_by_file": {piece.file: 0}}]
    future: list[int] = []
    try:
        for batch in _batches(piece):
            tallies.append({"read": batch.n_read, "read_by_file": {piece.file: batch.n_read}})
            kept, n_left_out = (batch, 0) if leave_out is None else leave_out(batch)
            tallies += [{"forgotten": n_left_out}] if n_left_out else []
            rows, bad, to_come = parse(kept, piece.file_index)
            tallies += [{"empty_lists": batch.n_empty}] if batch.n_empty else []
            rejected.add(bad)
            future += [] if to_come is None else [to_come]
            buckets = hash_buckets(rows.column(key), n_buckets)
            for bucket, spill in writer.add(buckets, rows):
                yield (source, bucket), spill
    except RecsysError as error:
        if isinstance(error, UsageError):
            raise
        has_failed.touch()
        yield (source, _COUNTS), {"failure": {"file": piece.file, "error": error.to_json()}}
    for bucket, spill in writer.close():
        yield (source, bucket), spill
    yield (source, _COUNTS), {"tally": add_up([*tallies, rejected.close()]), "future": future}
    progress.advance(f"piece-{number}", f"{piece.file} read")


def _batches(piece: Piece) -> Iterator[RawBatch]:
    """Yields the rows of a piece; an error of the system is one of the file."""
    try:
        yield from read_piece(piece)
    except OSError as error:
        raise unreadable(piece.file, error.strerror or str(error)) from error


def _write_bucket(
    folders: Sequence[Path],
    write: WriteBucket,
    progress: StepProgress,
    key: tuple[int, int],
    values: Iterable[Any],
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Writes the rows of a bucket; yields its facts."""
    source, bucket = key
    if bucket == _COUNTS:
        yield source, bucket, _join_counts(list(values))
        return
    yield source, bucket, write(folders[source], bucket, read_spills(values))
    progress.advance(f"bucket-{source}-{bucket}", "rows without duplicates")


def _join_counts(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    failures = [part["failure"] for part in parts if "failure" in part]
    if failures:
        return {"failure": min(failures, key=lambda failure: failure["file"])}
    future = [time for part in parts for time in part["future"]]
    return {"tally": add_up(part["tally"] for part in parts), "future": min(future, default=None)}


class _LetterFile:
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
            self._temporary.replace(self._file)
        return add_up(self._tallies)


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


# --- the shuffle: rows go between workers through files


@dataclasses.dataclass(frozen=True)
class Spill:
    """Rows of one bucket in a file.

    Attributes:
        file: Path of the file.
        offset: Where they begin in it [bytes].
        length: How long they are in it [bytes].
    """

    file: str
    offset: int
    length: int


class SpillWriter:
    """Writes rows by bucket into one new file; memory is bounded by what it holds back.

    Args:
        folder: Folder of the file. Its name is drawn, so that a task that Beam runs
            twice writes two files, and what was grouped refers to one of them.
    """

    def __init__(self, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = str(folder / f"{uuid.uuid4().hex}.arrows")
        self._sink: pa.OSFile | None = None
        self._waiting: list[tuple[np.ndarray, pa.RecordBatch]] = []
        self._n_bytes = 0

    def add(self, buckets: np.ndarray, rows: pa.RecordBatch) -> Iterator[tuple[int, Spill]]:
        """Adds rows with the bucket `[n]` of each; yields the spills written so far."""
        if rows.num_rows:
            self._waiting.append((buckets, rows))
            self._n_bytes += rows.get_total_buffer_size()
        if self._n_bytes >= _FLUSH_BYTES:
            yield from self._flush()

    def close(self) -> Iterator[tuple[int, Spill]]:
        """Yields the last spills."""
        yield from self._flush()
        if self._sink is not None:
            self._sink.close()

    def _flush(self) -> Iterator[tuple[int, Spill]]:
        if not self._waiting:
            return
        bucket = np.concatenate([buckets for buckets, _ in self._waiting])
        rows = pa.Table.from_batches([rows for _, rows in self._waiting]).combine_chunks()
        self._waiting, self._n_bytes = [], 0
        # Sixteen bits are sorted by radix, in linear time.
        key = bucket.astype(np.uint16) if bucket.max() < 1 << 16 else bucket
        order = np.argsort(key, kind="stable")
        ordered = rows.take(pa.array(order))
        used, starts = np.unique(bucket[order], return_index=True)
        ends = [*starts[1:], len(order)]
        if self._sink is None:
            self._sink = pa.OSFile(self._file, "wb")
        for number, start, end in zip(used.tolist(), starts.tolist(), ends, strict=True):
            offset = self._sink.tell()
            with pa.ipc.new_stream(self._sink, rows.schema) as stream:
                stream.write_table(ordered.slice(start, end - start))
            yield number, Spill(self._file, offset, self._sink.tell() - offset)


def read_spills(spills: Iterable[Spill]) -> pa.Table:
    """Returns the rows of spills, in the order of their files; nothing is copied."""
    # In whatever order Beam groups them, the rows come in one order.
    ordered = sorted(spills, key=lambda spill: (spill.file, spill.offset))
    return pa.concat_tables([_read(spill) for spill in ordered])


def _read(spill: Spill) -> pa.Table:
    with pa.memory_map(spill.file) as file:
        file.seek(spill.offset)
        return pa.ipc.open_stream(pa.py_buffer(file.read_buffer(spill.length))).read_all()


LOCAL_RUNNER = "apache_beam.runners.portability.fn_api_runner.FnApiRunner"
_LOCAL_NAMES = {"direct", "switchingdirect", "testdirect", "fnapi"}


def with_local_runner(args: Sequence[str]) -> list[str]:
    """Returns Beam's arguments, ending with `LOCAL_RUNNER` for the DirectRunner or no runner.

    Beam 2.77's DirectRunner tries Prism first: it downloads a program, or takes the file of its
    name in the home folder, and runs it.
    """
    return [*args, f"--runner={LOCAL_RUNNER}"] if is_local(args) else list(args)


def is_local(args: Sequence[str]) -> bool:
    """Whether the arguments mean the runner of this machine, under any of its names."""
    options = PipelineOptions(list(args)).view_as(StandardOptions)
    runner = options.runner or options.DEFAULT_RUNNER
    return runner.rpartition(".")[2].lower().removesuffix("runner") in _LOCAL_NAMES
