"""ItemGen: the raw catalogue → examples of one split, and dead letters."""

import functools

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
from recsys.config import ItemsConfig
from recsys.data.csv_columns import CsvBatch
from recsys.data.csv_source import check_files
from recsys.data.items import drop_duplicate_items, parse_items, raw_columns

SPLIT = "all"


@component(use_beam=True)
def ItemGen(
    examples: OutputArtifact[Examples],
    dead_letters: OutputArtifact[DeadLetters],
    config: Parameter[str],
    files_digest: Parameter[str],
    code: Parameter[str],
    beam_pipeline: BeamComponentParameter[beam.Pipeline] = None,
) -> None:
    """Reads the catalogue and drops bad rows and repeated items.

    Args:
        examples: Parquet examples of one split: `item_id`, `title`, and the raw
            columns of the features.
        dead_letters: The bad rows, and the counts of all.
        config: `ItemsConfig` as canonical JSON.
        files_digest: Digest of the files' contents.
        code: Fingerprint of the code.
        beam_pipeline: Runs the work.
    """
    del files_digest, code
    source = ItemsConfig.model_validate_json(config)
    wanted = raw_columns(source)
    files = check_files(source.files, "items", wanted)
    read = ingestion.ReadUnique(
        files, wanted, functools.partial(_parse, source), "item_id", drop_duplicate_items
    )
    with beam_pipeline as pipeline:
        rows, rejected, *counts = pipeline | "ReadUnique" >> read
        _ = rows | "Write" >> beam.Map(_write, examples.uri, read.n_buckets)
        _ = (rejected, *counts) | ingestion.WriteLetters(dead_letters.uri, {"files": files})
    ingestion.refuse_empty(ingestion.read_summary(dead_letters.uri), "items")
    set_parquet_splits(examples, [SPLIT])


def _parse(
    config: ItemsConfig, batch: CsvBatch, file_index: int
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    return parse_items(batch, config, file_index)


def _write(bucket_rows: tuple[int, pa.Table], uri: str, n_buckets: int) -> None:
    bucket, table = bucket_rows
    ingestion.write_split(table, uri, SPLIT, bucket, n_buckets)
