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
    """One system that the model is compared with.

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
    """The comparisons with all other systems.

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
    """Returns the comparison of the model with each other system."""
    evaluated = Evaluated.of(artifacts)
    differences = {
        other: evaluated.difference(other, evaluated.deciding) for other in evaluated.others
    }
    estimates = {other: as_estimate(difference) for other, difference in differences.items()}
    scale = shared_range(estimate for estimate in estimates.values() if estimate is not None)
    rows = []
    for other, difference in differences.items():
        estimate = estimates[other]
        says = f"against {evaluated.long_name(other)}: {in_words(difference)}"
        rows.append(
            Rival(
                name=evaluated.name(other),
                figure=figure(evaluated.figure(other, evaluated.deciding)),
                change=change(difference.relative),
                change_span=change_span(difference.interval),
                picture=Markup() if estimate is None else draw_whisker(estimate, scale, says),
                outcome=difference.outcome,
            )
        )
    rows += [
        Rival(name, ABSENT, "", "", Markup(), why_not=why) for name, why in _left_out(evaluated)
    ]
    if not rows:
        raise MissingError("There is nothing to compare the model with.")
    return Against(evaluated.title(evaluated.deciding), evaluated.interval_name(), rows)


def _left_out(evaluated: Evaluated) -> Sequence[tuple[str, str]]:
    """Returns the baselines that were not measured, and why."""
    why = evaluated.part.get("baselines_left_out")
    return [
        (evaluated.name(str(key)), str(text))
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


def draw_over_k(evaluated: Evaluated) -> OverK:
    """Returns the pictures of the metrics over their cut-off; none where there is only one."""
    ks = cut_offs(evaluated.metrics)
    pictures = [_picture(evaluated, name, ks) for name in _DRAWN if _is_drawn(evaluated, name, ks)]
    keys = [(evaluated.name(system), key(evaluated.style(system))) for system in evaluated.systems]
    return OverK(keys, pictures)


def _is_drawn(evaluated: Evaluated, family: str, ks: Iterable[int]) -> bool:
    return sum(is_number(evaluated.metrics.get(f"{family}@{k}")) for k in ks) > 1


def _picture(evaluated: Evaluated, family: str, ks: Sequence[int]) -> Picture:
    series = [
        Series(evaluated.style(system), *_points(evaluated, system, family, ks))
        for system in evaluated.systems
    ]
    title = f"{evaluated.title(family)}@k"
    caption = _caption(evaluated, family, title, ks)
    lines = Lines(series, [(k, str(k)) for k in ks], "k", caption, log_x=True)
    return Picture(title, lines.draw(*_WIDE), lines.draw(*_NARROW), caption)


def _points(
    evaluated: Evaluated, system: str, family: str, ks: Sequence[int]
) -> tuple[list[tuple[float, float | None]], list[tuple[float, float, float]]]:
    figures = [(k, evaluated.figure(system, f"{family}@{k}")) for k in ks]
    points = [(float(k), value if is_number(value) else None) for k, value in figures]
    if system != MODEL:
        return points, []
    ends = [(k, evaluated.interval(f"{family}@{k}")) for k in ks]
    return points, [(float(k), *both) for k, both in ends if both is not None]


def _caption(evaluated: Evaluated, family: str, title: str, ks: Sequence[int]) -> str:
    last = ks[-1]
    metric = f"{family}@{last}"
    others = [
        f"{evaluated.name(other)} {figure(evaluated.figure(other, metric))}"
        for other in evaluated.others
    ]
    beside = f"; {', '.join(others)}" if others else ""
    has_whiskers = any(evaluated.interval(f"{family}@{k}") for k in ks)
    whiskers = f" Whiskers: {evaluated.interval_name()} of the model." if has_whiskers else ""
    model = figure(evaluated.figure(MODEL, metric))
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
    evaluated = Evaluated.of(artifacts)
    parts = evaluated.part.get("slices")
    if not parts:
        raise MissingError("The evaluation holds no slices.")
    other = evaluated.strongest()
    limit = evaluated.part.get("small_slice")
    limit = limit if is_number(limit) else SMALL_SLICE_USERS
    measured = [_Part(part, evaluated, other, limit) for part in parts]
    scale = _scale(measured)
    kinds: dict[str, list[Slice]] = {}
    for part in measured:
        kinds.setdefault(part.kind, []).append(part.row(scale))
    return Slices(
        metric=evaluated.title(evaluated.deciding),
        other="" if other is None else evaluated.name(other),
        other_is="" if other is None else evaluated.long_name(other),
        interval_name=evaluated.interval_name(),
        kinds=list(kinds.items()),
        has_small=any(part.is_small for part in measured),
        limit=count(limit),
    )


def _scale(measured: Iterable[_Part]) -> Scale:
    """Returns the scale of all pictures; small slices, which vary widely, don't stretch it."""
    known = [(as_estimate(part.difference), part.is_small) for part in measured]
    large = [size for size, is_small in known if size is not None and not is_small]
    return shared_range(large or [size for size, _ in known if size is not None])


class _Part:
    """One slice as it was read, before it is drawn."""

    def __init__(
        self, part: Mapping[str, Any], evaluated: Evaluated, other: str | None, limit: float
    ) -> None:
        self._all, metric = evaluated, evaluated.deciding
        self._part, self._metric, self._other = part, metric, other
        described = {"descriptions": evaluated.part.get("descriptions")}
        self._evaluated = Evaluated({**described, **part}, metric)
        self.kind = str(part.get("kind") or _OTHER_KIND)
        users = part.get("users")
        self.is_small = part.get("is_small") is True or (is_number(users) and users < limit)
        self.difference = (
            Difference(None, None) if other is None else self._evaluated.difference(other, metric)
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
            model=figure(self._evaluated.figure(MODEL, self._metric)),
            other="" if other is None else figure(self._evaluated.figure(other, self._metric)),
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
