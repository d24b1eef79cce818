"""Outputs of an ingestion: events, examples, dead letters, counts, and `spans.json`."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any, Literal

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.config import InteractionsConfig
from recsys.data.dead_letters import dead_letters
from recsys.data.ingest.cache import CachedFolder, link
from recsys.data.ingest.make_segments import EXAMPLES
from recsys.data.ingest.segment_files import FOLDER, SegmentPart, write_index
from recsys.data.ingest.segment_plan import Segment
from recsys.data.ingest.span_state import WindowSpan
from recsys.data.ingest.tally import Tally, write_summary
from recsys.data.ingest.window import Seen, has_days
from recsys.data.sources.files import day_name
from recsys.data.split import DAY_S
from recsys.data.split_rule import SplitRule

FILE = "spans.json"

State = Literal["read", "reused", "empty", "set_aside", "missing"]


@dataclasses.dataclass(frozen=True)
class SpanReport:
    """Status of a span in a run.

    Attributes:
        span: Its number.
        name: Its date, or its number as text.
        version: The newest version among its files.
        files: Its files.
        rows: Rows in them, bad ones too.
        rejected: Rows in the dead letters.
        duplicates: Rows that repeat an earlier row of the window.
        state: `read` in this run, `reused` from an earlier one, `empty` of rows,
            `set_aside` because it is broken, or `missing`: no file has this day.
        late: Whether it is new and older than one that was read before.
        new: Whether no other run has read it.
        reason: The reason of its state, a sentence.
    """

    span: int
    name: str
    version: int
    files: int
    rows: int
    rejected: int
    duplicates: int
    state: State
    late: bool
    new: bool
    reason: str | None

    def to_json(self) -> dict[str, Any]:
        """Returns it as plain JSON."""
        return dataclasses.asdict(self)


def with_missing(spans: Sequence[SpanReport], are_days: bool) -> list[SpanReport]:
    """Returns spans with the days between them that no file has, the oldest first.

    Nothing is missing where spans are numbers, or days that mostly lie further apart
    than one: a file a week has no gaps of six days.
    """
    ordered = sorted(spans, key=lambda span: span.span)
    numbers = [span.span for span in ordered]
    steps = Counter(b - a for a, b in itertools.pairwise(numbers))
    if not are_days or not steps or steps.most_common(1)[0][0] != 1:
        return ordered
    gaps = sorted(set(range(numbers[0], numbers[-1])) - set(numbers))
    missing = [_missing(span) for span in gaps]
    return sorted([*ordered, *missing], key=lambda span: span.span)


def write_report(folder: Path, spans: Sequence[SpanReport]) -> None:
    """Writes `spans.json`."""
    text = json.dumps([span.to_json() for span in spans], indent=1)
    (folder / FILE).write_text(text + "\n", encoding="utf-8")


def _missing(span: int) -> SpanReport:
    return SpanReport(
        span, day_name(span), 0, 0, 0, 0, 0, "missing", False, False, "no file has this day"
    )


@dataclasses.dataclass(frozen=True, eq=False)
class MadeSegment:
    """A segment of a run, with its files.

    Attributes:
        segment: Which days it is of.
        folder: Its files.
        spans: The spans that have rows of it.
        is_reused: Whether an earlier run has made it.
    """

    segment: Segment
    folder: CachedFolder
    spans: tuple[WindowSpan, ...]
    is_reused: bool

    @property
    def parts(self) -> list[dict[str, Any]]:
        """The facts of its parts: of each bucket, or of each split of one."""
        return list(self.folder.facts["parts"])

    @property
    def dropped(self) -> list[int]:
        """Rows of each of its spans that equal rows of spans before it."""
        return list(self.folder.facts["dropped"])

    def days(self, split: str | None = None) -> dict[int, int]:
        """Returns the positives of each UTC day, of all parts or of those of a split."""
        totals: dict[int, int] = {}
        for part in self.parts:
            for day, positives in part["days"] if part["split"] == split else []:
                totals[day] = totals.get(day, 0) + positives
        return totals

    def n_events(self, split: str) -> int:
        """Returns the positives of a split, of a segment whose parts are split."""
        return sum(part["events"] for part in self.parts if part["split"] == split)

    def split(self, part: dict[str, Any], cut: int) -> str:
        """Returns the split that a part is in."""
        by_cut = "train" if self.segment.last < cut // DAY_S else "eval"
        return part["split"] or by_cut


class Outputs:
    """Writes the artifacts of an ingestion.

    Args:
        examples: Folder of the events and examples.
        letters: Folder of the dead letters.
        spans: All spans of the window.
        segments: The segments, the oldest first; the cut divides none.
        config: What was read.
    """

    def __init__(
        self,
        examples: Path,
        letters: Path,
        spans: Sequence[WindowSpan],
        segments: Sequence[MadeSegment],
        config: InteractionsConfig,
    ) -> None:
        self._examples, self._letters = examples, letters
        self._spans, self._segments, self._config = spans, segments, config

    def cached_names(self) -> list[str]:
        """Returns the names of the cached folders that are used."""
        spans = [span.name for span in self._spans if span.rows is not None]
        return [*spans, *(made.folder.path.name for made in self._segments)]

    def write(
        self,
        cut: int,
        rule: SplitRule,
        seen: Seen | None = None,
        reused: dict[str, Any] | None = None,
    ) -> Tally:
        """Writes everything; returns the summary.

        Args:
            cut: The moment that the training data end [seconds since 1970, UTC].
            rule: How the rows are split.
            seen: Which spans are new; None where there are no spans.
            reused: How many segments were reused.
        """
        facts: Tally = {**self._link_segments(cut), "split": rule.split, "order": rule.order}
        facts["cut"] = cut
        if rule.split == "time":
            facts["positive_days"] = len(self._positive_days())
        self._link_letters()
        if seen is not None:
            reports = with_missing(self._report(seen), has_days(self._config))
            write_report(self._letters, reports)
            facts |= {"segments": reused, "spans": [report.to_json() for report in reports]}
        used = [span for span in self._spans if span.is_used and span.rows is not None]
        facts["duplicates"] = sum(span.n_duplicates for span in used)
        facts["duplicates"] += sum(sum(made.dropped) for made in self._segments)
        return write_summary([*(span.tally for span in used), facts], self._letters, self._files())

    def _files(self) -> list[str]:
        """Returns the files that were used, in the order of the config."""
        by_place = {
            place: path
            for span in self._spans
            if span.is_used
            for place, path in zip(span.files.places, span.files.paths, strict=True)
        }
        return [by_place[place] for place in sorted(by_place)]

    def _positive_days(self) -> set[int]:
        return {day for made in self._segments for part in made.parts for day, _ in part["days"]}

    def _link_segments(self, cut: int) -> dict[str, int]:
        """Links all segments into the examples; returns the rows of the splits."""
        counts = {"good": 0, "train": 0, "eval": 0, "train_positives": 0, "eval_positives": 0}
        linked: list[SegmentPart] = []
        for number, made in enumerate(self._segments):
            for part in made.parts:
                if not part["rows"]:
                    continue
                split = made.split(part, cut)
                counts["good"] += part["rows"]
                counts[split] += part["rows"]
                counts[f"{split}_positives"] += part["events"]
                linked += self._link_part(f"{number:05d}-{part['name']}", made, part, split)
        write_index(self._examples, linked, self.cached_names())
        return {**counts, "positives": counts["train_positives"] + counts["eval_positives"]}

    def _link_part(
        self, name: str, made: MadeSegment, part: dict[str, Any], split: str
    ) -> Iterator[SegmentPart]:
        target = self._examples / FOLDER / name
        target.mkdir(parents=True, exist_ok=True)
        for file in sorted((made.folder.path / part["name"]).iterdir()):
            if file.name == EXAMPLES:
                link(file, self._examples / f"Split-{split}" / f"data-{name}.parquet")
            else:
                link(file, target / file.name)
        if part["events"]:
            yield SegmentPart(name, split, target, part["events"])

    def _link_letters(self) -> None:
        """Links the dead letters of all spans; of one that can't be read there is one letter."""
        target = self._letters / "dead_letters"
        target.mkdir(parents=True, exist_ok=True)
        for number, span in enumerate(self._spans):
            if span.rows is not None:
                for file in sorted((span.path / "letters").glob("*.parquet")):
                    link(file, target / f"span-{number:05d}-{file.name}")
            elif span.broken is not None:
                reason = f"span {span.files.name} is set aside"
                letter = dead_letters([reason], span.files.paths[0], [0], [span.broken.encode()])
                pq.write_table(
                    pa.Table.from_batches([letter]), target / f"span-{number:05d}.parquet"
                )

    def _report(self, seen: Seen) -> list[SpanReport]:
        dropped = self._dropped()
        return [
            _span_report(span, seen, dropped.get(span.name, 0))
            for span in self._spans
            if span.is_numbered
        ]

    def _dropped(self) -> dict[str, int]:
        """Returns how many rows of each span equal rows of spans before them, by its name."""
        totals: dict[str, int] = {}
        for made in self._segments:
            for span, n_dropped in zip(made.spans, made.dropped, strict=True):
                totals[span.name] = totals.get(span.name, 0) + n_dropped
        return totals


def _span_report(span: WindowSpan, seen: Seen, dropped: int) -> SpanReport:
    number, tally = span.files.span or 0, span.tally
    read, rejected = tally.get("read", 0), tally.get("rejected", 0)
    duplicates = dropped + span.n_duplicates
    is_new, state = seen.is_new(number), _state(span)
    return SpanReport(
        span=number,
        name=span.files.name,
        version=span.files.version,
        files=len(span.files.paths),
        rows=read,
        rejected=rejected,
        duplicates=duplicates,
        state="read" if is_new and state == "reused" else state,
        late=seen.is_late(number),
        new=is_new,
        reason=span.broken or _reason(state, is_new, read - rejected, duplicates),
    )


def _state(span: WindowSpan) -> State:
    if span.broken is not None:
        return "set_aside"
    if span.rows is None:
        return "empty"
    return "reused" if span.is_reused else "read"


def _reason(state: State, is_new: bool, good: int, duplicates: int) -> str | None:
    if state == "empty":
        return "its files have no rows"
    if good and good == duplicates:
        return "all its rows are duplicates of rows of other files"
    if state == "read" and not is_new:
        return "its files, the config or the code have changed since it was read"
    return None
