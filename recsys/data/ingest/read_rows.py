"""Raw files → typed rows in buckets, dead letters and counts, with Beam.

One pipeline reads all sources of a step (the spans of a window, or the files of items). A file
that can't be read to its end fails only its own source: the error is returned as a value. The
graph is a chain without side inputs and multiple outputs, which not every distributed runner
supports.

Beam's local runners keep shuffled data in the memory of one process. So a worker writes its rows
to a file, ordered by bucket, and only `(bucket, Spill)` goes through Beam: a few bytes for a
million rows. All workers must have access to the folder of these files, which is beside the
artifacts.

The rows of a BigQuery query are written as Parquet files first. Beam's own source runs the query
and reads the result with the Storage API.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import os
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from decimal import Decimal
from pathlib import Path
from typing import Any

import apache_beam as beam
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.options.pipeline_options import (
    DirectOptions,
    PipelineOptions,
    StandardOptions,
)

from recsys.data import dead_letters
from recsys.data.dead_letters import Tally, add_up, letters_tally
from recsys.data.forgotten import LeaveOut
from recsys.data.hashes import hash_buckets
from recsys.data.sources.pieces import Piece, read_piece
from recsys.data.sources.source import RawBatch
from recsys.data.sources.source_files import unreadable
from recsys.errors import RecsysError, UsageError
from recsys.system.events import emit

_BUCKET_BYTES = 64 << 20
_SPILL_BYTES = 64 << 10
_LEAST_BUFFER, _MOST_BUFFER = 16 << 20, 64 << 20
_COUNTS = -1
"""The bucket of counts and failures."""

Parse = Callable[[RawBatch, int], tuple[pa.RecordBatch, pa.RecordBatch, int | None]]
"""Types a batch, given the index of its file: returns the good rows with a column `position`, the
dead letters, and the earliest time in the future, if any [seconds since 1970, UTC]."""
WriteBucket = Callable[[Path, int, pa.Table], dict[str, Any]]
"""Writes all rows of a bucket into a source's folder; returns its facts as plain JSON."""


def run_tasks(
    like: beam.Pipeline,
    tasks: Iterable[Any],
    each: Callable[[Any], Iterable[Any]],
    work: Path,
    group: Callable[[Any, Iterable[Any]], Iterable[Any]] | None = None,
) -> list[Any]:
    """Runs tasks with Beam; returns their results, which are plain JSON, in any order.

    Args:
        like: A pipeline whose runner and options are used.
        tasks: The tasks, at least one; Beam may run a task twice.
        each: Yields the results of a task; with `group`, pairs of a key and a value.
        work: Folder for temporary files.
        group: Yields the results of a key and all of its values.
    """
    with beam.Pipeline(runner=like.runner, options=_on_all_cores(like)) as pipeline:
        spread = pipeline | beam.Create(list(tasks)) | beam.Reshuffle()
        results = spread | "Each" >> beam.FlatMap(each)
        if group is not None:
            results = results | "ByKey" >> beam.GroupByKey() | "Group" >> beam.FlatMapTuple(group)
        listed = to_json_list(results, work)
    return listed()


def _on_all_cores(like: beam.Pipeline) -> PipelineOptions:
    """Returns the options of a pipeline; the local runner gets a thread per core by default.

    Arrow and NumPy, which do most of the work, release the GIL.
    """
    options = like.options
    direct = options.view_as(DirectOptions)
    is_default = (direct.direct_num_workers, direct.direct_running_mode) == (1, "in_memory")
    if not (is_default and is_local([f"--runner={type(like.runner).__name__}"])):
        return options
    threads = {"direct_num_workers": os.cpu_count(), "direct_running_mode": "multi_threading"}
    return PipelineOptions.from_dictionary(
        {**options.get_all_options(drop_default=True), **threads}
    )


