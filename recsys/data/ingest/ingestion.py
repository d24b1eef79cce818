"""Raw interactions → events by user in two splits, dead letters and counts.

Files without spans are one span, which is always read. In a window of spans, a run only reads
the spans that are new or have changed: the output for the others is cached and linked into the
result, which is the same as without a cache.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import apache_beam as beam
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.config import DataConfig, InteractionsConfig, Split
from recsys.data.dead_letters import Tally, dead_letters, refuse_empty, summarize, write_summary
from recsys.data.forgotten import Forgotten
from recsys.data.ingest.cache import CachedFolder, ContentCache, key_of, link, sweep
from recsys.data.ingest.read_rows import ReadPlan, read_sources, stage_query
from recsys.data.ingest.segment_parts import EXAMPLES, FOLDER, SegmentPart, write_index
from recsys.data.ingest.segments import (
    Segment,
    SegmentPlan,
    SplitRows,
    make_segments,
    plan_segments,
    whole_segment,
)
from recsys.data.ingest.spans import (
    Seen,
    WindowSpan,
    find_spans,
    has_days,
    has_spans,
    report_span,
    settings_of,
    span_of_files,
    with_missing,
    write_span_rows,
)
from recsys.data.inspect.profile import find_formats
from recsys.data.interactions import (
    OUT_OF_TIME,
    parse_interactions,
    raw_times,
    remark_on_positives,
    remark_on_ratings,
    suggest_unit,
)
from recsys.data.sources.pieces import read_piece, remark_on_skipped
from recsys.data.sources.source import RawBatch
from recsys.data.sources.source_files import parts_of_files
from recsys.data.sources.values import to_ids
from recsys.data.split import (
    DAY_S,
    Part,
    SplitRule,
    choose_cut,
    one_sided_error,
    remark_on_share,
    split_at,
    split_rows,
)
from recsys.errors import RecsysError
from recsys.strict import Share, Strict
from recsys.system.events import emit

SPLITS = ("train", "eval")
STEP = "InteractionGen"
_FORMAT_TEXTS = 10_000


class InteractionSource(Strict):
    """The part of the config that determines the output of InteractionGen."""

    interactions: InteractionsConfig
    """The interactions of users with items."""
    eval_share: Share
    """Share of the positives that `time` and `random` hold out [0..1]."""
    split: Split = "time"
    """Which positives are held out."""
    max_rejected_share: Share = 1.0
    """Highest share of rejected rows in an intact span [0..1]."""
    forget: str | None = None
    """File of the users to leave out, see `recsys.data.forgotten`."""

    @classmethod
    def of(cls, data: DataConfig) -> InteractionSource:
        """Returns the source for a config; only spans have their own limit of rejected rows."""
        source = cls(
            interactions=data.interactions,
            eval_share=data.eval_share,
            split=data.split,
            forget=data.forget,
        )
        limit = {"max_rejected_share": data.gate.max_rejected_share}
        return source.model_copy(update=limit) if has_spans(data.interactions) else source

    def with_files(self, files: Sequence[str]) -> InteractionSource:
        """Returns a copy that reads Parquet files instead of the query."""
        changed = {"files": tuple(files), "format": "parquet", "query": None}
        interactions = self.interactions.model_copy(update=changed)
        return self.model_copy(update={"interactions": interactions})

    @property
    def rule(self) -> SplitRule:
        """How the rows are split."""
        share = self.eval_share if self.split == "random" else None
        return SplitRule(self.split, self.interactions.ordered_by, share)


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
        source: Files to read, and how.
        examples: Folder of the events and the examples of both splits.
        letters: Folder of the dead letters.
        beam_pipeline: Runs the work, with its runner and options.
        cache: Folder of the content cache of spans; None: no cache.
        code: Fingerprint of the code: results of other code aren't reused.
        with_examples: Whether to write the examples, which TFX's statistics need.

    Returns:
        The summary of the dead letters.

    Raises:
        RecsysError: A file can't be read, a span is broken and `bad_spans` is `stop`, no
            row is good, or the positives can't be split.
    """
    if source.interactions.query is not None:
        # Next to the dead letters, which refer to rows of these files.
        folder = Path(letters) / "query"
        files = stage_query(source.interactions.query, folder, beam_pipeline.options)
        source = source.with_files(files)
    work = Path(letters) / "work"
    shutil.rmtree(work, ignore_errors=True)
    work.mkdir(parents=True)
    content_cache = ContentCache(work / "cache", is_temporary=True)
    if cache is not None and has_spans(source.interactions):
        content_cache = ContentCache(cache)
    content_cache.remove_unfinished()
    run = _Ingestion(source, work, beam_pipeline, content_cache, code, with_examples)
    try:
        return run.run(Path(examples), Path(letters))
    finally:
        content_cache.remove_unfinished()
        shutil.rmtree(work, ignore_errors=True)


