"""Raw items or users → examples of one split, and dead letters."""

from __future__ import annotations

import functools
from collections.abc import Iterator

import apache_beam as beam
import pyarrow as pa

from recsys.data.ingest import unique
from recsys.data.ingest.tally import Tally
from recsys.data.ingest.unique import Ingestion, Part, ToOne
from recsys.data.entities import (
    EntityConfig,
    drop_duplicate_entities,
    id_column,
    parse_entities,
    raw_columns,
)
from recsys.data.sources.files import match_files
from recsys.data.sources.pieces import plan_pieces
from recsys.data.sources.source import RawBatch

SPLIT = "all"
STEPS = {"items": "ItemGen", "users": "UserGen"}
"""Name of the step that reads each side."""


def ingest(
    what: str, config: EntityConfig, examples: str, letters: str, beam_pipeline: beam.Pipeline
) -> None:
    """Writes the examples and the dead letters of a source.

    Args:
        what: `items` or `users`.
        config: What to read.
        examples: Folder of the split.
        letters: Folder of the dead letters.
        beam_pipeline: Runs the work.

    Raises:
        RecsysError: No row is good, or a column holds what its feature can't be made of.
    """
    pieces = plan_pieces(config, what, raw_columns(config))
    plan = Ingestion(pieces, letters, STEPS[what])
    parse = functools.partial(_parse, config)
    drop = functools.partial(drop_duplicate_entities, config=config)
    read = unique.ReadUnique(plan, parse, id_column(config), drop, _nothing_more)
    files = list(dict.fromkeys(file.path for file in match_files(config, what)))
    try:
        with beam_pipeline as pipeline:
            _ = (
                pipeline
                | "ReadUnique" >> read
                | "Write" >> beam.ParDo(_Write(examples, plan))
                | "AllWritten" >> ToOne()
                | "Summary" >> beam.Map(unique.write_summary, letters, files)
            )
    finally:
        plan.clean()
    unique.refuse_empty(unique.read_summary(letters), what)


def _parse(
    config: EntityConfig, batch: RawBatch, file_index: int
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    return parse_entities(batch, config, file_index)


def _nothing_more(rows: pa.Table) -> Tally:
    del rows
    return {}


class _Write(beam.DoFn):
    """Writes a bucket's rows as a file of the examples; yields what was counted."""

    def __init__(self, examples: str, plan: Ingestion) -> None:
        self._examples, self._n_buckets = examples, plan.n_buckets

    def process(self, part: Part) -> Iterator[Tally]:
        if part.rows is not None:
            rows = unique.read_rows(part)
            unique.write_split(rows, self._examples, SPLIT, part.bucket, self._n_buckets)
        yield part.tally
