"""Raw files → typed rows in buckets, dead letters and counts.

One job reads all sources: the spans of a window, items and users. A file that can't be read to its
end fails only its own source: the error is returned as a value.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import uuid
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data import dead_letters
from recsys.data.config import SourceConfig
from recsys.data.dead_letters import Tally, add_up, letters_tally
from recsys.data.forgotten import LeaveOut
from recsys.data.hashes import hash_buckets
from recsys.data.ingest.spills import SpillWriter, read_spills
from recsys.data.ingest.tasks import StepProgress, run_tasks, task_bytes
from recsys.data.sources.pieces import Piece, plan_pieces, read_piece
from recsys.data.sources.source import RawBatch
from recsys.data.sources.source_files import match_files, unreadable
from recsys.errors import RecsysError, UsageError
from recsys.system.files import commit_text

if TYPE_CHECKING:
    import apache_beam as beam

_MOST_BUCKETS = 1024
_COUNTS = -1
"""The bucket of counts and failures."""
_UNFINISHED = ".letters-"

Parse = Callable[[RawBatch, int], tuple[pa.RecordBatch, pa.RecordBatch, int | None]]
"""Types a batch, given the index of its file: returns the good rows with a column `position`, the
dead letters, and the earliest time in the future, if any [seconds since 1970, UTC]."""
WriteBucket = Callable[[Path, int, pa.Table], dict[str, Any]]
"""Writes all rows of a bucket into a source's folder; returns its facts as plain JSON."""


@dataclasses.dataclass(frozen=True)
class ReadPlan:
    """A source to read.

    Attributes:
        step: Name of its step, for the progress.
        folder: Folder to write.
        letters: Folder of the dead letters.
        pieces: The pieces of its files.
        n_buckets: Number of buckets.
        parse: Types a batch.
        key: Column that is equal in duplicate rows; its hash determines the bucket.
        write: Writes the rows of a bucket.
        leave_out: Removes rows, which are counted as `forgotten`; None: removes none.
    """

    step: str
    folder: Path
    letters: Path
    pieces: Sequence[Piece]
    n_buckets: int
    parse: Parse
    key: str
    write: WriteBucket
    leave_out: LeaveOut | None = None


def cut_files(config: SourceConfig, what: str, columns: Sequence[str]) -> list[Piece]:
    """Returns the pieces of a config's files, enough for all cores; see `plan_pieces`."""
    n_bytes = sum(file.size for file in match_files(config, what))
    return plan_pieces(config, what, columns, task_bytes(n_bytes))


