"""Raw interactions → events by user in two splits, dead letters and counts.

Files without a span are one span, which is read anew each time. Of a window of spans
each run reads those that are new or have changed: what was made of the others is
cached, and linked into the result, which is that of a run from scratch.
"""

from __future__ import annotations

import functools
import json
import shutil
import time
from collections.abc import Collection, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc

from recsys.config import InteractionsConfig, Share, Split, Strict
from recsys.data.ingest.cache import ContentCache, key_of, sweep
from recsys.data.ingest.make_segments import MakeSegments, SegmentPlan, SplitRows
from recsys.data.ingest.outputs import MadeSegment, Outputs
from recsys.data.ingest.read_rows import Parsed, ReadPlan, ReadRows, run_transform
from recsys.data.ingest.segment_plan import (
    Segment,
    SpanDays,
    plan_segments,
    split_segment,
    whole_segment,
)
from recsys.data.ingest.span_rows import SpanPart, day_totals, write_span_rows
from recsys.data.ingest.span_state import WindowSpan, find_span, settings_of, span_of_files
from recsys.data.ingest.tally import Tally, refuse_empty, zero_summary
from recsys.data.ingest.window import Digests, Seen, has_spans, read_window
from recsys.data.interactions import OUT_OF_TIME, parse_interactions, raw_times, suggest_unit
from recsys.data.sources.files import held_out_files
from recsys.data.sources.pieces import Piece, read_piece
from recsys.data.sources.source import RawBatch
from recsys.data.split import (
    DAY_S,
    choose_cut,
    nothing_on_one_side,
    split_at,
    split_rows,
)
from recsys.data.split_rule import SplitRule
from recsys.errors import RecsysError
from recsys.system.events import emit

SPLITS = ("train", "eval")
STEP = "InteractionGen"


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
        changed = {"files": tuple(files), "format": "parquet", "query": None}
        interactions = self.interactions.model_copy(update=changed)
        return self.model_copy(update={"interactions": interactions})

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


def ingest_interactions(
    source: InteractionSource,
    examples: str | Path,
    letters: str | Path,
    beam_pipeline: beam.Pipeline,
    cache: Path | None = None,
    code: str = "",
    with_examples: bool = True,
) -> Tally:
    """Writes the events, examples and dead letters of interactions.

    Args:
        source: What to read.
        examples: Folder of the events, and of the examples of both splits.
        letters: Folder of the dead letters.
        beam_pipeline: Runs the work, with its runner and options.
        cache: Folder of the content cache of spans; None: no cache.
        code: Fingerprint of the code: results of other code aren't reused.
        with_examples: Whether to write the examples, which TFX's statistics need.

    Returns:
        What was counted: the summary of the dead letters.

    Raises:
        RecsysError: A file can't be read, a span is broken and `bad_spans` is `stop`, no
            row is good, or the positives can't be split.
    """
    is_window = has_spans(source.interactions)
    kind = _WindowRun if is_window else _FilesRun
    work = Path(letters) / "work"
    kept = ContentCache(work / "cache", is_temporary=True)
    if is_window and cache is not None:
        kept = ContentCache(cache)
    run = kind(source, Path(letters), beam_pipeline, kept, code, with_examples)
    try:
        return run.run(Path(examples))
    finally:
        run.clean()


