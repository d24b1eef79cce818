"""Intervals as small charts for the rows of a table."""

from __future__ import annotations

from collections.abc import Iterable
from typing import NamedTuple

from markupsafe import Markup

from recsys.report.charts import Scale, Size, dot, svg

_ROW: Size = (150, 18)
_PAD = 7
_MIDDLE = 9
_WIDEST = 3.0


class Estimate(NamedTuple):
    """A figure and the ends of its interval."""

    value: float
    low: float
    high: float


def shared_range(estimates: Iterable[Estimate], also: Iterable[float] = (0.0,)) -> Scale:
    """Returns one scale for charts that stand below each other.

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
    ends = [end for estimate in shown for end in estimate[1:]]
    low = min([low, *(max(end, low - room) for end in ends)])
    high = max([high, *(min(end, high + room) for end in ends)])
    if high <= low:
        low, high = low - 1.0, high + 1.0
    return Scale(low, high, _PAD, _ROW[0] - _PAD)


def draw_whisker(
    estimate: Estimate,
    scale: Scale,
    says: str,
    zero: float | None = 0.0,
    least: float | None = None,
) -> Markup:
    """Returns an interval; an end beyond the scale is an arrow.

    Args:
        estimate: What is drawn.
        scale: Where a number lies, see `shared_range`.
        says: The chart in words.
        zero: Where the thin line stands that means no difference; None for none. An interval
            that lies on one side of it has the colour of that.
        least: Where the dashed line stands that must be reached; None for none.
    """
    parts = [
        f'<line class="{kind}" x1="{scale.at(x)}" x2="{scale.at(x)}" y1="0" y2="{_ROW[1]}"/>'
        for kind, x in (("zero", zero), ("least", least))
        if x is not None and scale.holds(x)
    ]
    _, low, high = estimate
    side = "level"
    if zero is not None and not low <= zero <= high:
        side = "better" if low > zero else "worse"
    drawn = f'<g class="{side}">{_interval(estimate, scale)}</g>'
    return svg("interval", _ROW, "".join(parts) + drawn, says)


def _interval(estimate: Estimate, scale: Scale) -> str:
    """Returns the whisker and its dot; an arrow at an end, or alone, for what lies beyond."""
    value, low, high = estimate
    if low > scale.high or high < scale.low:
        return _arrow(scale, way=1 if low > scale.high else -1)
    first, last = scale.at(max(low, scale.low)), scale.at(min(high, scale.high))
    cap = '<path class="whisker" d="M{} {}v8"/>'
    parts = [
        f'<path class="whisker" d="M{first} {_MIDDLE}H{last}"/>',
        _arrow(scale, way=-1) if low < scale.low else cap.format(first, _MIDDLE - 4),
        _arrow(scale, way=1) if high > scale.high else cap.format(last, _MIDDLE - 4),
        dot(scale.at(value), _MIDDLE, 3.5, "dot") if scale.holds(value) else "",
    ]
    return "".join(parts)


def _arrow(scale: Scale, way: int) -> str:
    tip = (scale.end if way > 0 else scale.start) + 5 * way
    back = tip - 6 * way
    corners = f"{tip:g},{_MIDDLE} {back:g},{_MIDDLE - 4.5:g} {back:g},{_MIDDLE + 4.5:g}"
    return f'<polygon class="arrow" points="{corners}"/>'
