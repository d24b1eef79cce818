"""From CSV files to unique rows, dead letters and counts, as Beam transforms.

Whole Arrow batches travel through Beam, never single rows: a shuffle carries
`(bucket, RecordBatch)`.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.parquet as pq
from apache_beam.io.filesystems import FileSystems
from apache_beam.pvalue import TaggedOutput

from recsys.data import dead_letters
from recsys.data.buckets import hash_buckets, split_by_bucket
from recsys.data.csv_columns import CsvBatch
from recsys.data.csv_source import read_batches
from recsys.data.examples import write_examples
from recsys.data.interactions import NO_TIME, OUT_OF_TIME
from recsys.errors import RecsysError

REJECTED, COUNTS = "rejected", "counts"
_BYTES_OF_A_BUCKET = 64 << 20

_CURES = dict.fromkeys(
    (NO_TIME, OUT_OF_TIME),
    "Times are whole seconds since 1970, UTC: convert dates, divide milliseconds by 1000.",
)
"""What to do where no row is good, by the most frequent reason."""

Parse = Callable[[CsvBatch, int], tuple[pa.RecordBatch, pa.RecordBatch]]
"""Turns a batch of the file at an index into typed rows and dead letters."""
Drop = Callable[[pa.Table], tuple[pa.Table, int]]
"""Returns the rows of a bucket that are no duplicates, and how many were."""


class ReadCsv(beam.DoFn):
    """Reads a file `(index, path)` into `(bucket, typed rows)`.

    Outputs `REJECTED` (dead letters) and `COUNTS` (`{name: rows}`) beside.

    Args:
        columns: Columns to read.
        parse: Types a batch.
        key: Column that decides the bucket.
        n_buckets: Number of buckets.
    """

    def __init__(self, columns: Sequence[str], parse: Parse, key: str, n_buckets: int) -> None:
        self._columns = list(columns)
        self._parse = parse
        self._key = key
        self._n_buckets = n_buckets

    def process(self, element: tuple[int, str]) -> Iterator[Any]:
        """Yields what the class says, a batch at a time."""
        index, file = element
        for batch in read_batches(file, self._columns):
            rows, rejected = self._parse(batch, index)
            counts = {"read": batch.n_read, "rejected": rejected.num_rows}
            yield TaggedOutput(COUNTS, counts)
            if rejected.num_rows:
                yield TaggedOutput(REJECTED, rejected)
            bucket = hash_buckets(rows.column(self._key), self._n_buckets)
            yield from split_by_bucket(rows, bucket)


class DropDuplicates(beam.DoFn):
    """Joins the batches of a bucket and keeps the first of equal rows.

    Outputs `COUNTS` beside.

    Args:
        drop: Returns the rows kept, and how many were dropped.
    """

    def __init__(self, drop: Drop) -> None:
        self._drop = drop

    def process(self, element: tuple[int, Iterable[pa.RecordBatch]]) -> Iterator[Any]:
        """Yields `(bucket, unique rows)` and their counts."""
        bucket, batches = element
        kept, n_dropped = self._drop(pa.Table.from_batches(list(batches)))
        yield TaggedOutput(COUNTS, {"good": kept.num_rows, "duplicates": n_dropped})
        yield bucket, kept


class ReadUnique(beam.PTransform):
    """Reads files into typed rows without duplicates.

    Args:
        files: The files; of equal rows the one of the earlier file stays.
        columns: Columns to read.
        parse: Types a batch.
        key: Column that all of equal rows share; it decides the bucket.
        drop: Returns the rows kept of a bucket, and how many were dropped.
    """

    def __init__(
        self, files: Sequence[str], columns: Sequence[str], parse: Parse, key: str, drop: Drop
    ) -> None:
        super().__init__()
        self._files = list(files)
        self._drop = drop
        self.n_buckets = 1 + sum(Path(file).stat().st_size for file in files) // _BYTES_OF_A_BUCKET
        """Buckets that the rows are shuffled in."""
        self._read = ReadCsv(columns, parse, key, self.n_buckets)

    def expand(self, begin: beam.pvalue.PBegin) -> tuple[beam.PCollection, ...]:
        """Returns `(bucket, unique rows)`, the dead letters, and two collections of counts."""
        read = (
            begin
            | "Files" >> beam.Create(list(enumerate(self._files)))
            | "Spread" >> beam.Reshuffle()
            | "Read" >> beam.ParDo(self._read).with_outputs(REJECTED, COUNTS, main="rows")
        )
        unique = (
            read.rows
            | "ToBuckets" >> beam.GroupByKey()
            | "DropDuplicates"
            >> beam.ParDo(DropDuplicates(self._drop)).with_outputs(COUNTS, main="rows")
        )
        return unique.rows, read.rejected, read.counts, unique.counts


def sum_counts(counts: Iterable[dict[Any, int]]) -> dict[Any, int]:
    """Returns the sum of dicts of numbers, key by key."""
    total: Counter[Any] = Counter()
    for one in counts:
        total.update(one)
    return dict(total)


def write_split(table: pa.Table, uri: str, split: str, bucket: int, n_buckets: int) -> None:
    """Writes the rows of a bucket as a file of the split's examples."""
    name = f"data-{bucket:05d}-of-{n_buckets:05d}.parquet"
    with FileSystems.create(FileSystems.join(uri, f"Split-{split}", name)) as sink:
        write_examples(table, sink)


