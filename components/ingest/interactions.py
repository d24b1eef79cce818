"""Raw interactions → examples, split by time, and dead letters."""

from __future__ import annotations

import functools
import time
from collections.abc import Iterator, Sequence
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc

from components.ingest import unique
from components.ingest.tally import Tally, add_up
from components.ingest.unique import Ingestion, Part, ToOne
from recsys.config import InteractionsConfig, Share, Strict
from recsys.data.interactions import (
    drop_duplicates,
    interaction_columns,
    parse_interactions,
    suggest_unit,
)
from recsys.data.sources.files import match_files
from recsys.data.sources.pieces import Piece, plan_pieces, read_piece
from recsys.data.sources.raw_batch import RawBatch
from recsys.data.split import MIN_DAYS, choose_cut, count_positive_days, split_at, too_few_days

SPLITS = ("train", "eval")
_STEP = "InteractionGen"
_DAYS = "days"


class InteractionSource(Strict):
    """The part of the config that decides what InteractionGen makes."""

    interactions: InteractionsConfig
    """Who did what to which item, and when."""
    eval_share: Share
    """Share of the newest positives that is held out [0..1]."""
    max_rejected_share: Share = 1.0
    """Highest share of rejected rows of one span that isn't broken [0..1]."""

    def with_files(self, files: Sequence[str]) -> InteractionSource:
        """Returns the same with Parquet files in the place of the query."""
        given = {"files": tuple(files), "format": "parquet", "query": None}
        return self.model_copy(update={"interactions": self.interactions.model_copy(update=given)})


def ingest(
    source: InteractionSource, examples: str, letters: str, beam_pipeline: beam.Pipeline
) -> Tally:
    """Writes the examples and the dead letters of a source.

    Args:
        source: What to read.
        examples: Folder of the splits.
        letters: Folder of the dead letters.
        beam_pipeline: Runs the work.

    Returns:
        What was counted: the summary of the dead letters.

    Raises:
        RecsysError: No row is good, or the positives can't be split by time.
    """
    config = source.interactions
    pieces = plan_pieces(config, "interactions", interaction_columns(config))
    plan = Ingestion(pieces, letters, _STEP)
    parse = functools.partial(_parse, config, int(time.time()))
    read = unique.ReadUnique(plan, parse, "user_id", drop_duplicates, _count_days)
    write = _WriteSplits(examples, plan)
    files = list(dict.fromkeys(file.path for file in match_files(config, "interactions")))
    try:
        with beam_pipeline as pipeline:
            _ = (
                pipeline
                | "ReadUnique" >> read
                | "AllRead" >> ToOne()
                | "Cut" >> beam.FlatMap(_with_cut, source.eval_share)
                | "SpreadBuckets" >> beam.Reshuffle()
                | "WriteSplits" >> beam.ParDo(write)
                | "AllWritten" >> ToOne()
                | "Summary" >> beam.Map(unique.write_summary, letters, files)
            )
    finally:
        plan.clean()
    summary = unique.read_summary(letters)
    if not summary["good"]:
        unique.refuse_empty(summary, "interactions", unit_cure(pieces[0], config))
    if summary["cut"] is None:
        raise too_few_days(summary["positives"], summary["positive_days"])
    return summary


def unit_cure(piece: Piece, config: InteractionsConfig) -> str:
    """Returns what to do if the times are in another unit than the config says."""
    batches = (batch for batch in read_piece(piece) if batch.columns.num_rows)
    found = next((suggest_unit(one, config, int(time.time())) for one in batches), None)
    if found is None:
        return ""
    return f"Set data.interactions.timestamp_unit to {found}: read so, its times are good."


def _parse(
    config: InteractionsConfig, now: int, batch: RawBatch, file_index: int
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    return parse_interactions(batch, config, now, file_index)


def _count_days(rows: pa.Table) -> Tally:
    return {_DAYS: count_positive_days(rows)}


def _with_cut(parts: list[Part], eval_share: float) -> Iterator[tuple[int | None, Part]]:
    """Yields each bucket with the cut, `None` where there can't be one, and all counts."""
    total = add_up(part.tally for part in parts)
    days = total.pop(_DAYS, {})
    cut = choose_cut(days, eval_share) if len(days) >= MIN_DAYS else None
    facts = {"positives": sum(days.values()), "positive_days": len(days)}
    yield cut, Part(-1, None, {**total, **facts, "cut": cut})
    for part in parts:
        if part.rows is not None:
            yield cut, Part(part.bucket, part.rows, {})


class _WriteSplits(beam.DoFn):
    """Writes a bucket's rows into both splits; yields what was counted."""

    def __init__(self, examples: str, plan: Ingestion) -> None:
        self._examples, self._n_buckets = Path(examples), plan.n_buckets
        self._progress = plan.progress

    def process(self, element: tuple[int | None, Part]) -> Iterator[Tally]:
        cut, part = element
        if part.rows is None:
            yield part.tally
            return
        counts: Tally = {}
        for split, rows in split_at(unique.read_rows(part), cut or 0).items():
            unique.write_split(rows, str(self._examples), split, part.bucket, self._n_buckets)
            counts[split] = rows.num_rows
            counts[f"{split}_positives"] = pc.sum(rows["label"]).as_py() or 0
        self._progress.advance(f"split-{part.bucket}", "examples written")
        yield counts
