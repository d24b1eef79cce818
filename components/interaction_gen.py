"""InteractionGen: raw interactions → examples, split by time, and dead letters."""

import functools
import time

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
from tfx.dsl.component.experimental.annotations import (
    BeamComponentParameter,
    OutputArtifact,
    Parameter,
)
from tfx.dsl.component.experimental.decorators import component
from tfx.types.standard_artifacts import Examples

from components import ingestion
from components.artifacts import DeadLetters, set_parquet_splits
from recsys.config import InteractionsConfig, Share, Strict
from recsys.data.csv_columns import CsvBatch
from recsys.data.csv_source import check_files
from recsys.data.interactions import drop_duplicates, parse_interactions
from recsys.data.sources import interaction_columns
from recsys.data.split import MIN_DAYS, choose_cut, count_positive_days, split_at, too_few_days

CUT_PROPERTY = "cut"
"""Custom property of the examples: the moment of the split [seconds since 1970, UTC]."""


class InteractionSource(Strict):
    """The part of the config that decides what InteractionGen makes."""

    interactions: InteractionsConfig
    """Who did what to which item, and when."""
    eval_share: Share
    """Share of the newest positives that is held out [0..1]."""


@component(use_beam=True)
def InteractionGen(
    examples: OutputArtifact[Examples],
    dead_letters: OutputArtifact[DeadLetters],
    config: Parameter[str],
    files_digest: Parameter[str],
    code: Parameter[str],
    beam_pipeline: BeamComponentParameter[beam.Pipeline] = None,
) -> None:
    """Reads interactions, drops bad rows and duplicates, and splits them by time.

    Args:
        examples: Parquet examples, the splits `train` and `eval`.
        dead_letters: The bad rows, and the counts of all.
        config: `InteractionSource` as canonical JSON.
        files_digest: Digest of the files' contents.
        code: Fingerprint of the code.
        beam_pipeline: Runs the work.
    """
    del files_digest, code
    source = InteractionSource.model_validate_json(config)
    interactions = source.interactions
    wanted = interaction_columns(interactions.columns)
    files = check_files(interactions.files, "interactions", wanted)
    parse = functools.partial(_parse, interactions, int(time.time()))
    read = ingestion.ReadUnique(files, wanted, parse, "user_id", drop_duplicates)
    with beam_pipeline as pipeline:
        rows, rejected, *counts = pipeline | "ReadUnique" >> read
        cut = (
            rows
            | "CountDays" >> beam.MapTuple(lambda _, table: count_positive_days(table))
            | "SumDays" >> beam.CombineGlobally(ingestion.sum_counts)
            | "Cut" >> beam.Map(_cut, source.eval_share)
        )
        split = rows | "WriteSplits" >> beam.Map(
            _write_splits, examples.uri, read.n_buckets, beam.pvalue.AsSingleton(cut)
        )
        _ = (rejected, *counts, split) | ingestion.WriteLetters(
            dead_letters.uri, {"files": files}, beam.pvalue.AsSingleton(cut)
        )
    summary = ingestion.read_summary(dead_letters.uri)
    ingestion.refuse_empty(summary, "interactions")
    if summary["cut"] is None:
        raise too_few_days(summary["positives"], summary["positive_days"])
    set_parquet_splits(examples, ["train", "eval"])
    examples.set_int_custom_property(CUT_PROPERTY, summary["cut"])


def _parse(
    config: InteractionsConfig, now: int, batch: CsvBatch, file_index: int
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    return parse_interactions(batch, config.columns, config.positive_at_least, now, file_index)


def _cut(days: dict[int, int], eval_share: float) -> dict[str, int | None]:
    """Returns the cut, `None` where there can't be one, and what it rests on."""
    cut = choose_cut(days, eval_share) if len(days) >= MIN_DAYS else None
    return {"cut": cut, "positives": sum(days.values()), "positive_days": len(days)}


def _write_splits(
    bucket_rows: tuple[int, pa.Table], uri: str, n_buckets: int, cut: dict[str, int | None]
) -> dict[str, int]:
    """Writes a bucket's rows into both splits and returns their numbers."""
    bucket, table = bucket_rows
    counts = {}
    for split, rows in split_at(table, cut["cut"] or 0).items():
        ingestion.write_split(rows, uri, split, bucket, n_buckets)
        counts[split] = rows.num_rows
        counts[f"{split}_positives"] = pc.sum(rows["label"]).as_py() or 0
    return counts
