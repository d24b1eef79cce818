"""A rolling window of spans → examples, split by time, and dead letters.

Each night reads the spans that are new or have changed. What was made of the others is
kept, and goes into the examples as links: the result is that of a run from scratch.
"""

from __future__ import annotations

import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam

from recsys.data.ingest import unique
from recsys.data.ingest.ingestion import InteractionSource, unit_cure
from recsys.data.ingest.make_segments import MakeSegments, SegmentPlan
from recsys.data.ingest.span_state import NightSpan, look_at, settings_of
from recsys.data.ingest.span_output import SegmentOfNight, SpanOutput
from recsys.data.ingest.read_rows import ReadSpans, SpanPlan
from recsys.data.ingest.tally import Tally
from recsys.data.ingest.segments import Segment, SpanDays, plan_segments, split_segment
from recsys.data.ingest.cache import Kept, key_of, sweep
from recsys.data.ingest.window import Seen
from recsys.data.ingest.span_rows import SpanPart, totals
from recsys.data.ingest.window import Digests, read_window
from recsys.data.split import MIN_DAYS, choose_cut, too_few_days
from recsys.errors import RecsysError
from recsys.events import emit

STEP = "InteractionGen"


def ingest_spans(
    source: InteractionSource,
    examples: str,
    letters: str,
    beam_pipeline: beam.Pipeline,
    kept: Path,
    code: str,
) -> Tally:
    """Writes the examples and the dead letters of a window of spans.

    Args:
        source: What to read; its files have spans.
        examples: Folder of the splits.
        letters: Folder of the dead letters.
        beam_pipeline: Runs the work, with its runner and options.
        kept: Folder of what is kept from run to run.
        code: Fingerprint of the code: what other code made isn't used.

    Returns:
        What was counted: the summary of the dead letters.

    Raises:
        RecsysError: A span is broken and `bad_spans` is `stop`, no span has a good row,
            or the positives can't be split by time.
    """
    night = _Night(source, Path(letters), beam_pipeline, Kept(kept), code)
    try:
        return night.run(Path(examples))
    finally:
        night.clean()


