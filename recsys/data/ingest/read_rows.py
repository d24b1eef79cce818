"""The files of spans → typed rows and dead letters, kept for the nights to come.

All spans that have to be read are read by one pipeline of Beam. One that can't be read
to its end spoils no other: what is wrong with it is told, and nothing of it is kept.
"""

from __future__ import annotations

import dataclasses
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.ingest.step_progress import Progress
from recsys.data.ingest.shuffle import Spill, SpillWriter, read_spills
from recsys.data.ingest.tally import Tally, add_up, rows_tally
from recsys.data.ingest.unique import LetterFile, ToOne
from recsys.config import InteractionsConfig
from recsys.data.buckets import hash_buckets
from recsys.data.interactions import (
    OUT_OF_TIME,
    interaction_columns,
    parse_interactions,
    raw_times,
)
from recsys.data.ingest.span_rows import write_span_rows
from recsys.data.ingest.window import restrict
from recsys.data.sources.files import file_size, unreadable
from recsys.data.sources.pieces import EMPTY, Piece, plan_pieces, read_piece
from recsys.data.sources.source import RawBatch
from recsys.errors import RecsysError, UsageError

LETTERS = "letters"
"""Folder of a span's dead letters."""

_BYTES_OF_A_BUCKET = 64 << 20
_COUNTS_ALONE = -1
_Key = tuple[int, int]
"""Place of the span, and bucket."""


class BrokenSpanError(Exception):
    """A span can't be read.

    Args:
        file: The file that can't.
        error: What is wrong with it.
    """

    def __init__(self, file: str, error: RecsysError) -> None:
        super().__init__(file, error)
        self.file, self.error = file, error


@dataclasses.dataclass(frozen=True)
class SpanPlan:
    """How a span is read.

    Attributes:
        folder: Folder to write.
        pieces: Parts of its files.
        n_buckets: Buckets of its rows, a power of two: those of one number divide those
            of a larger one.
    """

    folder: str
    pieces: tuple[Piece, ...]
    n_buckets: int

    @classmethod
    def of(cls, folder: Path, pieces: Sequence[Piece]) -> SpanPlan:
        """Returns the plan for pieces."""
        wanted = sum(piece.n_bytes for piece in pieces) // _BYTES_OF_A_BUCKET
        return cls(str(folder), tuple(pieces), 1 << int(wanted).bit_length())


def plan_span(config: InteractionsConfig, paths: Sequence[str]) -> list[Piece]:
    """Returns the parts of a span's files; none if it has no rows.

    Raises:
        BrokenSpanError: A file can't be read, or isn't what the config says; or one of
            several is empty, which looks like one that wasn't written to its end.
        UsageError: The config describes no format.
    """
    pieces: list[Piece] = []
    empty: list[tuple[str, RecsysError]] = []
    for index, path in enumerate(paths):
        try:
            found = plan_pieces(
                restrict(config, [path]), "interactions", interaction_columns(config)
            )
        except UsageError:
            raise
        except RecsysError as error:
            if error.code != EMPTY:
                raise BrokenSpanError(path, error) from error
            empty.append((path, error))
            continue
        pieces += [dataclasses.replace(piece, file_index=index) for piece in found]
    for path, its_error in empty:
        if pieces and file_size(path) == 0:
            raise BrokenSpanError(path, its_error)
    return pieces


class ReadSpans(beam.PTransform):
    """Reads spans into their folders; writes what was counted as `out`.

    Args:
        plans: The spans.
        config: Which column holds what.
        now: The latest time that a row may have [seconds since 1970, UTC].
        work: Folder of what only the work needs.
        out: A file: for each span its facts, or what is wrong with it, as JSON.
        step: Name of the step, for its progress.
    """

    def __init__(
        self,
        plans: Sequence[SpanPlan],
        config: InteractionsConfig,
        now: int,
        work: Path,
        out: Path,
        step: str,
    ) -> None:
        super().__init__()
        self._plans, self._out = list(plans), out
        n_tasks = sum(len(plan.pieces) + plan.n_buckets for plan in plans)
        progress = Progress(work / "spans-done", step, n_tasks)
        self._read = _ReadPiece(self._plans, config, now, work / "rows", progress)
        self._unique = _UniqueRows(self._plans, progress)

    def expand(self, begin: beam.pvalue.PBegin) -> beam.PCollection:
        """Returns a collection of the file alone."""
        pieces = [(at, piece) for at, plan in enumerate(self._plans) for piece in plan.pieces]
        return (
            begin
            | "Pieces" >> beam.Create(list(enumerate(pieces)))
            | "Spread" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(self._read)
            | "ToBuckets" >> beam.GroupByKey()
            | "Unique" >> beam.ParDo(self._unique)
            | "All" >> ToOne()
            | "Write" >> beam.Map(_write_facts, self._plans, str(self._out))
        )


