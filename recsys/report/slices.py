"""The deciding metric on parts of the users or events: for whom is the model better?"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from markupsafe import Markup

from recsys.formats import change, change_span, count, figure, is_number
from recsys.report.against import as_estimate, in_words
from recsys.report.artifacts import Artifacts, MissingError
from recsys.report.evaluated import (
    MODEL,
    Difference,
    Evaluated,
    long_name,
    metric_title,
    subject_name,
)
from recsys.report.pictures.scales import Scale
from recsys.report.pictures.whisker import draw_whisker, shared_range

SMALL_SLICE_USERS = 50
_OTHER_KIND = "other"


@dataclasses.dataclass(frozen=True)
class Slice:
    """The deciding metric on some of the users or events.

    Attributes:
        name: What they have in common.
        note: More about that; empty where there is nothing to say.
        users: How many users.
        size: How many queries, or held-out events where it is a part of these.
        model: The model's figure.
        other: That of what it is compared with.
        change: How far the model lies from that.
        change_span: The interval of that; empty where there is none.
        picture: The same as a whisker; empty where there is no interval.
        outcome: `better`, `worse` or `level`; empty where nothing says.
        is_small: Whether it has too few users to tell.
    """

    name: str
    note: str
    users: str
    size: str
    model: str
    other: str
    change: str
    change_span: str
    picture: Markup
    outcome: str
    is_small: bool


@dataclasses.dataclass(frozen=True)
class Slices:
    """All slices, under one metric.

    Attributes:
        metric: The metric.
        other: What the model is compared with; empty where it is with nothing.
        other_is: The same in a sentence.
        interval_name: What the intervals are.
        kinds: Kind of slices, and the slices of that kind.
        has_small: Whether any has too few users.
        limit: How many users are enough.
    """

    metric: str
    other: str
    other_is: str
    interval_name: str
    kinds: list[tuple[str, list[Slice]]]
    has_small: bool
    limit: str


def read_slices(artifacts: Artifacts) -> Slices:
    """Returns the deciding metric on each slice, beside the strongest on all queries."""
    found = Evaluated.of(artifacts)
    parts = found.part.get("slices")
    if not parts:
        raise MissingError("The evaluation holds no slices.")
    other = found.strongest()
    limit = found.part.get("small_slice")
    limit = limit if is_number(limit) else SMALL_SLICE_USERS
    measured = [_Part(part, found.deciding, other, limit) for part in parts]
    scale = _scale(measured)
    kinds: dict[str, list[Slice]] = {}
    for one in measured:
        kinds.setdefault(one.kind, []).append(one.row(scale))
    return Slices(
        metric=metric_title(found.deciding),
        other="" if other is None else subject_name(other),
        other_is="" if other is None else long_name(other),
        interval_name=found.interval_name(),
        kinds=list(kinds.items()),
        has_small=any(one.is_small for one in measured),
        limit=count(limit),
    )


def _scale(measured: Iterable[_Part]) -> Scale:
    """Returns the scale of all pictures; small slices, which vary widely, don't stretch it."""
    known = [(as_estimate(one.difference), one.is_small) for one in measured]
    large = [one for one, is_small in known if one is not None and not is_small]
    return shared_range(large or [one for one, _ in known if one is not None])


class _Part:
    """One slice as it was read, before it is drawn."""

    def __init__(
        self, part: Mapping[str, Any], metric: str, other: str | None, limit: float
    ) -> None:
        self._part, self._metric, self._other = part, metric, other
        self._found = Evaluated(part, metric)
        self.kind = str(part.get("kind") or _OTHER_KIND)
        users = part.get("users")
        self.is_small = part.get("is_small") is True or (is_number(users) and users < limit)
        self.difference = (
            Difference(None, None) if other is None else self._found.difference(other, metric)
        )

    def row(self, scale: Scale) -> Slice:
        """Returns the slice as it is shown."""
        estimate, other = as_estimate(self.difference), self._other
        picture = Markup()
        if estimate is not None and other is not None:
            says = f"{self._part['name']}, against {long_name(other)}: {in_words(self.difference)}"
            picture = draw_whisker(estimate, scale, says)
        span = self.difference.interval
        return Slice(
            name=str(self._part["name"]),
            note=str(self._part.get("note") or ""),
            users=count(self._part.get("users")),
            size=self._size(),
            model=figure(self._found.figure(MODEL, self._metric)),
            other="" if other is None else figure(self._found.figure(other, self._metric)),
            change=change(self.difference.relative),
            change_span="" if span is None else change_span(span),
            picture=picture,
            outcome=self.difference.outcome,
            is_small=self.is_small,
        )

    def _size(self) -> str:
        if self._part.get("of") == "positives":
            return f"{count(self._part.get('positives'))} events"
        return f"{count(self._part.get('queries'))} queries"
