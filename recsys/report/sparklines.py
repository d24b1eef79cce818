"""Small pictures as SVG, for a row of a table: intervals and counts."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from recsys.formats import is_number
from recsys.report.scales import Scale

_WIDTH, _HEIGHT, _PAD = 150, 18, 7
_MIDDLE = _HEIGHT / 2
_WIDEST = 3.0


@dataclasses.dataclass(frozen=True)
class Estimate:
    """A figure and its interval.

    Attributes:
        value: The figure.
        low: Low end of its interval.
        high: High end.
    """

    value: float
    low: float
    high: float


def shared_range(estimates: Iterable[Estimate], also: Iterable[float] = (0.0,)) -> Scale:
    """Returns one scale for pictures that stand below each other.

    It holds every figure, and an interval as far as it is not many times wider than the
    figures are apart: an interval without bounds would leave the others no room.

    Args:
        estimates: What is drawn.
        also: Numbers that must be within, such as 0.
    """
    shown = list(estimates)
    values = [estimate.value for estimate in shown] + list(also)
    low, high = min(values), max(values)
    widths = sorted(estimate.high - estimate.low for estimate in shown)
    room = max(high - low, widths[len(widths) // 2] if widths else 0.0) * _WIDEST or 1.0
    ends = [end for estimate in shown for end in (estimate.low, estimate.high)]
    low = min([low, *(max(end, low - room) for end in ends)])
    high = max([high, *(min(end, high + room) for end in ends)])
    if high <= low:
        low, high = low - 1.0, high + 1.0
    return Scale(low, high, _PAD, _WIDTH - _PAD)


def draw_whisker(
    estimate: Estimate,
    scale: Scale,
    says: str,
    zero: float | None = 0.0,
    least: float | None = None,
) -> Markup:
    """Returns the picture; an end beyond the scale is an arrow.

    Args:
        estimate: What is drawn.
        scale: Where a number lies, see `shared_range`.
        says: The picture in words.
        zero: Where the thin line stands that means no difference; None for none. An interval
            that lies on one side of it has the colour of that.
        least: Where the dashed line stands that must be reached; None for none.
    """
    parts = []
    if zero is not None and scale.low <= zero <= scale.high:
        x = scale.at(zero)
        parts.append(f'<line class="zero" x1="{x}" x2="{x}" y1="0" y2="{_HEIGHT}"/>')
    if least is not None and scale.low <= least <= scale.high:
        x = scale.at(least)
        parts.append(f'<line class="least" x1="{x}" x2="{x}" y1="0" y2="{_HEIGHT}"/>')
    side = "level" if zero is None else _side(estimate, zero)
    parts.append(f'<g class="{side}">{_interval(estimate, scale)}</g>')
    return Markup(  # noqa: S704 - numbers, and text that is escaped here
        f'<svg class="interval" viewBox="0 0 {_WIDTH} {_HEIGHT}" width="{_WIDTH}"'
        f' height="{_HEIGHT}" role="img" aria-label="{escape(says)}">{"".join(parts)}</svg>'
    )


def _side(estimate: Estimate, zero: float) -> str:
    """Returns on which side of no difference all of an interval lies."""
    return "better" if estimate.low > zero else "worse" if estimate.high < zero else "level"


def _interval(estimate: Estimate, scale: Scale) -> str:
    """Returns the whisker and its dot; an arrow at an end, or alone, for what lies beyond."""
    if estimate.low > scale.high or estimate.high < scale.low:
        return _arrow(scale, way=1 if estimate.low > scale.high else -1)
    low, high = scale.held(estimate.low), scale.held(estimate.high)
    parts = [f'<path class="whisker" d="M{low} {_MIDDLE:g}H{high}"/>']
    parts.append(_arrow(scale, way=-1) if estimate.low < scale.low else _cap(low))
    parts.append(_arrow(scale, way=1) if estimate.high > scale.high else _cap(high))
    if scale.low <= estimate.value <= scale.high:
        parts.append(
            f'<circle class="dot" cx="{scale.at(estimate.value)}" cy="{_MIDDLE:g}" r="3.5"/>'
        )
    return "".join(parts)


def _cap(x: float) -> str:
    return f'<path class="whisker" d="M{x} {_MIDDLE - 4:g}v8"/>'


def _arrow(scale: Scale, way: int) -> str:
    tip = (scale.end if way > 0 else scale.start) + 5 * way
    back = tip - 6 * way
    corners = f"{tip:g},{_MIDDLE:g} {back:g},{_MIDDLE - 4.5:g} {back:g},{_MIDDLE + 4.5:g}"
    return f'<polygon class="arrow" points="{corners}"/>'


_GAP = 1


def draw_bars(counts: Sequence[float], width: int, height: int) -> Markup:
    """Returns bars as high as `counts`; empty where there is nothing to see.

    Args:
        counts: Numbers that are not negative.
        width: Width of the picture [pixels].
        height: Height of the highest bar [pixels].
    """
    highest = max((value for value in counts if is_number(value)), default=0)
    if highest <= 0:
        return Markup()
    step = width / len(counts)
    bars = []
    for i, value in enumerate(counts):
        # What is there is seen, however little it is.
        high = max(1.0, height * value / highest) if is_number(value) and value > 0 else 0.0
        bars.append(
            f'<rect x="{i * step:.1f}" y="{height - high:.1f}"'
            f' width="{max(step - _GAP, 1):.1f}" height="{high:.1f}"/>'
        )
    return Markup(  # noqa: S704 - numbers only
        f'<svg class="bar-chart" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" aria-hidden="true">{"".join(bars)}</svg>'
    )
