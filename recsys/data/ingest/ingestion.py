"""Raw interactions → events by user, dead letters and counts.

Files without spans are one span, which is always read. In a window of spans, a run only reads
the spans that are new or have changed: the output for the others is cached and linked into the
result, which is the same as without a cache.
"""

from __future__ import annotations

import contextlib
import functools
import json
import shutil
import time
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Self

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.config import DataConfig, InteractionsConfig, Split
from recsys.data.dead_letters import Tally, dead_letters, refuse_empty, summarize, write_summary
from recsys.data.forgotten import Forgotten
from recsys.data.ingest.cache import CachedFolder, ContentCache, key_of, link, sweep
from recsys.data.ingest.examples import SPLITS, ExampleFile, link_examples
from recsys.data.ingest.read_rows import ReadPlan, count_buckets, read_sources
from recsys.data.ingest.segment_parts import EXAMPLES, FOLDER, SegmentPart, write_index
from recsys.data.ingest.segments import (
    make_segments,
    plan_segments,
    write_segment_bucket,
    write_span_bucket,
)
from recsys.data.ingest.spans import Span, has_spans
from recsys.data.ingest.window import Seen, find_spans, report_window
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
from recsys.data.sources.tables import snapshot_of
from recsys.data.sources.time_formats import find_formats
from recsys.data.sources.values import to_ids
from recsys.data.split import (
    DAY_S,
    Part,
    SplitRule,
    choose_cut,
    one_sided_error,
    remark_on_share,
    split_rows,
)
from recsys.errors import RecsysError
from recsys.strict import Share, Strict, canonical_json
from recsys.system.events import emit

if TYPE_CHECKING:
    import apache_beam as beam

STEP = "InteractionGen"
_POSITIVES = tuple(f"{split}_positives" for split in SPLITS)
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

    @property
    def rule(self) -> SplitRule:
        """How the rows are split."""
        share = self.eval_share if self.split == "random" else None
        return SplitRule(self.split, self.interactions.ordered_by, share)


def ingest_interactions(
    source: InteractionSource,
    examples: str | Path,
    letters: str | Path,
    beam_pipeline: beam.Pipeline | None = None,
    cache: Path | None = None,
    code: str = "",
    with_examples: bool = True,
) -> Tally:
    """Writes the events, examples and dead letters of interactions, with `Ingestion`.

    Returns:
        The summary of the dead letters.

    Raises:
        RecsysError: A file can't be read, a span is broken and `bad_spans` is `stop`, no
            row is good, or the positives can't be split.
    """
    folders = Path(examples), Path(letters)
    with Ingestion(source, *folders, beam_pipeline, cache, code, with_examples) as run:
        return run.finish(read_sources(beam_pipeline, run.plans, run.work))


