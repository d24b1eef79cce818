"""`spans.json`: what became of each span of the window."""

from __future__ import annotations

import dataclasses
import itertools
import json
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

from recsys.data.sources.spans import day_name


from recsys.errors import RecsysError

FILE = "spans.json"

State = Literal["read", "reused", "empty", "set_aside", "missing"]


@dataclasses.dataclass(frozen=True)
class SpanReport:
    """What became of a span.

    Attributes:
        span: Its number.
        name: Its date, or its number as text.
        version: The newest version among its files.
        files: Its files.
        rows: Rows in them, bad ones too.
        rejected: Rows in the dead letters.
        duplicates: Rows that others of the window equal that stand before them.
        state: `read` in this run, `reused` from an earlier one, `empty` of rows,
            `set_aside` because it is broken, or `missing`: no file has this day.
        late: Whether it is new and older than one that was read before.
        new: Whether no other run has read it.
        reason: What is to be said of it.
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

_CURE = (
    "Mend or replace its files and run again; or set data.interactions.bad_spans to set_aside,"
    " and the run goes on without the span until its files change. What the other spans hold"
    " is kept, and the model that is served stays."
)


def unreadable_span(name: str, file: str, error: RecsysError) -> RecsysError:
    """Returns the error of a span of which a file can't be read."""
    return RecsysError("R262", f"Span {name} must be readable. {file}: {error}", _CURE)


def bad_rows(name: str, found: str) -> RecsysError:
    """Returns the error of a span with too many bad rows."""
    return RecsysError("R263", f"Span {name} must have few bad rows: {found}.", _CURE)
