"""What a night hands on: examples, positives, dead letters, counts, and what became of spans."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq

from recsys.data.ingest import unique
from recsys.data.ingest.make_segments import EXAMPLES
from recsys.data.ingest.span_state import NightSpan
from recsys.data.ingest.read_rows import LETTERS
from recsys.data.ingest.tally import Tally
from recsys.config import InteractionsConfig
from recsys.data.dead_letters import dead_letters
from recsys.data.ingest.segments import Segment
from recsys.data.ingest.cache import KeptFolder, link
from recsys.data.ingest.segments import FOLDER, LinkedShard, write_linked
from recsys.data.ingest.window import Seen
from recsys.data.ingest.span_report import SpanTold, State, with_missing, write_told
from recsys.data.ingest.window import has_days
from recsys.data.split import DAY_S
from recsys.data.split_rule import BY_TIME


@dataclasses.dataclass(frozen=True, eq=False)
class SegmentOfNight:
    """A segment of a night.

    Attributes:
        segment: Which days it is of.
        kept: What is kept of it.
        spans: The spans that have rows of it.
        is_reused: Whether an earlier run has made it.
    """

    segment: Segment
    kept: KeptFolder
    spans: tuple[NightSpan, ...]
    is_reused: bool

    def days(self) -> list[list[int]]:
        """Returns `[day, positives]` of each bucket and UTC day."""
        return [day for bucket in self.kept.facts["buckets"] for day in bucket["days"]]

    def split(self, cut: int) -> str:
        """Returns the split that it is in."""
        return "train" if self.segment.last < cut // DAY_S else "eval"


class SpanOutput:
    """Writes the artifacts of a night.

    Args:
        examples: Folder of the examples.
        letters: Folder of the dead letters.
        spans: All spans of the window.
        segments: The segments, the oldest first; the cut divides none.
        config: What was read.
    """

    def __init__(
        self,
        examples: Path,
        letters: Path,
        spans: Sequence[NightSpan],
        segments: Sequence[SegmentOfNight],
        config: InteractionsConfig,
    ) -> None:
        self._examples, self._letters = examples, letters
        self._spans, self._segments, self._config = spans, segments, config

    def kept_names(self) -> list[str]:
        """Returns the names of the kept folders that are used."""
        spans = [span.name for span in self._spans if span.kept is not None]
        return [*spans, *(one.kept.path.name for one in self._segments)]

    def write(self, cut: int, seen: Seen, segments: dict[str, Any]) -> Tally:
        """Writes everything; returns the summary.

        Args:
            cut: The moment of the split [seconds since 1970, UTC].
            seen: Which spans are new.
            segments: How many segments were reused.
        """
        rows = self._link_segments(cut)
        self._link_letters()
        told = with_missing(self._tell(seen), has_days(self._config))
        write_told(self._letters, told)
        facts: Tally = {**rows, "split": BY_TIME.split, "order": BY_TIME.order, "cut": cut}
        facts |= {"segments": segments, "spans": [one.to_json() for one in told]}
        used = [span for span in self._spans if span.is_used and span.kept is not None]
        by_place = {
            place: path
            for span in self._spans
            if span.is_used
            for place, path in zip(span.files.places, span.files.paths, strict=True)
        }
        files = [by_place[place] for place in sorted(by_place)]
        dropped = sum(span.facts["duplicates"] for span in used)
        dropped += sum(sum(one.kept.facts["dropped"]) for one in self._segments)
        facts["duplicates"] = dropped
        tallies = [span.tally for span in used]
        return unique.write_summary(
            [*tallies, facts], str(self._letters), list(dict.fromkeys(files))
        )

    def _link_segments(self, cut: int) -> dict[str, int]:
        """Links all segments into the examples; returns the rows of the splits."""
        counts = {"good": 0, "train": 0, "eval": 0, "train_positives": 0, "eval_positives": 0}
        shards = []
        for number, one in enumerate(self._segments):
            split = one.split(cut)
            for bucket in one.kept.facts["buckets"]:
                if not bucket["rows"]:
                    continue
                counts["good"] += bucket["rows"]
                counts[split] += bucket["rows"]
                counts[f"{split}_positives"] += bucket["events"]
                shards += self._link_bucket(number, one, split, bucket)
        write_linked(self._examples, shards, self.kept_names())
        positives = counts["train_positives"] + counts["eval_positives"]
        days = {day for one in self._segments for day, _ in one.days()}
        return {**counts, "positives": positives, "positive_days": len(days)}

    def _link_bucket(
        self, number: int, one: SegmentOfNight, split: str, bucket: dict[str, Any]
    ) -> list[LinkedShard]:
        inside, name = f"{bucket['bucket']:05d}", f"{number:05d}-{bucket['bucket']:05d}"
        folder = one.kept.path / inside
        link(folder / EXAMPLES, self._examples / f"Split-{split}" / f"data-{name}.parquet")
        if not bucket["events"]:
            return []
        files = {
            file.removeprefix(f"{inside}/"): described
            for file, described in one.kept.files.items()
            if file.startswith(f"{inside}/") and not file.endswith(EXAMPLES)
        }
        target = self._examples / FOLDER / name
        for file in files:
            link(folder / file, target / file)
        return [LinkedShard(name, split, target, bucket["events"], files)]

    def _link_letters(self) -> None:
        """Links the dead letters of all spans; of one that can't be read there is one letter."""
        target = self._letters / "dead_letters"
        target.mkdir(parents=True, exist_ok=True)
        for number, span in enumerate(self._spans):
            if span.kept is not None:
                for file in sorted((span.path / LETTERS).glob("*.parquet")):
                    link(file, target / f"span-{number:05d}-{file.name}")
            elif span.broken is not None:
                reason = f"span {span.files.name} is set aside"
                letter = dead_letters([reason], span.files.paths[0], [0], [span.broken.encode()])
                pq.write_table(
                    pa.Table.from_batches([letter]), target / f"span-{number:05d}.parquet"
                )

    def _tell(self, seen: Seen) -> list[SpanTold]:
        dropped = self._dropped()
        return [
            self._told(span, seen, dropped.get(span.name, 0))
            for span in self._spans
            if span.is_numbered
        ]

    def _told(self, span: NightSpan, seen: Seen, dropped: int) -> SpanTold:
        number, tally = span.files.span or 0, span.tally
        read, rejected = tally.get("read", 0), tally.get("rejected", 0)
        duplicates = dropped + span.facts.get("duplicates", 0)
        is_new, state = seen.is_new(number), _state(span)
        return SpanTold(
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

    def _dropped(self) -> dict[str, int]:
        """Returns how many rows of each span equal rows of spans before them, by its name."""
        found: dict[str, int] = {}
        for one in self._segments:
            for span, n_dropped in zip(one.spans, one.kept.facts["dropped"], strict=True):
                found[span.name] = found.get(span.name, 0) + n_dropped
        return found


def _state(span: NightSpan) -> State:
    if span.broken is not None:
        return "set_aside"
    if span.kept is None:
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