class _ReadPiece(beam.DoFn):
    """Reads a piece into rows by span and bucket, counts, and dead letters."""

    def __init__(
        self,
        plans: Sequence[SpanPlan],
        config: InteractionsConfig,
        now: int,
        spills: Path,
        progress: Progress,
    ) -> None:
        self._spans = [(plan.folder, plan.n_buckets) for plan in plans]
        self._config, self._now = config, now
        self._spills, self._progress = spills, progress

    def process(self, element: tuple[int, tuple[int, Piece]]) -> Iterator[tuple[_Key, Any]]:
        number, (at, piece) = element
        folder, n_buckets = self._spans[at]
        spills = SpillWriter(self._spills)
        letters = LetterFile(Path(folder) / LETTERS / f"letters-{number:05d}.parquet")
        read: Tally = {"read": 0, "read_by_file": {piece.file: 0}}
        future: list[int] = []
        try:
            for batch in _batches(piece):
                rows, rejected = parse_interactions(
                    batch, self._config, self._now, piece.file_index
                )
                read = add_up([read, rows_tally(batch)])
                letters.add(rejected)
                future += self._first_future(batch, rejected)
                buckets = hash_buckets(rows.column("user_id"), n_buckets)
                for bucket, spill in spills.add(buckets, rows):
                    yield (at, bucket), spill
        except BrokenSpanError as broken:
            failure = {"file": broken.file, "error": broken.error.to_json()}
            yield (at, _COUNTS_ALONE), {"failure": failure}
        for bucket, spill in spills.close():
            yield (at, bucket), spill
        counted = add_up([read, letters.close()])
        yield (at, _COUNTS_ALONE), {"tally": counted, "future": future}
        self._progress.advance(f"piece-{number}", f"{piece.file} read")

    def _first_future(self, batch: RawBatch, rejected: pa.RecordBatch) -> list[int]:
        """Returns the earliest time of a batch that is to come: then its row would be good."""
        name = self._config.columns.timestamp
        if name is None or OUT_OF_TIME not in pc.unique(rejected.column("reason")).to_pylist():
            return []
        time = raw_times(batch.columns.column(name), self._config)
        to_come = time.filter(pc.fill_null(pc.greater(time, self._now), False))
        return [pc.min(to_come).as_py()] if len(to_come) else []


class _UniqueRows(beam.DoFn):
    """Writes the rows of a bucket of a span, without duplicates; yields what was counted."""

    def __init__(self, plans: Sequence[SpanPlan], progress: Progress) -> None:
        self._folders = [plan.folder for plan in plans]
        self._progress = progress

    def process(self, element: tuple[_Key, Iterable[Any]]) -> Iterator[tuple[int, dict[str, Any]]]:
        (at, bucket), found = element
        if bucket == _COUNTS_ALONE:
            yield at, _join_counts(found)
            return
        spills: list[Spill] = list(found)
        days, duplicates = write_span_rows(Path(self._folders[at]), bucket, read_spills(spills))
        yield at, {"bucket": bucket, "days": days, "duplicates": duplicates}
        self._progress.advance(f"span-{at}-{bucket}", "rows sorted by time")


def _batches(piece: Piece) -> Iterator[RawBatch]:
    """Yields the rows of a piece.

    Raises:
        BrokenSpanError: The file is damaged, or can't be read.
    """
    try:
        yield from read_piece(piece)
    except UsageError:
        raise
    except RecsysError as error:
        raise BrokenSpanError(piece.file, error) from error
    except OSError as error:
        raise BrokenSpanError(
            piece.file, unreadable(piece.file, error.strerror or str(error))
        ) from error


def _join_counts(found: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    parts = list(found)
    failures = [part["failure"] for part in parts if "failure" in part]
    if failures:
        return {"failure": min(failures, key=lambda one: one["file"])}
    future = [time for part in parts for time in part["future"]]
    return {"tally": add_up(part["tally"] for part in parts), "future": min(future, default=None)}


def _write_facts(
    found: Sequence[tuple[int, dict[str, Any]]], plans: Sequence[SpanPlan], out: str
) -> None:
    by_span: list[list[dict[str, Any]]] = [[] for _ in plans]
    for at, part in found:
        by_span[at].append(part)
    facts = [_facts(parts, plan.n_buckets) for parts, plan in zip(by_span, plans, strict=True)]
    Path(out).write_text(json.dumps(facts))


def _facts(parts: Sequence[dict[str, Any]], n_buckets: int) -> dict[str, Any]:
    counts = next(part for part in parts if "bucket" not in part)
    if "failure" in counts:
        return counts
    buckets = {part["bucket"]: part for part in parts if "bucket" in part}
    days = [buckets[at]["days"] if at in buckets else [] for at in range(n_buckets)]
    return {
        "tally": counts["tally"],
        "future": counts["future"],
        "duplicates": sum(part["duplicates"] for part in buckets.values()),
        "days": days,
    }