class _Night:
    """One run over a window."""

    def __init__(
        self,
        source: InteractionSource,
        letters: Path,
        beam_pipeline: beam.Pipeline,
        kept: Kept,
        code: str,
    ) -> None:
        self._source, self._config = source, source.interactions
        self._letters, self._work = letters, letters / "work"
        self._beam, self._kept = beam_pipeline, kept
        self._settings = settings_of(self._config, code)
        self._now = int(time.time())

    def clean(self) -> None:
        """Removes what only the work needed, and what was begun and not ended."""
        self._kept.clear_debris()
        unique.remove(self._work)

    def run(self, examples: Path) -> Tally:
        """Reads what is new, and writes everything."""
        self.clean()
        self._work.mkdir(parents=True)
        spans = self._read_window()
        good = self._judge(spans)
        segments, cut = self._segments(good)
        seen = Seen(self._kept.root, key_of([span.key for span in spans]))
        output = SpanOutput(examples, self._letters, spans, segments, self._config)
        summary = output.write(cut, seen, self._reused(segments))
        seen.remember(
            span.files.span for span in spans if span.is_used and span.files.span is not None
        )
        sweep(self._kept.root, output.kept_names())
        return summary

    # --- spans

    def _read_window(self) -> list[NightSpan]:
        """Returns the spans of the window, each read now or before, or with what is wrong."""
        digests = Digests(self._kept.root)
        spans = [
            look_at(files, self._config, self._settings, digests, self._kept, self._now)
            for files in read_window(self._config)
        ]
        digests.save()
        self._read([span for span in spans if span.pieces])
        for name in self._kept.damaged:
            emit("note", step=STEP, text=f"{name} was damaged, and is made again")
        return spans

    def _read(self, spans: Sequence[NightSpan]) -> None:
        """Reads spans, and keeps those that could be."""
        if not spans:
            return
        plans = [SpanPlan.of(self._kept.begin(span.name), span.pieces) for span in spans]
        out = self._work / "spans.json"
        self._run(ReadSpans(plans, self._config, self._now, self._work, out, STEP))
        for span, plan, facts in zip(spans, plans, unique.read_json(out), strict=True):
            if "failure" in facts:
                failure = facts["failure"]
                span.fail(failure["file"], RecsysError.from_json(failure["error"]))
            else:
                span.kept = self._kept.commit(Path(plan.folder), span.name, facts)

    def _judge(self, spans: Sequence[NightSpan]) -> list[NightSpan]:
        """Returns the spans that this run uses; the others are set aside, or stop it.

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
        good = [span for span in spans if span.is_used and span.kept is not None]
        if not good:
            raise _none_left(spans)
        if broken:
            names = ", ".join(span.files.name for span in broken)
            emit("note", step=STEP, text=f"set aside: {names}")
        return good

    def _refuse_all_bad(self, spans: Sequence[NightSpan]) -> None:
        """Raises the error of a source without a good row, which knows of wrong units."""
        read = [span for span in spans if span.kept is not None]
        if not read or any(span.n_good for span in read):
            return
        summary = unique.zero_summary(span.tally for span in read)
        pieces = next((span.pieces for span in read if span.pieces), ())
        cure = unit_cure(pieces[0], self._config) if pieces else ""
        unique.refuse_empty({**summary, "good": 0}, "interactions", cure)

    # --- segments

    def _segments(self, spans: Sequence[NightSpan]) -> tuple[list[SegmentOfNight], int]:
        """Returns the segments, none of which the cut divides, and the cut.

        Raises:
            RecsysError: The positives lie on less than two days.
        """
        days = [
            SpanDays(span.key, span.files.places, totals(span.facts["days"]), span.n_buckets)
            for span in spans
        ]
        segments = self._make(plan_segments(days), spans, "whole")
        positives = _add_days(segments)
        if len(positives) < MIN_DAYS:
            raise too_few_days(sum(positives.values()), len(positives))
        cut = choose_cut(positives, self._source.eval_share)
        divided = [one for one in segments if one.segment.is_cut_by(cut)]
        halves = [half for one in divided for half in split_segment(days, one.segment, cut)]
        parts = self._make(halves, spans, "halves")
        uncut = [one for one in segments if not one.segment.is_cut_by(cut)]
        return sorted([*uncut, *parts], key=lambda one: one.segment.first), cut

    def _make(
        self, segments: Sequence[Segment], spans: Sequence[NightSpan], label: str
    ) -> list[SegmentOfNight]:
        """Returns segments with what is kept of them; those of which nothing is are made."""
        names = [f"segment-{key_of(self._settings, one.key)}" for one in segments]
        found = {name: self._kept.find(name) for name in names}
        missing = [at for at, name in enumerate(names) if found[name] is None]
        if missing:
            out = self._work / f"{label}.json"
            folders = [self._kept.begin(names[at]) for at in missing]
            plans = [
                SegmentPlan(str(folder), _parts(segments[at], spans), segments[at].n_buckets)
                for at, folder in zip(missing, folders, strict=True)
            ]
            self._run(MakeSegments(plans, self._work, out, STEP))
            for at, folder, facts in zip(missing, folders, unique.read_json(out), strict=True):
                found[names[at]] = self._kept.commit(folder, names[at], facts)
        made = set(missing)
        return [
            SegmentOfNight(segment, kept, tuple(spans[at] for at in segment.spans), at not in made)
            for at, (segment, name) in enumerate(zip(segments, names, strict=True))
            if (kept := found[name]) is not None
        ]

    def _reused(self, segments: Sequence[SegmentOfNight]) -> dict[str, Any]:
        n_reused = sum(one.is_reused for one in segments)
        text = f"reused {n_reused} of {len(segments)} segments"
        emit("progress", step=STEP, done=len(segments), total=len(segments), text=text)
        counts = {"reused": n_reused, "made": len(segments) - n_reused}
        return {**counts, "damaged": list(self._kept.damaged)}

    def _run(self, transform: beam.PTransform) -> None:
        # One pipeline of Beam runs once, and a night may need several.
        with beam.Pipeline(runner=self._beam.runner, options=self._beam.options) as pipeline:
            _ = pipeline | type(transform).__name__ >> transform


def _parts(segment: Segment, spans: Sequence[NightSpan]) -> tuple[SpanPart, ...]:
    return tuple(
        SpanPart.of_days(
            spans[at].path, ranks, spans[at].facts["days"], segment.first, segment.last
        )
        for at, ranks in zip(segment.spans, segment.ranks, strict=True)
    )


def _add_days(segments: Sequence[SegmentOfNight]) -> dict[int, int]:
    """Returns the positives of each UTC day."""
    found: dict[int, int] = {}
    for one in segments:
        for day, positives in one.days():
            found[day] = found.get(day, 0) + positives
    return found


def _none_left(spans: Sequence[NightSpan]) -> RecsysError:
    said = {span.files.name: "empty" if span.broken is None else span.broken for span in spans}
    return RecsysError(
        "R264",
        "At least one span of the window must have rows and not be broken.",
        "Mend the files, or raise data.interactions.spans, so that older spans are read too.",
        said,
    )