class _Run:
    """One ingestion.

    Args:
        source: What to read.
        letters: Folder of the dead letters.
        beam_pipeline: Runs the work.
        cache: What is kept.
        code: Fingerprint of the code.
        with_examples: Whether examples are written.
    """

    def __init__(
        self,
        source: InteractionSource,
        letters: Path,
        beam_pipeline: beam.Pipeline,
        cache: ContentCache,
        code: str,
        with_examples: bool,
    ) -> None:
        self._source, self._config = source, source.interactions
        self._letters, self._work = letters, letters / "work"
        self._beam, self._cache = beam_pipeline, cache
        self._settings = [*settings_of(self._config, code), *([] if with_examples else ["bare"])]
        self._with_examples = with_examples
        self._now = int(time.time())

    def clean(self) -> None:
        """Removes temporary files and partial outputs."""
        self._cache.remove_unfinished()
        shutil.rmtree(self._work, ignore_errors=True)

    def run(self, examples: Path) -> Tally:
        """Reads what is new, and writes everything."""
        raise NotImplementedError

    def _read(self, spans: Sequence[WindowSpan], by_time: bool = True) -> None:
        """Reads spans, and keeps those that could be."""
        if not spans:
            return
        folders = [self._cache.begin(span.name) for span in spans]
        plans = [
            ReadPlan.of(folder, folder / "letters", span.pieces)
            for folder, span in zip(folders, spans, strict=True)
        ]
        out = self._work / "spans.json"
        held_out = tuple(held_out_files(self._config, "interactions"))
        parse = functools.partial(_parse, self._config, self._now, held_out)
        write = functools.partial(write_span_rows, by_time=by_time)
        run_transform(self._beam, ReadRows(plans, parse, "user_id", write, self._work, out, STEP))
        for span, folder, facts in zip(spans, folders, _read_json(out), strict=True):
            if "failure" in facts:
                failure = facts["failure"]
                span.fail(failure["file"], RecsysError.from_json(failure["error"]))
            else:
                span.rows = self._cache.commit(folder, span.name, facts)

    def _refuse_all_bad(self, spans: Sequence[WindowSpan]) -> None:
        """Raises the error of a source without a good row, with a hint on wrong time units."""
        read = [span for span in spans if span.rows is not None]
        if not read or any(span.n_good for span in read):
            return
        summary = zero_summary(span.tally for span in read)
        pieces = next((span.pieces for span in read if span.pieces), ())
        cure = _unit_cure(pieces[0], self._config) if pieces else ""
        refuse_empty({**summary, "good": 0}, "interactions", cure)

    def _make(
        self,
        segments: Sequence[Segment],
        parts: Sequence[tuple[SpanPart, ...]],
        spans: Sequence[WindowSpan],
        label: str,
        split: SplitRows | None = None,
    ) -> list[MadeSegment]:
        """Returns segments with their files; those that aren't cached are made."""
        names = [f"segment-{key_of(self._settings, segment.key)}" for segment in segments]
        cached = {name: self._cache.find(name) for name in names}
        missing = [at for at, name in enumerate(names) if cached[name] is None]
        if missing:
            out = self._work / f"{label}.json"
            begun = [self._cache.begin(names[at]) for at in missing]
            plans = [
                SegmentPlan(str(folder), parts[at], segments[at].n_buckets)
                for at, folder in zip(missing, begun, strict=True)
            ]
            make = MakeSegments(plans, self._work, out, STEP, split, self._with_examples)
            run_transform(self._beam, make)
            for at, folder, facts in zip(missing, begun, _read_json(out), strict=True):
                cached[names[at]] = self._cache.commit(folder, names[at], facts)
        return [
            MadeSegment(segment, made, tuple(spans[s] for s in segment.spans), at not in missing)
            for at, (segment, name) in enumerate(zip(segments, names, strict=True))
            if (made := cached[name]) is not None
        ]


class _FilesRun(_Run):
    """Reads files without spans: one span, one segment, split row by row."""

    def run(self, examples: Path) -> Tally:
        """Reads everything anew, and writes everything."""
        self._work.mkdir(parents=True, exist_ok=True)
        span = span_of_files(self._config)
        self._read([span], by_time=False)
        if span.cause is not None:
            raise span.cause
        self._refuse_all_bad([span])
        source, by_time = self._source, self._source.split == "time"
        cut = choose_cut(_positives(span), source.eval_share) if by_time else 0
        segment = whole_segment(span.key, len(span.files.paths), len(span.buckets))
        slices = tuple((0, bucket.get("rows", 0)) for bucket in span.buckets)
        part = SpanPart(str(span.path), segment.ranks[0], slices)
        split = functools.partial(source.split_rows, cut=cut)
        (made,) = self._make([segment], [(part,)], [span], "whole", split)
        if not by_time:
            trained = made.days("train")
            cut = (max(trained) + 1) * DAY_S if trained else 0
        output = Outputs(examples, self._letters, [span], [made], self._config)
        self._refuse_one_sided(made)
        return output.write(cut, source.rule)

    def _refuse_one_sided(self, made: MadeSegment) -> None:
        """Raises an error if a part has no positives."""
        events = [made.n_events(split) for split in SPLITS]
        if not all(events):
            raise nothing_on_one_side(self._source.split, *events)


