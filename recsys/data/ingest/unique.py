"""From raw files to unique rows, dead letters and counts, as Beam transforms.

Record batches go from function to function; between workers they go through files
(`recsys.data.ingest.shuffle`). The graphs are chains without side inputs and second outputs,
which not every distributed runner has.
"""

from __future__ import annotations

import dataclasses
import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.ingest.step_progress import Progress
from recsys.data.ingest.shuffle import Spill, SpillWriter, read_spills, write_spill
from recsys.data.ingest.tally import Tally, add_up, letters_tally, rows_tally
from recsys.data import dead_letters
from recsys.data.buckets import hash_buckets
from recsys.data.examples import write_examples
from recsys.data.sources.pieces import Piece, read_piece
from recsys.data.sources.source import RawBatch
from recsys.errors import RecsysError

_BYTES_OF_A_BUCKET = 64 << 20

Parse = Callable[[RawBatch, int], tuple[pa.RecordBatch, pa.RecordBatch]]
"""Turns a batch of the file at an index into typed rows and dead letters."""
Drop = Callable[[pa.Table], tuple[pa.Table, int]]
"""Returns the rows of a bucket that are no duplicates, and how many were."""
Describe = Callable[[pa.Table], Tally]
"""Returns what else is counted of unique rows."""


@dataclasses.dataclass(frozen=True)
class Part:
    """What a worker hands on: rows of a bucket, or counts, or both.

    Attributes:
        bucket: The bucket; -1 for counts alone.
        rows: Where the rows are.
        tally: What was counted.
    """

    bucket: int
    rows: Spill | None
    tally: Tally


_COUNTS_ALONE = -1


class Ingestion:
    """The plan of reading one source: its pieces, its buckets, and where work is kept.

    Args:
        pieces: Parts of files, one for a worker at a time.
        letters: Folder of the `DeadLetters` artifact.
        step: Name of the step, for its progress.
    """

    def __init__(self, pieces: Sequence[Piece], letters: str, step: str) -> None:
        self.pieces = list(pieces)
        self.letters = Path(letters)
        self.work = self.letters / "work"
        n_bytes = sum(piece.n_bytes for piece in self.pieces)
        self.n_buckets = 1 + n_bytes // _BYTES_OF_A_BUCKET
        """Buckets that the rows are shuffled in."""
        n_tasks = len(self.pieces) + 2 * self.n_buckets
        self.progress = Progress(self.work / "done", step, n_tasks)

    def clean(self) -> None:
        """Removes what only the work needed."""
        remove(self.work)


class ReadUnique(beam.PTransform):
    """Reads files into typed rows without duplicates: `Part`s, one a bucket and more.

    Args:
        plan: What to read.
        parse: Types a batch.
        key: Column that all of equal rows share; it decides the bucket.
        drop: Returns the rows kept of a bucket, and how many were dropped; the first
            of equal rows stays.
        describe: What else is counted.
    """

    def __init__(
        self, plan: Ingestion, parse: Parse, key: str, drop: Drop, describe: Describe
    ) -> None:
        super().__init__()
        self._plan = plan
        self._read = _ReadPiece(plan, parse, key)
        self._unique = _UniqueRows(plan, drop, describe)

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        """Returns the parts."""
        return (
            begin
            | "Pieces" >> beam.Create(list(enumerate(self._plan.pieces)))
            | "Spread" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(self._read)
            | "ToBuckets" >> beam.GroupByKey()
            | "Unique" >> beam.ParDo(self._unique)
        )


class ToOne(beam.PTransform):
    """Brings all elements together into one list."""

    def expand(self, elements: beam.PCollection) -> beam.PCollection:
        """Returns a collection of one list."""
        return (
            elements
            | "Pair" >> beam.Map(lambda element: (0, element))
            | "Group" >> beam.GroupByKey()
            | "List" >> beam.Map(lambda pair: list(pair[1]))
        )


class _ReadPiece(beam.DoFn):
    """Reads a piece into `(bucket, Part)`; its dead letters go to a file of their own."""

    def __init__(self, plan: Ingestion, parse: Parse, key: str) -> None:
        self._parse, self._key = parse, key
        self._n_buckets, self._progress = plan.n_buckets, plan.progress
        self._spills = plan.work / "rows"
        self._letters = plan.letters / "dead_letters"

    def process(self, element: tuple[int, Piece]) -> Iterator[tuple[int, Part]]:
        number, piece = element
        spills = SpillWriter(self._spills)
        letters = LetterFile(self._letters / f"letters-{number:05d}.parquet")
        read: Tally = {"read": 0, "read_by_file": {piece.file: 0}}
        for batch in read_piece(piece):
            rows, rejected = self._parse(batch, piece.file_index)
            read = add_up([read, rows_tally(batch)])
            letters.add(rejected)
            buckets = hash_buckets(rows.column(self._key), self._n_buckets)
            yield from _parts(spills.add(buckets, rows))
        yield from _parts(spills.close())
        yield _COUNTS_ALONE, Part(_COUNTS_ALONE, None, add_up([read, letters.close()]))
        self._progress.advance(f"piece-{number}", f"{piece.file} read")