def count_buckets(pieces: Sequence[Piece]) -> int:
    """Returns a number of buckets, a power of two: of two such numbers, one divides the other."""
    n_bytes = sum(piece.n_bytes for piece in pieces)
    return min(1 << (max(n_bytes - 1, 0) // task_bytes(n_bytes)).bit_length(), _MOST_BUCKETS)


def read_sources(
    like: beam.Pipeline | None, plans: Sequence[ReadPlan], work: Path
) -> list[dict[str, Any]]:
    """Reads sources into their folders.

    Args:
        like: A pipeline whose runner and options are used; None: threads of this process.
        plans: The sources.
        work: Folder for temporary files.

    Returns:
        For each source `tally`, `future` and `buckets`, the facts of each bucket (empty for
        one without rows); or `failure`, with `file` and `error`.
    """
    totals: Counter[str] = Counter()
    for plan in plans:
        totals[plan.step] += len(plan.pieces) + plan.n_buckets
    progress = {step: StepProgress(work / f"{step}.done", step, n) for step, n in totals.items()}
    targets = [dataclasses.replace(plan, pieces=()) for plan in plans]
    results = run_tasks(
        like,
        [(at, n, piece) for at, plan in enumerate(plans) for n, piece in enumerate(plan.pieces)],
        functools.partial(_read_piece, targets, progress, work),
        work,
        functools.partial(_write_bucket, targets, progress),
    )
    for plan in plans:
        for file in plan.letters.glob(f"{_UNFINISHED}*"):  # Of tasks that were killed.
            file.unlink()
    facts: list[dict[str, Any]] = [{"buckets": [{}] * plan.n_buckets} for plan in plans]
    for at, bucket, result in results:
        if bucket == _COUNTS:
            facts[at].update(result)
        else:
            facts[at]["buckets"][bucket] = result
    return facts


def _read_piece(
    plans: Sequence[ReadPlan],
    progress: Mapping[str, StepProgress],
    work: Path,
    task: tuple[int, int, Piece],
) -> Iterator[tuple[tuple[int, int], Any]]:
    """Reads a piece; yields rows by (source, bucket) and counts, and writes dead letters."""
    at, number, piece = task
    plan = plans[at]
    for failure in work.glob(f"failed-{at}-*"):  # Its task may have been lost with its worker.
        yield (at, _COUNTS), {"failure": json.loads(failure.read_text())}
        return
    writer = SpillWriter(work / "rows", plan.n_buckets)
    plan.letters.mkdir(parents=True, exist_ok=True)
    # Beam may run a task twice, in parallel.
    temporary = plan.letters / f"{_UNFINISHED}{uuid.uuid4().hex}"
    rejected = pq.ParquetWriter(temporary, dead_letters.SCHEMA)
    tallies: list[Tally] = [{"read": 0, "read_by_file": {piece.file: 0}}]
    future: list[int] = []
    try:
        for batch in _batches(piece):
            kept, n_left_out = plan.leave_out(batch) if plan.leave_out else (batch, 0)
            counts = {"empty_lists": batch.n_empty, "forgotten": n_left_out}
            tallies.append({"read": batch.n_read, "read_by_file": {piece.file: batch.n_read}})
            tallies.append({name: n for name, n in counts.items() if n})
            rows, bad, to_come = plan.parse(kept, piece.file_index)
            if bad.num_rows:
                rejected.write_batch(bad)
                tallies.append(letters_tally(bad))
            future += [] if to_come is None else [to_come]
            buckets = hash_buckets(rows.column(plan.key).dictionary_encode(), plan.n_buckets)
            for bucket, spill in writer.add(buckets, rows):
                yield (at, bucket), spill
    except RecsysError as error:
        if isinstance(error, UsageError):
            raise
        facts = {"file": piece.file, "error": error.to_json()}
        commit_text(json.dumps(facts), work / f"failed-{at}-{number}")
        yield (at, _COUNTS), {"failure": facts}
    for bucket, spill in writer.flush():
        yield (at, bucket), spill
    rejected.close()
    tally = add_up(tallies)
    if "rejected" in tally:
        temporary.replace(plan.letters / f"letters-{number:05d}.parquet")
    else:
        temporary.unlink()
    yield (at, _COUNTS), {"piece": number, "tally": tally, "future": future}
    progress[plan.step].advance(f"{piece.file} read")


def _batches(piece: Piece) -> Iterator[RawBatch]:
    """Yields the rows of a piece; turns an OSError into an error of the file."""
    try:
        yield from read_piece(piece)
    except OSError as error:
        raise unreadable(piece.file, error.strerror or str(error)) from error


def _write_bucket(
    plans: Sequence[ReadPlan],
    progress: Mapping[str, StepProgress],
    key: tuple[int, int],
    values: Iterable[Any],
) -> Iterator[tuple[int, int, dict[str, Any]]]:
    """Writes the rows of a bucket; yields its facts."""
    at, bucket = key
    if bucket == _COUNTS:
        yield at, bucket, _join_counts(list(values))
        return
    plan = plans[at]
    yield at, bucket, plan.write(plan.folder, bucket, read_spills(values))
    progress[plan.step].advance("rows without duplicates")


def _join_counts(parts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    failures = [part["failure"] for part in parts if "failure" in part]
    if failures:
        return {"failure": min(failures, key=lambda failure: failure["file"])}
    parts = sorted(parts, key=lambda part: part["piece"])  # An engine returns them in any order.
    future = [time for part in parts for time in part["future"]]
    return {"tally": add_up(part["tally"] for part in parts), "future": min(future, default=None)}