def to_json_list(results: beam.PCollection, work: Path) -> Callable[[], list[Any]]:
    """Writes a collection of plain JSON to a file; returns a function that reads it afterwards."""
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
    """The input and output of a source.

    Attributes:
        folder: Folder to write.
        letters: Folder of the dead letters.
        pieces: The pieces of its files.
    """

    folder: Path
    letters: Path
    pieces: Sequence[Piece]

    @property
    def n_buckets(self) -> int:
        """Number of buckets, a power of two: so of two sources' numbers, one divides the other."""
        return 1 << (sum(piece.n_bytes for piece in self.pieces) // _BUCKET_BYTES).bit_length()


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
        key: Column that is equal in duplicate rows; its hash determines the bucket.
        write: Writes the rows of a bucket.
        work: Folder for temporary files.
        step: Name of the step, for its progress.
        leave_out: Removes rows, which are counted as `forgotten`; None: removes none.

    Returns:
        For each source `tally`, `future` and `buckets`, the facts of each bucket (empty for
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
    """Reads a piece; yields spills by (source, bucket) and counts, and writes dead letters."""
    number, source, piece = task
    letters, n_buckets = targets[source]
    has_failed = spills / f"failed-{source}"
    if has_failed.exists():
        return
    writer = SpillWriter(spills, n_buckets)
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
            buckets = hash_buckets(rows.column(key).dictionary_encode(), n_buckets)
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
    """Yields the rows of a piece; turns an OSError into an error of the file."""
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
    """The file with the dead letters of a piece, if there are any, and their tally.

    Args:
        file: The file; it is written atomically.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writer: pq.ParquetWriter | None = None
        self._tallies: list[Tally] = []
        # Beam may run a task twice, in parallel.
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
        """Completes the file; returns the tally."""
        if self._writer is not None:
            self._writer.close()
            self._temporary.replace(self._file)
        return add_up(self._tallies)


@dataclasses.dataclass(frozen=True)
class StepProgress:
    """Reports the number of finished tasks of a step.

    Attributes:
        folder: Folder of the marks, which all workers can access.
        step: Name of the step.
        total: Number of tasks.
    """

    folder: Path
    step: str
    total: int

    def advance(self, task: str, text: str) -> None:
        """Marks `task` as done; a task that Beam runs twice counts once."""
        self.folder.mkdir(parents=True, exist_ok=True)
        (self.folder / task).touch()
        done = sum(1 for _ in self.folder.iterdir())
        emit("progress", step=self.step, done=done, total=max(self.total, done), text=text)


# --- the shuffle: workers exchange rows through files


@dataclasses.dataclass(frozen=True)
class Spill:
    """Rows of one bucket in a file.

    Attributes:
        file: Path of the file.
        offset: Position of the rows in the file [bytes].
        length: Size of the rows in the file [bytes].
    """

    file: str
    offset: int
    length: int


class SpillWriter:
    """Writes rows by bucket to one new file, with a bounded buffer in memory.

    Args:
        folder: Folder of the file. The name is random, so that a task that Beam runs twice
            writes two files, and the spills refer to one of them.
        n_buckets: Number of buckets; with more, the buffer is larger, so that spills aren't tiny.
    """

    def __init__(self, folder: Path, n_buckets: int) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self._file = str(folder / f"{uuid.uuid4().hex}.arrows")
        self._sink: pa.OSFile | None = None
        self._waiting: list[tuple[np.ndarray, pa.RecordBatch]] = []
        self._n_bytes = 0
        self._most_bytes = min(max(n_buckets * _SPILL_BYTES, _LEAST_BUFFER), _MOST_BUFFER)

    def add(self, buckets: np.ndarray, rows: pa.RecordBatch) -> Iterator[tuple[int, Spill]]:
        """Adds rows with their buckets `[n]`; yields the spills that were written."""
        if rows.num_rows:
            self._waiting.append((buckets, rows))
            self._n_bytes += rows.get_total_buffer_size()
        if self._n_bytes >= self._most_bytes:
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
        # NumPy sorts 16-bit integers by radix, in linear time.
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
    """Returns the rows of spills, in the order of their files, without a copy."""
    # The result doesn't depend on the order in which Beam groups them.
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

    Beam 2.77's DirectRunner tries Prism first: it downloads a program, or takes a file of that
    name in the home folder, and runs it.
    """
    return [*args, f"--runner={LOCAL_RUNNER}"] if is_local(args) else list(args)


def is_local(args: Sequence[str]) -> bool:
    """Returns whether the arguments select the local runner, under any of its names."""
    options = PipelineOptions(list(args)).view_as(StandardOptions)
    runner = options.runner or options.DEFAULT_RUNNER
    return runner.rpartition(".")[2].lower().removesuffix("runner") in _LOCAL_NAMES


# --- BigQuery

_LEAST_ROWS, _BATCH_ROWS = 10_000, 200_000
_NEEDED = "data.interactions.query needs Google's clients and credentials for BigQuery."


def stage_query(query: str, folder: Path, options: PipelineOptions) -> list[str]:
    """Runs a query and writes its rows as Parquet files.

    Args:
        query: Standard SQL.
        folder: Folder to write to, created if missing.
        options: Options of the Beam pipeline; `--project` is the project that is billed.

    Returns:
        The files, sorted.

    Raises:
        RecsysError: There are no credentials or no client, the query fails, or it
            returns no row.
    """
    reader = _reader(query)
    try:
        return stage_rows(reader, folder, options)
    except RecsysError:
        raise
    except Exception as error:
        raise RecsysError(
            "R249",
            "BigQuery must answer data.interactions.query.",
            "Try the query in the console; beam.args may need --project=NAME. The run's log"
            " has the whole answer.",
            f"{type(error).__name__}: {_first_line(error)}",
        ) from error


def stage_rows(reader: beam.PTransform, folder: Path, options: PipelineOptions) -> list[str]:
    """Writes rows as Parquet files; returns the files, sorted.

    Args:
        reader: Yields rows as maps from column to value.
        folder: Folder to write to, created if missing.
        options: Options of the Beam pipeline.

    Raises:
        RecsysError: There are no rows.
    """
    folder.mkdir(parents=True, exist_ok=True)
    with beam.Pipeline(options=options) as pipeline:
        batches = pipeline | "Read" >> reader | beam.BatchElements(_LEAST_ROWS, _BATCH_ROWS)
        files = batches | "Write" >> beam.FlatMap(functools.partial(_write_batch, folder))
        # Files of a worker that died before it reported them are not included.
        listed = to_json_list(files, folder)
    written = sorted(listed())
    if not written:
        raise RecsysError(
            "R249",
            "data.interactions.query must return at least one row.",
            "Try the query in the BigQuery console.",
        )
    return written


def to_record_batch(rows: Iterable[Mapping[str, Any]]) -> pa.RecordBatch:
    """Returns rows as columns, with decimals as numbers and other types inferred by Arrow.

    A column with values of several types becomes text.
    """
    rows = list(rows)
    names = dict.fromkeys(name for row in rows for name in row)
    columns = {name: _column([row.get(name) for row in rows]) for name in names}
    return pa.RecordBatch.from_pydict(columns)


def _column(values: list[Any]) -> pa.Array:
    plain = [_plain(value) for value in values]
    try:
        return pa.array(plain)
    except (pa.ArrowInvalid, pa.ArrowTypeError):
        return pa.array([None if value is None else str(value) for value in plain], pa.string())


def _plain(value: Any) -> Any:
    """Returns a decimal as int or float: BigQuery's NUMERIC holds both."""
    if isinstance(value, Decimal):
        return int(value) if value == value.to_integral_value() else float(value)
    return value


def _write_batch(folder: Path, rows: Sequence[Mapping[str, Any]]) -> Iterator[str]:
    file = folder / f"rows-{uuid.uuid4().hex}.parquet"
    pq.write_table(pa.Table.from_batches([to_record_batch(rows)]), file)
    yield str(file)


def _reader(query: str) -> beam.PTransform:
    """Returns Beam's BigQuery source; checks that its client and credentials are available."""
    try:
        import google.auth
        import google.cloud.bigquery_storage  # Required by DIRECT_READ.
        from apache_beam.io.gcp.bigquery import ReadFromBigQuery
    except ImportError as error:
        cure = "Install them with `uv pip install 'apache-beam[gcp]'`."
        raise RecsysError("R248", _NEEDED, cure, error.name) from error
    try:
        google.auth.default()
    except google.auth.exceptions.DefaultCredentialsError as error:
        cure = (
            "Log in with `gcloud auth application-default login`, or name a key file in"
            " GOOGLE_APPLICATION_CREDENTIALS."
        )
        raise RecsysError("R248", _NEEDED, cure, _first_line(error)) from error
    return ReadFromBigQuery(
        query=query, use_standard_sql=True, method=ReadFromBigQuery.Method.DIRECT_READ
    )


def _first_line(error: Exception) -> str:
    return next((line.strip() for line in str(error).splitlines() if line.strip()), "")
