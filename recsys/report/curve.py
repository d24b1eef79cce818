"""A line chart as SVG: no script, and colours that its page decides.

The classes `grid`, `line`, `dot` and `label` take their colours from the
style sheet, so one picture serves light and dark.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Sequence

from recsys.formats import count

Point = tuple[float, float]

_LEFT, _RIGHT, _TOP, _BOTTOM = 40, 12, 14, 42
_MOST_POINTS = 300
_TICKS = 4


@dataclasses.dataclass(frozen=True)
class Frame:
    """Turns data into places of a picture.

    Attributes:
        width: Width of the picture [pixels].
        height: Height of the picture [pixels].
        x_end: Largest x; the smallest is 0.
        y_low: Smallest y.
        y_high: Largest y.
    """

    width: int
    height: int
    x_end: float
    y_low: float
    y_high: float

    def at(self, x: float, y: float) -> Point:
        """Returns the place of the data point (x, y) [pixels]."""
        across = (self.width - _LEFT - _RIGHT) * x / self.x_end
        down = (self.height - _TOP - _BOTTOM) * (self.y_high - y) / (self.y_high - self.y_low)
        return round(_LEFT + across, 1), round(_TOP + down, 1)


def draw_curve(points: Sequence[Point], width: int, height: int) -> str:
    """Returns the picture of `points` (step, loss), sorted by step; empty for none.

    Args:
        points: Finite numbers.
        width: Width of the picture [pixels].
        height: Height of the picture [pixels].
    """
    if not points:
        return ""
    points = thin_out(points, _MOST_POINTS)
    losses = [loss for _, loss in points]
    y_ticks = ticks(min(losses), max(losses), _TICKS)
    frame = Frame(width, height, max(points[-1][0], 1.0), y_ticks[0], y_ticks[-1])
    path = " ".join(f"{x},{y}" for x, y in itertools.starmap(frame.at, points))
    x, y = frame.at(*points[-1])
    return (
        f'<svg viewBox="0 0 {width} {height}" width="{width}" height="{height}" role="img"'
        f' aria-label="Training loss by step">{_axes(frame, y_ticks)}'
        f'<polyline class="line" points="{path}"/><circle class="dot" cx="{x}" cy="{y}" r="3.5"/>'
        "</svg>"
    )


def _axes(frame: Frame, y_ticks: Sequence[float]) -> str:
    parts = []
    end = frame.width - _RIGHT
    for tick in y_ticks:
        x, y = frame.at(0, tick)
        parts.append(f'<line class="grid" x1="{x}" x2="{end}" y1="{y}" y2="{y}"/>')
        parts.append(_label(x - 6, y + 4, "end", f"{tick:g}"))
    for tick in ticks(0.0, frame.x_end, max(4, frame.width // 140)):
        if tick <= frame.x_end and tick == int(tick):
            x, y = frame.at(tick, frame.y_low)
            parts.append(_label(x, y + 16, "end" if x > end - 20 else "middle", count(tick)))
    x, y = frame.at(frame.x_end / 2, frame.y_low)
    parts.append(_label(x, y + 35, "middle", "step"))
    return "".join(parts)


def _label(x: float, y: float, anchor: str, text: str) -> str:
    return f'<text class="label" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{text}</text>'


def thin_out(points: Sequence[Point], at_most: int) -> list[Point]:
    """Returns at most `at_most` points: means of equal stretches, and the ends as they are."""
    if len(points) <= at_most:
        return list(points)
    inner = points[1:-1]
    stretch = math.ceil(len(inner) / (at_most - 2))
    means = [
        (sum(x for x, _ in part) / len(part), sum(y for _, y in part) / len(part))
        for part in (inner[i : i + stretch] for i in range(0, len(inner), stretch))
    ]
    return [points[0], *means, points[-1]]


def ticks(low: float, high: float, about: int) -> list[float]:
    """Returns round numbers in equal steps that enclose `low` … `high`; two at least."""
    if high <= low:
        pad = abs(high) * 0.1 or 1.0
        low, high = low - pad, high + pad
    rough = (high - low) / about
    magnitude = 10.0 ** math.floor(math.log10(rough))
    step = next(m * magnitude for m in (1, 2, 2.5, 5, 10) if m * magnitude >= rough * 0.999)
    first, last = math.floor(low / step + 1e-9), math.ceil(high / step - 1e-9)
    return [round(i * step, 12) for i in range(first, last + 1)]