@dataclasses.dataclass(frozen=True, eq=False)
class _MadeSegment:
    """A segment of a run, with its files.

    Attributes:
        segment: Its days and spans.
        folder: Its files.
        is_reused: Whether it comes from an earlier run.
    """

    segment: Segment
    folder: CachedFolder
    is_reused: bool

    @property
    def parts(self) -> list[dict[str, Any]]:
        """Facts of its parts, one for each bucket and split."""
        return list(self.folder.facts["parts"])

    def days(self) -> list[tuple[int, int]]:
        """Returns the days and numbers of positives of all parts."""
        return [day for part in self.parts for day in part["days"]]


class _Ingestion:
    """One ingestion.

    Args:
        source: Files to read, and how.
        work: Folder for temporary files.
        beam_pipeline: Runs the work.
        cache: The content cache.
        code: Fingerprint of the code.
        with_examples: Whether to write examples.
    """

    def __init__(
        self,
        source: InteractionSource,
        work: Path,
        beam_pipeline: beam.Pipeline,
        cache: ContentCache,
        code: str,
        with_examples: bool,
    ) -> None:
        self._source, self._config = source, source.interactions
        self._work, self._beam, self._cache = work, beam_pipeline, cache
        self._is_window = has_spans(self._config)
        self._forgotten = None if source.forget is None else Forgotten.load(source.forget)
        forgotten = [] if self._forgotten is None else [self._forgotten.digest()]
        bare = [] if with_examples else ["bare"]
        self._settings = [*settings_of(self._config, code), *bare, *forgotten]
        self._with_examples = with_examples
        self._now = int(time.time())
        self._remarks: list[str] = []

    def run(self, examples: Path, letters: Path) -> Tally:
        """Reads the new spans, and writes all output."""
        spans = self._read()
        good = self._judge(spans)
        for remark in (remark_on_ratings(self._config), remark_on_skipped(self._config)):
            if remark:
                self._remark(remark)
        segments, cut = self._segments(good)
        cached = [*(span.name for span in good), *(made.folder.path.name for made in segments)]
        facts = self._link_segments(segments, cut, examples, cached)
        if remark := remark_on_positives(self._config, facts["positives"], facts["good"]):
            self._remarks.append(remark)
            facts["gate_remarks"] = [remark]
        _link_letters(letters, spans)
        dropped = _dropped(good, segments)
        facts |= {"remarks": self._remarks} if self._remarks else {}
        facts["duplicates"] = sum(dropped.values()) + sum(s.count("duplicates") for s in good)
        used = [span for span in spans if span.broken is None]
        numbered = [span.files.span for span in used if span.files.span is not None]
        seen = Seen(self._cache.root, key_of([span.key for span in spans]))
        if self._is_window:
            reports = [
                report_span(span, seen, dropped[span.name])
                for span in spans
                if span.files.span is not None
            ]
            facts["spans"] = with_missing(reports, has_days(self._config))
            facts["segments"] = self._count_reused(segments)
            text = json.dumps(facts["spans"], indent=1)
            (letters / "spans.json").write_text(text + "\n", encoding="utf-8")
        by_index = {
            i: f for s in used for i, f in zip(s.files.file_indices, s.files.paths, strict=True)
        }
        files = [by_index[index] for index in sorted(by_index)]
        summary = write_summary([*(span.tally for span in good), facts], letters, files)
        if self._is_window:
            seen.remember(numbered)
            sweep(self._cache.root, cached)
        return summary

    def _remark(self, sentence: str) -> None:
        """Reports a remarkable fact, and keeps it for the summary."""
        self._remarks.append(sentence)
        emit("note", step=STEP, text=sentence)

    # --- spans

    def _read(self) -> list[WindowSpan]:
        """Returns the spans, each read, reused, empty, or with its error."""
        if self._is_window:
            spans = find_spans(self._config, self._settings, self._cache, self._now)
            for name in self._cache.damaged:
                emit("note", step=STEP, text=f"{name} was damaged, and is made again")
        else:
            spans = [span_of_files(self._config)]
        unread = [span for span in spans if span.pieces]
        if not unread:
            return spans
        folders = [self._cache.begin(span.name) for span in unread]
        plans = [
            ReadPlan(folder, folder / "letters", span.pieces)
            for folder, span in zip(folders, unread, strict=True)
        ]
        parts = parts_of_files(self._config, "interactions")
        parse = functools.partial(_parse, self._config, self._now, parts)
        write = functools.partial(write_span_rows, by_time=self._is_window)
        forgotten, user = self._forgotten, self._config.columns.user
        leave_out = None if forgotten is None else functools.partial(forgotten.leave_out, user)
        read = read_sources(self._beam, plans, parse, "user_id", write, self._work, STEP, leave_out)
        for span, folder, facts in zip(unread, folders, read, strict=True):
            if "failure" in facts:
                failure = facts["failure"]
                span.fail(failure["file"], RecsysError.from_json(failure["error"]))
            else:
                span.rows = self._cache.commit(folder, span.name, facts)
        return spans

    def _judge(self, spans: Sequence[WindowSpan]) -> list[WindowSpan]:
        """Returns the spans to use; sets broken ones aside, or raises an error.

        Raises:
            RecsysError: A span is broken and may not be set aside, or none is left.
        """
        if not self._is_window and spans[0].cause is not None:
            raise spans[0].cause
        self._refuse_all_bad([span for span in spans if span.rows is not None])
        if not self._is_window:
            return list(spans)
        for span in spans:
            span.judge(self._source.max_rejected_share)
        broken = [span for span in spans if span.broken is not None]
        if broken and self._config.bad_spans == "stop":
            for span in broken[1:]:
                emit("note", step=STEP, text=f"broken too: {span.files.name}: {span.broken}")
            raise broken[0].error or _none_left(spans)
        good = [span for span in spans if span.broken is None and span.rows is not None]
        if not good:
            raise _none_left(spans)
        if broken:
            names = ", ".join(span.files.name for span in broken)
            emit("note", step=STEP, text=f"set aside: {names}")
        return good

    def _refuse_all_bad(self, read: Sequence[WindowSpan]) -> None:
        """Raises an error if no source row is good, with a hint on wrong time units."""
        if not read or any(span.count("rows") for span in read):
            return
        summary, cure = summarize(span.tally for span in read), ""
        pieces = [piece for span in read for piece in span.pieces]
        for batch in read_piece(pieces[0]) if pieces else ():
            if batch.columns.num_rows:
                cure = _cure_of_times(batch, self._config)
                break
        refuse_empty({**summary, "good": 0}, "interactions", cure)

    # --- segments

    def _segments(self, spans: Sequence[WindowSpan]) -> tuple[list[_MadeSegment], int]:
        """Returns the segments, the oldest first, and the cut, which divides none of them.

        Raises:
            RecsysError: The positives are on fewer than two days, or on one side of the split.
        """
        rows = [span.span_rows for span in spans]
        shares_events = self._config.columns.impression is not None
        planned = [whole_segment(rows[0])]
        if self._is_window:
            planned = plan_segments(rows, shares_events)
        if self._source.split != "time":
            split = functools.partial(
                split_rows, split=self._source.split, eval_share=self._source.eval_share
            )
            made = self._make(dict.fromkeys(planned, split))
            events = {
                name: [p for p in made[0].parts if p["split"] == name and p["events"]]
                for name in SPLITS
            }
            if not all(events.values()):
                counts = (sum(part["events"] for part in events[name]) for name in SPLITS)
                raise one_sided_error(self._source.split, *counts)
            days = [day for part in events["train"] for day, _ in part["days"]]
            return made, (max(days) + 1) * DAY_S if days else 0
        # Rows of different spans may be duplicates, which must be removed before days are counted.
        joined = self._make({s: None for s in planned if len(s.spans) > 1})
        positives: Counter[int] = Counter()
        counted = [day for made in joined for day in made.days()]
        for segment in planned:
            if len(segment.spans) == 1:
                days_of_span = rows[segment.spans[0]].days(column=2).items()
                counted += [d for d in days_of_span if segment.first <= d[0] <= segment.last]
        for day, n in counted:
            positives[day] += n
        cut = choose_cut(+positives, self._source.eval_share)
        if remark := remark_on_share(+positives, cut, self._source.eval_share):
            self._remark(remark)
        at_cut = functools.partial(split_at, cut=cut)
        whole = {made.segment for made in joined if not made.segment.is_cut_by(cut)}
        rest = {s: at_cut if s.is_cut_by(cut) else None for s in planned if s not in whole}
        segments = [made for made in joined if made.segment in whole] + self._make(rest, cut)
        return sorted(segments, key=lambda made: made.segment.first), cut

    def _make(
        self, segments: Mapping[Segment, SplitRows | None], cut: int | None = None
    ) -> list[_MadeSegment]:
        """Returns segments with their files; makes the files that aren't cached.

        Args:
            segments: How each segment is split; None: all of it is in one split.
            cut: Time at which they are split.
        """
        names = {
            segment: f"segment-{key_of(self._settings, segment.key, cut if split else None)}"
            for segment, split in segments.items()
        }
        folders = {segment: self._cache.find(name) for segment, name in names.items()}
        missing = [segment for segment, folder in folders.items() if folder is None]
        if missing:
            begun = [self._cache.begin(names[segment]) for segment in missing]
            plans = [
                SegmentPlan(folder, segment, segments[segment])
                for folder, segment in zip(begun, missing, strict=True)
            ]
            made = make_segments(self._beam, plans, self._work, STEP, self._with_examples)
            for segment, folder, facts in zip(missing, begun, made, strict=True):
                folders[segment] = self._cache.commit(folder, names[segment], facts)
        return [
            _MadeSegment(segment, folder, segment not in missing)
            for segment, folder in folders.items()
            if folder is not None
        ]

    # --- outputs

    def _link_segments(
        self, segments: Sequence[_MadeSegment], cut: int, examples: Path, cached: Sequence[str]
    ) -> Tally:
        """Links all segments into the examples; returns the statistics of the split."""
        rule = self._source.rule
        counts = {"good": 0, "train": 0, "eval": 0, "train_positives": 0, "eval_positives": 0}
        linked: list[SegmentPart] = []
        for number, made in enumerate(segments):
            by_cut = "train" if made.segment.last < cut // DAY_S else "eval"
            for part in made.parts:
                if not part["rows"]:
                    continue
                split, name = part["split"] or by_cut, f"{number:05d}-{part['name']}"
                counts["good"] += part["rows"]
                counts[split] += part["rows"]
                counts[f"{split}_positives"] += part["events"]
                target = examples / FOLDER / name
                for file in sorted((made.folder.path / part["name"]).iterdir()):
                    is_example = file.name == EXAMPLES
                    of_split = examples / f"Split-{split}" / f"data-{name}.parquet"
                    link(file, of_split if is_example else target / file.name)
                if part["events"]:
                    linked.append(SegmentPart(split, target, part["events"]))
        write_index(examples, linked, cached)
        positives = counts["train_positives"] + counts["eval_positives"]
        facts: Tally = {
            "positives": positives,
            "split": rule.split,
            "order": rule.order,
            "cut": cut,
        }
        if rule.split == "time":
            facts["positive_days"] = len({day for made in segments for day, _ in made.days()})
        return counts | facts

    def _count_reused(self, segments: Sequence[_MadeSegment]) -> dict[str, Any]:
        n, n_reused = len(segments), sum(made.is_reused for made in segments)
        emit("progress", step=STEP, done=n, total=n, text=f"reused {n_reused} of {n} segments")
        return {"reused": n_reused, "made": n - n_reused, "damaged": list(self._cache.damaged)}