class WriteLetters(beam.PTransform):
    """Writes dead letters `dead_letters.parquet`, and the counts `summary.json` with them.

    Args:
        uri: Folder of the `DeadLetters` artifact.
        *rest: Dicts of more entries of the summary, or side inputs of such.
    """

    def __init__(self, uri: str, *rest: object) -> None:
        super().__init__()
        self._uri = uri
        self._rest = rest

    def expand(self, rejected_and_counts: tuple[beam.PCollection, ...]) -> beam.PCollection:
        """Takes the dead letters, and any number of collections of counts."""
        rejected, *counts = rejected_and_counts
        total = (
            counts
            | "FlattenCounts" >> beam.Flatten()
            | "SumCounts" >> beam.CombineGlobally(sum_counts)
        )
        return (
            total.pipeline
            | "Once" >> beam.Create([self._uri])
            | "Write"
            >> beam.Map(
                _write_letters,
                beam.pvalue.AsList(rejected),
                beam.pvalue.AsSingleton(total),
                *self._rest,
            )
        )


def read_summary(uri: str) -> dict[str, Any]:
    """Returns the summary of a `DeadLetters` artifact."""
    return json.loads((Path(uri) / "summary.json").read_text())


def refuse_empty(summary: dict[str, Any], what: str) -> None:
    """Raises an error if no row could be used."""
    if summary.get("good", 0) == 0:
        reasons = summary["by_reason"]
        most_often = max(reasons, key=reasons.__getitem__, default="")
        raise RecsysError(
            "R206",
            f"The {what} must have at least one good row of {summary['read']}.",
            _CURES.get(most_often, f"Correct the columns of data.{what}."),
            reasons,
        )


def _write_letters(
    uri: str, rejected: list[pa.RecordBatch], counts: dict[str, int], *rest: dict[str, Any]
) -> None:
    letters = pa.Table.from_batches(rejected, dead_letters.SCHEMA)
    letters = letters.sort_by([("file", "ascending"), ("line", "ascending")])
    with FileSystems.create(FileSystems.join(uri, "dead_letters.parquet")) as sink:
        pq.write_table(letters, sink)
    zero = {"read": 0, "good": 0, "rejected": 0, "duplicates": 0}
    summary = {**zero, **counts, "by_reason": dead_letters.count_reasons(letters)}
    for more in rest:
        summary.update(more)
    with FileSystems.create(FileSystems.join(uri, "summary.json")) as sink:
        sink.write((json.dumps(summary, indent=1) + "\n").encode())
