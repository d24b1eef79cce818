"""The deciding metric against each system, over the cut-off, and by slice."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from markupsafe import Markup

from recsys.formats import ABSENT, change, change_span, count, figure, is_number
from recsys.report.artifacts import Artifacts, MissingError
from recsys.report.charts import Lines, Picture, Series
from recsys.report.evaluated import (
    MODEL,
    Difference,
    Evaluated,
    cut_offs,
)
from recsys.report.scales import Scale, key
from recsys.report.sparklines import Estimate, draw_whisker, shared_range

_WIDE, _NARROW = (480, 260), (330, 230)
_DRAWN = ("recall", "ndcg")


@dataclasses.dataclass(frozen=True)
class Rival:
    """One thing that the model is compared with.

    Attributes:
        name: What it is called.
        figure: Its figure in the deciding metric.
        change: How far the model lies from it.
        change_span: The interval of that.
        picture: The same as a whisker; empty where there is no interval.
        outcome: `better`, `worse` or `level`; empty where nothing says.
        why_not: Why it was not measured; empty where it was.
    """

    name: str
    figure: str
    change: str
    change_span: str
    picture: Markup
    outcome: str = ""
    why_not: str = ""


@dataclasses.dataclass(frozen=True)
class Against:
    """All of them.

    Attributes:
        metric: The deciding metric.
        interval_name: What the intervals are.
        rows: One for each.
    """

    metric: str
    interval_name: str
    rows: list[Rival]


@dataclasses.dataclass(frozen=True)
class OverK:
    """The metrics over their cut-off, in pictures.

    Attributes:
        keys: Name and sample of each line.
        pictures: One for each metric.
    """

    keys: list[tuple[str, Markup]]
    pictures: list[Picture]


def read_against(artifacts: Artifacts) -> Against:
    """Returns how the model does against each other subject."""
    found = Evaluated.of(artifacts)
    differences = {other: found.difference(other, found.deciding) for other in found.others}
    estimates = {other: as_estimate(difference) for other, difference in differences.items()}
    scale = shared_range(one for one in estimates.values() if one is not None)
    rows = []
    for other, difference in differences.items():
        one = estimates[other]
        says = f"against {found.long_name(other)}: {in_words(difference)}"
        rows.append(
            Rival(
                name=found.name(other),
                figure=figure(found.figure(other, found.deciding)),
                change=change(difference.relative),
                change_span=change_span(difference.interval),
                picture=Markup() if one is None else draw_whisker(one, scale, says),
                outcome=difference.outcome,
            )
        )
    rows += [Rival(name, ABSENT, "", "", Markup(), why_not=why) for name, why in _left_out(found)]
    if not rows:
        raise MissingError("There is nothing to compare the model with.")
    return Against(found.title(found.deciding), found.interval_name(), rows)


def _left_out(found: Evaluated) -> Sequence[tuple[str, str]]:
    """Returns the baselines that were not measured, and why."""
    why = found.part.get("baselines_left_out")
    return [
        (found.name(str(key)), str(text))
        for key, text in (why if isinstance(why, dict) else {}).items()
    ]


def as_estimate(difference: Difference) -> Estimate | None:
    """Returns what can be drawn of a difference; None where it has no interval."""
    if difference.relative is None or difference.interval is None:
        return None
    return Estimate(difference.relative, *difference.interval)


def in_words(difference: Difference) -> str:
    """Returns `+12.4 %, interval +3.1 … +22.0 %`."""
    if difference.interval is None:
        return change(difference.relative)
    surely = "" if difference.outcome == "level" else f", surely {difference.outcome}"
    return f"{change(difference.relative)}, interval {change_span(difference.interval)}{surely}"


def read_over_k(artifacts: Artifacts) -> OverK:
    """Returns the pictures of the metrics over their cut-off."""
    drawn = draw_over_k(Evaluated.of(artifacts))
    if not drawn.pictures:
        raise MissingError("The metrics have a single cut-off, so nothing is drawn over k.")
    return drawn


def draw_over_k(found: Evaluated) -> OverK:
    """Returns the pictures of the metrics over their cut-off; none where there is only one."""
    ks = cut_offs(found.metrics)
    pictures = [_picture(found, name, ks) for name in _DRAWN if _is_drawn(found, name, ks)]
    keys = [(found.name(one), key(found.style(one))) for one in found.subjects]
    return OverK(keys, pictures)


def _is_drawn(found: Evaluated, family: str, ks: Iterable[int]) -> bool:
    return sum(is_number(found.metrics.get(f"{family}@{k}")) for k in ks) > 1


def _picture(found: Evaluated, family: str, ks: Sequence[int]) -> Picture:
    series = [Series(found.style(one), *_points(found, one, family, ks)) for one in found.subjects]
    title = f"{found.title(family)}@k"
    caption = _caption(found, family, title, ks)
    lines = Lines(series, [(k, str(k)) for k in ks], "k", caption, log_x=True)
    return Picture(title, lines.draw(*_WIDE), lines.draw(*_NARROW), caption)


def _points(
    found: Evaluated, subject: str, family: str, ks: Sequence[int]
) -> tuple[list[tuple[float, float | None]], list[tuple[float, float, float]]]:
    figures = [(k, found.figure(subject, f"{family}@{k}")) for k in ks]
    points = [(float(k), value if is_number(value) else None) for k, value in figures]
    if subject != MODEL:
        return points, []
    ends = [(k, found.interval(f"{family}@{k}")) for k in ks]
    return points, [(float(k), *both) for k, both in ends if both is not None]


def _caption(found: Evaluated, family: str, title: str, ks: Sequence[int]) -> str:
    last = ks[-1]
    metric = f"{family}@{last}"
    others = [f"{found.name(one)} {figure(found.figure(one, metric))}" for one in found.others]
    beside = f"; {', '.join(others)}" if others else ""
    has_whiskers = any(found.interval(f"{family}@{k}") for k in ks)
    whiskers = f" Whiskers: {found.interval_name()} of the model." if has_whiskers else ""
    model = figure(found.figure(MODEL, metric))
    return f"{title} for k from {ks[0]} to {last}. At {last}: model {model}{beside}.{whiskers}"


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
    measured = [_Part(part, found, other, limit) for part in parts]
    scale = _scale(measured)
    kinds: dict[str, list[Slice]] = {}
    for one in measured:
        kinds.setdefault(one.kind, []).append(one.row(scale))
    return Slices(
        metric=found.title(found.deciding),
        other="" if other is None else found.name(other),
        other_is="" if other is None else found.long_name(other),
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
        self, part: Mapping[str, Any], found: Evaluated, other: str | None, limit: float
    ) -> None:
        self._all, metric = found, found.deciding
        self._part, self._metric, self._other = part, metric, other
        described = {"descriptions": found.part.get("descriptions")}
        self._found = Evaluated({**described, **part}, metric)
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
            against = f"{self._part['name']}, against {self._all.long_name(other)}"
            says = f"{against}: {in_words(self.difference)}"
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