def _parse(
    config: InteractionsConfig,
    now: int,
    parts: Mapping[str, Part],
    batch: RawBatch,
    file_index: int,
) -> tuple[pa.RecordBatch, pa.RecordBatch, int | None]:
    """Types a batch; also returns its earliest future time, after which that row is valid."""
    rows, rejected = parse_interactions(batch, config, now, file_index, parts)
    name = config.columns.timestamp
    if name is None or OUT_OF_TIME not in pc.unique(rejected.column("reason")).to_pylist():
        return rows, rejected, None
    times = raw_times(batch.columns.column(name), config)
    to_come = times.filter(pc.fill_null(pc.greater(times, now), False))
    return rows, rejected, pc.min(to_come).as_py() if len(to_come) else None


def _cure_of_times(batch: RawBatch, config: InteractionsConfig) -> str:
    """Returns advice on a unit or format in which nearly all times would be valid, or ""."""
    unit = suggest_unit(batch, config, int(time.time()))
    if unit is not None:
        return f"Set data.interactions.timestamp_unit to {unit}: its times are valid in this unit."
    name = config.columns.timestamp
    if name is None:
        return ""
    texts = pc.unique(to_ids(batch.columns.column(name)).drop_null())
    formats = find_formats(texts.slice(0, _FORMAT_TEXTS))
    if not formats or config.timestamp_format in formats:
        return ""
    named = " or ".join(map(repr, formats[:2]))
    return f"Set data.interactions.timestamp_format to {named}: its times are written so."


