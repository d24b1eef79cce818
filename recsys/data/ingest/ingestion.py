"""Raw interactions → examples, split into two parts, and dead letters."""

from __future__ import annotations

import functools
import time
from collections.abc import Collection, Iterator, Sequence
from pathlib import Path

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.ingest import unique
from recsys.data.ingest.tally import Tally, add_up
from recsys.data.ingest.unique import Ingestion, Part, ToOne
from recsys.config import InteractionsConfig, Share, Split, Strict
from recsys.data.interactions import (
    drop_duplicates,
    interaction_columns,
    parse_interactions,
    suggest_unit,
)
from recsys.data.sources.files import held_out_files, match_files
from recsys.data.sources.pieces import Piece, plan_pieces, read_piece
from recsys.data.sources.source import RawBatch
from recsys.data.split import (
    DAY_S,
    MIN_DAYS,
    choose_cut,
    count_positive_days,
    nothing_on_one_side,
    split_at,
    split_rows,
    too_few_days,
)
from recsys.data.split_rule import SplitRule

SPLITS = ("train", "eval")
_STEP = "InteractionGen"
_DAYS = "days"


class InteractionSource(Strict):
    """The part of the config that decides what InteractionGen makes."""

    interactions: InteractionsConfig
    """Who did what to which item, and when."""
    eval_share: Share
    """Share of the positives that is held out by time or at random [0..1]."""
    split: Split = "time"
    """Which positives are held out."""
    max_rejected_share: Share = 1.0
    """Highest share of rejected rows of one span that isn't broken [0..1]."""

    def with_files(self, files: Sequence[str]) -> InteractionSource:
        """Returns the same with Parquet files in the place of the query."""
        given = {"files": tuple(files), "format": "parquet", "query": None}
        return self.model_copy(update={"interactions": self.interactions.model_copy(update=given)})

    @property
    def rule(self) -> SplitRule:
        """How the rows are split."""
        share = self.eval_share if self.split == "random" else None
        return SplitRule(self.split, self.interactions.ordered_by, share)

    def split_rows(self, rows: pa.Table, cut: int) -> dict[str, pa.Table]:
        """Returns the rows of whole users as `train` and `eval`, by `cut` if by time."""
        if self.split == "time":
            return split_at(rows, cut)
        return split_rows(rows, self.split, self.eval_share)


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
        RecsysError: No row is good, or the positives can't be split.
    """
    config = source.interactions
    pieces = plan_pieces(config, "interactions", interaction_columns(config))
    plan = Ingestion(pieces, letters, _STEP)
    held_out = held_out_files(config, "interactions")
    parse = functools.partial(_parse, config, int(time.time()), held_out)
    describe = functools.partial(_count, source)
    read = unique.ReadUnique(plan, parse, "user_id", drop_duplicates, describe)
    write = _WriteSplits(source, examples, plan)
    files = list(dict.fromkeys(file.path for file in match_files(config, "interactions")))
    try:
        with beam_pipeline as pipeline:
            _ = (
                pipeline
                | "ReadUnique" >> read
                | "AllRead" >> ToOne()
                | "Cut" >> beam.FlatMap(_with_cut, source)
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
    _refuse_one_sided(source.split, summary)
    return summary


def _refuse_one_sided(split: Split, summary: Tally) -> None:
    """Raises an error if a part has no positives."""
    if summary["cut"] is None:
        raise too_few_days(summary["positives"], summary["positive_days"])
    parts = (summary.get("train_positives", 0), summary.get("eval_positives", 0))
    if split != "time" and not all(parts):
        raise nothing_on_one_side(split, *parts)


def unit_cure(piece: Piece, config: InteractionsConfig) -> str:
    """Returns what to do if the times are in another unit than the config says."""
    batches = (batch for batch in read_piece(piece) if batch.columns.num_rows)
    found = next((suggest_unit(one, config, int(time.time())) for one in batches), None)
    if found is None:
        return ""
    return f"Set data.interactions.timestamp_unit to {found}: read so, its times are good."


def _parse(
    config: InteractionsConfig,
    now: int,
    held_out: Collection[str],
    batch: RawBatch,
    file_index: int,
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    return parse_interactions(batch, config, now, file_index, held_out)


def _count(source: InteractionSource, rows: pa.Table) -> Tally:
    """Counts positives, and those of each day: all of them, or those trained on."""
    positives = pc.sum(rows["label"]).as_py() or 0
    if source.interactions.ordered_by != "time":
        return {"positives": positives}
    timed = rows if source.split == "time" else source.split_rows(rows, 0)["train"]
    return {"positives": positives, _DAYS: count_positive_days(timed)}


def _with_cut(parts: list[Part], source: InteractionSource) -> Iterator[tuple[int | None, Part]]:
    """Yields each bucket with the cut, `None` where there can't be one, and all counts."""
    total = add_up(part.tally for part in parts)
    days = total.pop(_DAYS, {})
    cut = _cut(source, days)
    facts = {"positives": total.get("positives", 0), "split": source.split}
    facts |= {"order": source.interactions.ordered_by, "cut": cut}
    if source.split == "time":
        facts["positive_days"] = len(days)
    yield cut, Part(-1, None, {**total, **facts})
    for part in parts:
        if part.rows is not None:
            yield cut, Part(part.bucket, part.rows, {})


def _cut(source: InteractionSource, days: dict[int, int]) -> int | None:
    """Returns the moment that the training data end; 0 without times.

    Args:
        source: How the rows are split.
        days: Positives of each day, as `_count` counts them.
    """
    if source.split == "time":
        return choose_cut(days, source.eval_share) if len(days) >= MIN_DAYS else None
    return (max(days) + 1) * DAY_S if days else 0


class _WriteSplits(beam.DoFn):
    """Writes a bucket's rows into both splits; yields what was counted."""

    def __init__(self, source: InteractionSource, examples: str, plan: Ingestion) -> None:
        self._source = source
        self._examples, self._n_buckets = Path(examples), plan.n_buckets
        self._progress = plan.progress

    def process(self, element: tuple[int | None, Part]) -> Iterator[Tally]:
        cut, part = element
        if part.rows is None:
            yield part.tally
            return
        counts: Tally = {}
        for split, rows in self._source.split_rows(unique.read_rows(part), cut or 0).items():
            unique.write_split(rows, str(self._examples), split, part.bucket, self._n_buckets)
            counts[split] = rows.num_rows
            counts[f"{split}_positives"] = pc.sum(rows["label"]).as_py() or 0
        self._progress.advance(f"split-{part.bucket}", "examples written")
        yield counts