class Ingestion:
    """One ingestion of interactions: plans what is read, then makes the output of it.

    Args:
        source: Files to read, and how.
        examples: Folder of the events and the examples of both splits.
        letters: Folder of the dead letters.
        beam_pipeline: Runs the work; None: threads do.
        cache: Folder of the content cache of spans; None: no cache.
        code: Fingerprint of the code: results of other code aren't reused.
        with_examples: Whether to write the examples, which TFX's statistics need.
    """

    def __init__(
        self,
        source: InteractionSource,
        examples: Path,
        letters: Path,
        beam_pipeline: beam.Pipeline | None,
        cache: Path | None,
        code: str,
        with_examples: bool,
    ) -> None:
        self._examples, self._letters, self._beam = examples, letters, beam_pipeline
        self._source, self._with_examples = source, with_examples
        self.work = letters / "work"
        """Folder for temporary files, such as the rows that are shuffled."""
        shutil.rmtree(self.work, ignore_errors=True)
        self.work.mkdir(parents=True)
        with contextlib.ExitStack() as undo:
            undo.callback(shutil.rmtree, self.work, ignore_errors=True)
            self._config = source.interactions
            self._is_window = has_spans(self._config)
            self._cache = ContentCache(self.work / "cache", is_temporary=True)
            if cache is not None and self._is_window:
                self._cache = ContentCache(cache)
            undo.callback(self._cache.remove_unfinished)
            self._cache.remove_unfinished()
            self._forgotten = None if source.forget is None else Forgotten.load(source.forget)
            free = {"files": (), "spans": None, "bad_spans": "stop"}
            settings = [code, canonical_json(self._config.model_copy(update=free))]
            forgotten = [] if self._forgotten is None else [self._forgotten.digest()]
            self._settings = [*settings, *([] if with_examples else ["bare"]), *forgotten]
            self._now = int(time.time())
            self._remarks: list[str] = []
            self._spans = find_spans(self._config, self._settings, self._cache, self._now)
            for name in self._cache.damaged:
                emit("note", step=STEP, text=f"{name} was damaged, and is made again")
            self._unread = [span for span in self._spans if span.pieces and span.broken is None]
            self._begun = [self._cache.begin(span.folder_name) for span in self._unread]
            self._undo = undo.pop_all()

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._undo.close()

    @property
    def plans(self) -> list[ReadPlan]:
        """What must be read: all files, or the spans of a window that aren't cached."""
        config, forgotten, split = self._config, self._forgotten, self._source.split
        parts = parts_of_files(config, "interactions")
        leave_out = None
        if forgotten is not None:
            leave_out = functools.partial(forgotten.leave_out, config.columns.user)
        write = functools.partial(
            write_segment_bucket,
            None if split == "time" else functools.partial(
                split_rows, split=split, eval_share=self._source.eval_share
            ),
            self._with_examples,
        )  # fmt: skip
        return [
            ReadPlan(
                step=STEP,
                folder=folder,
                letters=folder / "letters",
                pieces=span.pieces,
                n_buckets=count_buckets(span.pieces),
                parse=functools.partial(_parse, config, self._now, parts),
                key="user_id",
                write=write_span_bucket if self._is_window else write,
                leave_out=leave_out,
            )
            for span, folder in zip(self._unread, self._begun, strict=True)
        ]

    def finish(self, read: Sequence[Mapping[str, Any]]) -> Tally:
        """Writes all output; returns the summary of the dead letters.

        Args:
            read: The result of `read_sources` for each plan.
        """
        for span, folder, facts in zip(self._unread, self._begun, read, strict=True):
            if "failure" not in facts:
                span.rows = self._cache.commit(folder, span.folder_name, dict(facts))
                continue
            error = RecsysError.from_json(facts["failure"]["error"])
            if not self._is_window:
                raise error
            span.fail(facts["failure"]["file"], error)
        self._refuse_all_bad()
        good = self._judge() if self._is_window else self._spans
        for remark in (remark_on_ratings(self._config), remark_on_skipped(self._config)):
            if remark:
                self._remark(remark)
        dropped, more = dict.fromkeys(good, 0), dict[str, Any]()
        if self._is_window:
            made, n_reused = self._segments(good, dropped)
            segments = [(folder.path, folder.facts["parts"]) for folder in made]
            cached = [*(span.folder_name for span in good), *(folder.path.name for folder in made)]
            counts = {"reused": n_reused, "made": len(made) - n_reused}
            more["segments"] = {**counts, "damaged": self._cache.damaged}
        else:
            parts = [part for bucket in good[0].buckets for part in bucket.get("parts", [])]
            segments, cached = [(good[0].rows.path, parts)], []  # type: ignore[union-attr]
        facts = self._link(segments, cached) | more
        if remark := remark_on_positives(self._config, facts["positives"], facts["good"]):
            self._remarks.append(remark)
            facts["gate_remarks"] = [remark]
        facts |= {"remarks": self._remarks} if self._remarks else {}
        facts |= snapshot_of(self._config, self._spans[-1].paths[-1])
        facts["duplicates"] = sum(dropped.values()) + sum(s.count("duplicates") for s in good)
        return self._summarize(good, dropped, facts, cached)

    # --- spans

    def _refuse_all_bad(self) -> None:
        """Raises an error if no source row is good, with a hint on wrong time units."""
        read = [span for span in self._spans if span.rows is not None]
        if not read or any(span.count("rows") for span in read):
            return
        summary, cure = summarize(span.tally for span in read), ""
        pieces = [piece for span in read for piece in span.pieces]
        for batch in read_piece(pieces[0]) if pieces else ():
            if batch.columns.num_rows:
                cure = _cure_of_times(batch, self._config)
                break
        refuse_empty({**summary, "good": 0}, "interactions", cure)

    def _judge(self) -> list[Span]:
        """Returns the spans to use; sets broken ones aside, or raises an error.

        Raises:
            RecsysError: A span is broken and may not be set aside, or none is left.
        """
        for span in self._spans:
            span.judge(self._source.max_rejected_share)
        broken = [span for span in self._spans if span.error is not None]
        if broken and self._config.bad_spans == "stop":
            for span in broken[1:]:
                emit("note", step=STEP, text=f"broken too: {span.name}: {span.broken}")
            raise broken[0].error  # type: ignore[misc]
        good = [span for span in self._spans if span.error is None and span.rows is not None]
        if not good:
            raise RecsysError(
                "R264",
                "At least one span of the window must have rows and not be broken.",
                "Repair the files, or raise data.interactions.spans, so that older spans are read"
                " too.",
                {span.name: span.broken or "empty" for span in self._spans},
            )
        if broken:
            names = ", ".join(span.name for span in broken)
            emit("note", step=STEP, text=f"set aside: {names}")
        return good

    def _remark(self, sentence: str) -> None:
        """Reports a remarkable fact, and keeps it for the summary."""
        self._remarks.append(sentence)
        emit("note", step=STEP, text=sentence)

    # --- segments

    def _segments(
        self, spans: Sequence[Span], dropped: dict[Span, int]
    ) -> tuple[list[CachedFolder], int]:
        """Returns the segments, the oldest first, and the number of those that were cached.

        Adds the number of rows of each span that equal rows of earlier ones to `dropped`.
        """
        planned = plan_segments(spans, self._config.columns.impression is not None)
        names = [f"segment-{key_of(self._settings, segment.key)}" for segment in planned]
        found = {name: self._cache.find(name) for name in names}
        missing = [at for at, name in enumerate(names) if found[name] is None]
        if missing:
            plans = [(self._cache.begin(names[at]), planned[at]) for at in missing]
            made = make_segments(self._beam, spans, plans, self.work, STEP, self._with_examples)
            for at, (folder, _), facts in zip(missing, plans, made, strict=True):
                found[names[at]] = self._cache.commit(folder, names[at], facts)
        folders = [folder for folder in found.values() if folder is not None]
        for segment, cached in zip(planned, folders, strict=True):
            for at, n_dropped in zip(segment.spans, cached.facts["dropped"], strict=True):
                dropped[spans[at]] += n_dropped
        n, n_reused = len(planned), len(planned) - len(missing)
        emit("progress", step=STEP, done=n, total=n, text=f"reused {n_reused} of {n} segments")
        return folders, n_reused

    def _choose_cut(self, parts: Sequence[Mapping[str, Any]]) -> int:
        """Returns the end of the training data [seconds since 1970, UTC]; 0 without times.

        Raises:
            RecsysError: The positives are on fewer than two days, or on one side of the split.
        """
        split, share = self._source.split, self._source.eval_share
        if split == "time":
            positives = _positive_days(parts)
            cut = choose_cut(positives, share)
            if remark := remark_on_share(positives, cut, share):
                self._remark(remark)
            return cut
        n = [sum(part["positives"] for part in parts if part["split"] == s) for s in SPLITS]
        if not all(n):
            raise one_sided_error(split, *n)
        days = _positive_days([part for part in parts if part["split"] == "train"])
        return (max(days) + 1) * DAY_S if days else 0

    def _link(
        self, segments: Sequence[tuple[Path, Sequence[dict[str, Any]]]], cached: Sequence[str]
    ) -> Tally:
        """Links the parts of segments into the output; returns the statistics of the split."""
        parts = [part for _, some in segments for part in some]
        cut, rule = self._choose_cut(parts), self._source.rule
        counts: Counter[str] = Counter(dict.fromkeys((*SPLITS, *_POSITIVES), 0))
        linked: list[SegmentPart] = []
        files: list[ExampleFile] = []
        for number, (folder, of_segment) in enumerate(segments):
            for part in of_segment:
                sides = _count_sides(part, cut)
                counts.update(sides)
                name = f"{number:05d}-{part['name']}"
                target, of_time = self._examples / FOLDER / name, [s for s in SPLITS if sides[s]]
                split = part["split"] or (of_time[0] if len(of_time) == 1 else None)
                for file in sorted((folder / part["name"]).iterdir()):
                    if file.name == EXAMPLES:
                        files.append((file, name, split))
                    else:
                        link(file, target / file.name)
                if part["events"]:
                    linked.append(SegmentPart(split, target, part["events"]))
        link_examples(self._beam, files, self._examples, cut, self.work)
        write_index(self._examples, linked, cached, cut)
        facts: Tally = {
            "good": counts["train"] + counts["eval"],
            **counts,
            "positives": sum(counts[name] for name in _POSITIVES),
            "split": rule.split,
            "order": rule.order,
            "cut": cut,
        }
        return facts | (
            {"positive_days": len(_positive_days(parts))} if rule.split == "time" else {}
        )

    # --- the summary

    def _summarize(
        self, good: Sequence[Span], dropped: Mapping[Span, int], facts: Tally, cached: Sequence[str]
    ) -> Tally:
        """Writes the dead letters, their summary and the report of the spans."""
        _link_letters(self._letters, self._spans)
        used = [span for span in self._spans if span.broken is None]
        seen = Seen(self._cache.root, key_of([span.key for span in self._spans]))
        if self._is_window:
            n_dropped = [dropped.get(span, 0) for span in self._spans]
            facts["spans"] = report_window(self._spans, seen, n_dropped, self._config)
            text = json.dumps(facts["spans"], indent=1)
            (self._letters / "spans.json").write_text(text + "\n", encoding="utf-8")
        files = dict(
            sorted(
                pair for span in used for pair in zip(span.file_indices, span.paths, strict=True)
            )
        )
        tallies = [*(span.tally for span in good), facts]
        summary = write_summary(tallies, self._letters, list(files.values()))
        if self._is_window:
            seen.remember(span.number for span in used if span.number is not None)
            sweep(self._cache.root, cached)
        return summary