def _none_left(spans: Sequence[WindowSpan]) -> RecsysError:
    states = {span.files.name: "empty" if span.broken is None else span.broken for span in spans}
    return RecsysError(
        "R264",
        "At least one span of the window must have rows and not be broken.",
        "Repair the files, or raise data.interactions.spans, so that older spans are read too.",
        states,
    )


def _dropped(spans: Sequence[WindowSpan], segments: Sequence[_MadeSegment]) -> Counter[str]:
    """Returns the number of rows of each span that equal rows of earlier spans, by name."""
    totals: Counter[str] = Counter()
    for made in segments:
        for place, n_dropped in zip(made.segment.spans, made.folder.facts["dropped"], strict=True):
            totals[spans[place].name] += n_dropped
    return totals


def _link_letters(letters: Path, spans: Sequence[WindowSpan]) -> None:
    """Links the dead letters of all spans; a span that can't be read has a single letter."""
    target = letters / "dead_letters"
    target.mkdir(parents=True, exist_ok=True)
    for number, span in enumerate(spans):
        if span.rows is not None:
            for file in sorted((span.rows.path / "letters").glob("*.parquet")):
                link(file, target / f"span-{number:05d}-{file.name}")
        elif span.broken is not None:
            reason = f"span {span.files.name} is set aside"
            letter = dead_letters([reason], span.files.paths[0], [0], [span.broken.encode()])
            pq.write_table(pa.Table.from_batches([letter]), target / f"span-{number:05d}.parquet")