class LetterFile:
    """Dead letters of a piece: a file where there are any, and their tally.

    Args:
        file: The file, which is there whole or not at all.
    """

    def __init__(self, file: Path) -> None:
        self._file = file
        self._writer: pq.ParquetWriter | None = None
        self._tallies: list[Tally] = []
        self._token = uuid.uuid4().hex  # Two tries of a task write two files.

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

    @property
    def _temporary(self) -> Path:
        return self._file.with_name(f".{self._file.name}-{self._token}")


class _UniqueRows(beam.DoFn):
    """Joins the rows of a bucket and keeps the first of equal ones."""

    def __init__(self, plan: Ingestion, drop: Drop, describe: Describe) -> None:
        self._drop, self._describe, self._progress = drop, describe, plan.progress
        self._folder = plan.work / "unique"

    def process(self, element: tuple[int, Iterable[Part]]) -> Iterator[Part]:
        bucket, parts = element
        if bucket == _COUNTS_ALONE:
            yield Part(bucket, None, add_up(part.tally for part in parts))
            return
        found = read_spills(part.rows for part in parts if part.rows is not None)
        kept, n_dropped = self._drop(found)
        tally = {"good": kept.num_rows, "duplicates": n_dropped, **self._describe(kept)}
        yield Part(bucket, write_spill(self._folder, kept), tally)
        self._progress.advance(f"bucket-{bucket}", f"{kept.num_rows:,} rows without duplicates")


def _parts(spilled: Iterable[tuple[int, Spill]]) -> Iterator[tuple[int, Part]]:
    for bucket, spill in spilled:
        yield bucket, Part(bucket, spill, {})


def read_rows(part: Part) -> pa.Table:
    """Returns the rows of a part."""
    return read_spills([] if part.rows is None else [part.rows])


def write_split(table: pa.Table, uri: str, split: str, bucket: int, n_buckets: int) -> None:
    """Writes the rows of a bucket as a file of the split's examples."""
    folder = Path(uri) / f"Split-{split}"
    folder.mkdir(parents=True, exist_ok=True)
    file = folder / f"data-{bucket:05d}-of-{n_buckets:05d}.parquet"
    temporary = file.with_name(f".{file.name}-{uuid.uuid4().hex}")
    with temporary.open("wb") as sink:
        write_examples(table, sink)
    temporary.replace(file)


def remove(folder: Path) -> None:
    """Removes a folder, where there is one."""
    shutil.rmtree(folder, ignore_errors=True)


def read_json(file: Path) -> Any:
    """Returns what a pipeline of Beam has written as JSON."""
    return json.loads(file.read_text())


def zero_summary(tallies: Iterable[Tally]) -> Tally:
    """Returns the sum of what workers counted, with zeros for what nobody did."""
    zero: Tally = {"read": 0, "good": 0, "rejected": 0, "duplicates": 0}
    nothing: Tally = {"by_reason": {}, "examples": {}}
    return add_up([zero, nothing, *tallies])


def write_summary(tallies: Iterable[Tally], uri: str, files: Sequence[str]) -> Tally:
    """Adds up what all workers counted, writes it as `summary.json` and returns it."""
    summary = {**zero_summary(tallies), "files": list(files)}
    (Path(uri) / "dead_letters").mkdir(parents=True, exist_ok=True)
    (Path(uri) / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def read_summary(uri: str) -> dict[str, Any]:
    """Returns the summary of a `DeadLetters` artifact."""
    return json.loads((Path(uri) / "summary.json").read_text())


def refuse_empty(summary: dict[str, Any], what: str, cure: str = "") -> None:
    """Raises an error if no row could be used.

    Args:
        summary: What was counted.
        what: The part of the config that names the source.
        cure: What would mend it, where that is known.
    """
    if summary["good"]:
        return
    examples = [letters[0] for letters in summary["examples"].values() if letters]
    found = dict(summary["by_reason"])
    for one in examples[:1]:
        found["first"] = f"{one['file']}, line {one['line']}: {one['row'][:80]!r}"
    raise RecsysError(
        "R206",
        f"The {what} must have at least one good row of {summary['read']}.",
        cure or f"Correct data.{what}.",
        found,
    )