class _WindowRun(_Run):
    """Reads a window of spans."""

    def run(self, examples: Path) -> Tally:
        """Reads what is new, and writes everything."""
        self.clean()
        self._work.mkdir(parents=True)
        spans = self._read_window()
        good = self._judge(spans)
        segments, cut = self._segments(good)
        seen = Seen(self._cache.root, key_of([span.key for span in spans]))
        output = Outputs(examples, self._letters, spans, segments, self._config)
        summary = output.write(cut, self._source.rule, seen, self._reused(segments))
        seen.remember(
            span.files.span for span in spans if span.is_used and span.files.span is not None
        )
        sweep(self._cache.root, output.cached_names())
        return summary

    def _read_window(self) -> list[WindowSpan]:
        """Returns the spans of the window: read, reused, or with their error."""
        digests = Digests(self._cache.root)
        spans = [
            find_span(files, self._config, self._settings, digests, self._cache, self._now)
            for files in read_window(self._config)
        ]
        digests.save()
        self._read([span for span in spans if span.pieces])
        for name in self._cache.damaged:
            emit("note", step=STEP, text=f"{name} was damaged, and is made again")
        return spans

    def _judge(self, spans: Sequence[WindowSpan]) -> list[WindowSpan]:
        """Returns the spans to use; broken ones are set aside, or raise an error.

        Raises:
            RecsysError: A span is broken and may not be set aside, or none is left.
        """
        self._refuse_all_bad(spans)
        for span in spans:
            span.judge(self._source.max_rejected_share)
        broken = [span for span in spans if span.broken is not None]
        if broken and self._config.bad_spans == "stop":
            for span in broken[1:]:
                emit("note", step=STEP, text=f"broken too: {span.files.name}: {span.broken}")
            raise broken[0].error or _none_left(spans)
        good = [span for span in spans if span.is_used and span.rows is not None]
        if not good:
            raise _none_left(spans)
        if broken:
            names = ", ".join(span.files.name for span in broken)
            emit("note", step=STEP, text=f"set aside: {names}")
        return good

    def _segments(self, spans: Sequence[WindowSpan]) -> tuple[list[MadeSegment], int]:
        """Returns the segments, none of which the cut divides, and the cut.

        Raises:
            RecsysError: The positives lie on less than two days.
        """
        days = [
            SpanDays(span.key, span.files.places, day_totals(span.days), len(span.buckets))
            for span in spans
        ]
        segments = self._make_days(plan_segments(days), spans, "whole")
        positives: dict[int, int] = {}
        for made in segments:
            for day, n in made.days().items():
                positives[day] = positives.get(day, 0) + n
        cut = choose_cut(positives, self._source.eval_share)
        divided = [made for made in segments if made.segment.is_cut_by(cut)]
        halves = [half for made in divided for half in split_segment(days, made.segment, cut)]
        parts = self._make_days(halves, spans, "halves")
        uncut = [made for made in segments if not made.segment.is_cut_by(cut)]
        return sorted([*uncut, *parts], key=lambda made: made.segment.first), cut

    def _make_days(
        self, segments: Sequence[Segment], spans: Sequence[WindowSpan], label: str
    ) -> list[MadeSegment]:
        parts = [
            tuple(
                SpanPart.of_days(spans[s].path, ranks, spans[s].days, segment.first, segment.last)
                for s, ranks in zip(segment.spans, segment.ranks, strict=True)
            )
            for segment in segments
        ]
        return self._make(segments, parts, spans, label)

    def _reused(self, segments: Sequence[MadeSegment]) -> dict[str, Any]:
        n_reused = sum(made.is_reused for made in segments)
        text = f"reused {n_reused} of {len(segments)} segments"
        emit("progress", step=STEP, done=len(segments), total=len(segments), text=text)
        counts = {"reused": n_reused, "made": len(segments) - n_reused}
        return {**counts, "damaged": list(self._cache.damaged)}


def _parse(
    config: InteractionsConfig,
    now: int,
    held_out: Collection[str],
    batch: RawBatch,
    file_index: int,
) -> Parsed:
    rows, rejected = parse_interactions(batch, config, now, file_index, held_out)
    return Parsed(rows, rejected, _first_future(batch, rejected, config, now))


def _first_future(
    batch: RawBatch, rejected: pa.RecordBatch, config: InteractionsConfig, now: int
) -> int | None:
    """Returns the earliest future time of a batch, from which on its row would be good."""
    name = config.columns.timestamp
    if name is None or OUT_OF_TIME not in pc.unique(rejected.column("reason")).to_pylist():
        return None
    times = raw_times(batch.columns.column(name), config)
    to_come = times.filter(pc.fill_null(pc.greater(times, now), False))
    return pc.min(to_come).as_py() if len(to_come) else None


def _unit_cure(piece: Piece, config: InteractionsConfig) -> str:
    """Returns what to do if the times are in another unit than the config says."""
    batches = (batch for batch in read_piece(piece) if batch.columns.num_rows)
    unit = next((suggest_unit(batch, config, int(time.time())) for batch in batches), None)
    if unit is None:
        return ""
    return f"Set data.interactions.timestamp_unit to {unit}: read so, its times are good."


def _positives(span: WindowSpan) -> dict[int, int]:
    """Returns the positives of each UTC day that has some."""
    return {day: n for day, n in day_totals(span.days, column=2).items() if n}


def _none_left(spans: Sequence[WindowSpan]) -> RecsysError:
    states = {span.files.name: "empty" if span.broken is None else span.broken for span in spans}
    return RecsysError(
        "R264",
        "At least one span of the window must have rows and not be broken.",
        "Mend the files, or raise data.interactions.spans, so that older spans are read too.",
        states,
    )


def _read_json(file: Path) -> Any:
    return json.loads(file.read_text())