def _positive_days(parts: Iterable[Mapping[str, Any]]) -> Counter[int]:
    """Returns the number of positives by day; days without positives are left out."""
    positives: Counter[int] = Counter()
    for part in parts:
        for day, _, n in part["days"]:
            positives[day] += n
    return +positives


def _count_sides(part: Mapping[str, Any], cut: int) -> Counter[str]:
    """Returns the number of rows and positives of a part in each split."""
    split = part["split"]
    counts: Counter[str] = Counter()
    days = [[0, part["rows"], part["positives"]]] if split else part["days"]
    for day, rows, positives in days:
        side = split or ("train" if day * DAY_S < cut else "eval")
        counts += Counter({side: rows, f"{side}_positives": positives})
    return counts


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


def _link_letters(letters: Path, spans: Sequence[Span]) -> None:
    """Links the dead letters of all spans; a span that can't be read has a single letter."""
    target = letters / "dead_letters"
    target.mkdir(parents=True, exist_ok=True)
    for number, span in enumerate(spans):
        if span.rows is not None:
            for file in sorted((span.rows.path / "letters").glob("*.parquet")):
                link(file, target / f"span-{number:05d}-{file.name}")
        elif span.broken is not None:
            reason = f"span {span.name} is set aside"
            letter = dead_letters([reason], span.paths[0], [0], [span.broken.encode()])
            pq.write_table(pa.Table.from_batches([letter]), target / f"span-{number:05d}.parquet")
