"""ItemGen and UserGen: raw items or users → examples of one split, and dead letters."""

import functools
from collections.abc import Iterator

import apache_beam as beam
import pyarrow as pa
from tfx.dsl.component.experimental.annotations import (
    BeamComponentParameter,
    OutputArtifact,
    Parameter,
)
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Examples

from components import ingestion
from components.artifacts import DeadLetters, set_parquet_splits
from components.ingestion import Ingestion, Part, ToOne
from components.tally import Tally
from recsys.config import ItemsConfig, Strict, UsersConfig
from recsys.data.entities import (
    EntityConfig,
    drop_duplicate_entities,
    id_column,
    parse_entities,
    raw_columns,
)
from recsys.data.sources.pieces import plan_pieces
from recsys.data.sources.raw_batch import RawBatch

SPLIT = "all"
STEPS = {"items": "ItemGen", "users": "UserGen"}
"""Name of the step that reads each side."""


class EntitySource(Strict):
    """The part of the config on items, on users, or on both."""

    items: ItemsConfig | None = None
    """The catalogue."""
    users: UsersConfig | None = None
    """What is known of the users."""


@component(use_beam=True)
def EntityGen(
    examples: OutputArtifact[Examples],
    dead_letters: OutputArtifact[DeadLetters],
    config: Parameter[str],
    files_digest: Parameter[str],
    code: Parameter[str],
    beam_pipeline: BeamComponentParameter[beam.Pipeline] = None,
) -> None:
    """Reads items or users, and drops bad rows and those that come again.

    Args:
        examples: Parquet examples of one split: the id, the title of items, and the
            columns of the features, see docs/features.md.
        dead_letters: The bad rows, and the counts of all.
        config: `EntitySource` as canonical JSON, one side of it.
        files_digest: Digest of the files' contents.
        code: Fingerprint of the code.
        beam_pipeline: Runs the work.
    """
    del files_digest, code
    source = EntitySource.model_validate_json(config)
    what, entities = ("users", source.users) if source.items is None else ("items", source.items)
    ingest(what, entities, examples.uri, dead_letters.uri, beam_pipeline)
    set_parquet_splits(examples, [SPLIT])


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
    read = ingestion.ReadUnique(plan, parse, id_column(config), drop, _nothing_more)
    files = list(dict.fromkeys(piece.file for piece in pieces))
    try:
        with beam_pipeline as pipeline:
            _ = (
                pipeline
                | "ReadUnique" >> read
                | "Write" >> beam.ParDo(_Write(examples, plan))
                | "AllWritten" >> ToOne()
                | "Summary" >> beam.Map(ingestion.write_summary, letters, files)
            )
    finally:
        plan.clean()
    ingestion.refuse_empty(ingestion.read_summary(letters), what)


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
            rows = ingestion.read_rows(part)
            ingestion.write_split(rows, self._examples, SPLIT, part.bucket, self._n_buckets)
        yield part.tally
