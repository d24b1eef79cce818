"""The deciding metric against each thing that the model should beat, and over k."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from recsys.formats import ABSENT, change, change_span, figure, is_number
from recsys.report.artifacts import Artifacts, MissingError
from recsys.report.evaluated import (
    MODEL,
    Difference,
    Evaluated,
    cut_offs,
    long_name,
    metric_title,
    style_of,
    subject_name,
)
from recsys.report.pictures.keys import key
from recsys.report.pictures.lines import Lines, Series
from recsys.report.pictures.picture import Picture
from recsys.report.pictures.whisker import Estimate, draw_whisker, shared_range

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
        says = f"against {long_name(other)}: {in_words(difference)}"
        rows.append(
            Rival(
                name=subject_name(other),
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
    return Against(metric_title(found.deciding), found.interval_name(), rows)


def _left_out(found: Evaluated) -> Sequence[tuple[str, str]]:
    """Returns the baselines that were not measured, and why."""
    why = found.part.get("baselines_left_out")
    return [
        (subject_name(str(key)), str(text))
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
    keys = [(subject_name(one), key(style_of(one))) for one in found.subjects]
    return OverK(keys, pictures)


def _is_drawn(found: Evaluated, family: str, ks: Iterable[int]) -> bool:
    return sum(is_number(found.metrics.get(f"{family}@{k}")) for k in ks) > 1


def _picture(found: Evaluated, family: str, ks: Sequence[int]) -> Picture:
    series = [Series(style_of(one), *_points(found, one, family, ks)) for one in found.subjects]
    title = f"{metric_title(family)}@k"
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
    others = [f"{subject_name(one)} {figure(found.figure(one, metric))}" for one in found.others]
    beside = f"; {', '.join(others)}" if others else ""
    has_whiskers = any(found.interval(f"{family}@{k}") for k in ks)
    whiskers = f" Whiskers: {found.interval_name()} of the model." if has_whiskers else ""
    model = figure(found.figure(MODEL, metric))
    return f"{title} for k from {ks[0]} to {last}. At {last}: model {model}{beside}.{whiskers}"
