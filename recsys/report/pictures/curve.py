"""One series by step, such as the loss."""

from __future__ import annotations

import math
from collections.abc import Sequence

from markupsafe import Markup

from recsys.formats import count
from recsys.report.pictures.frame import Frame
from recsys.report.pictures.scales import ticks

Point = tuple[float, float]

_MOST_POINTS = 300


def draw_curve(
    points: Sequence[Point], width: int, height: int, says: str, best: float | None = None
) -> Markup:
    """Returns the picture of `points` (step, value), sorted by step; empty for none.

    Args:
        points: Finite numbers.
        width: Width of the picture [pixels].
        height: Height of the picture [pixels].
        says: The picture in words.
        best: A step to mark.
    """
    if not points:
        return Markup()
    thinned = thin_out(points, _MOST_POINTS)
    end = max(thinned[-1][0], 1.0)
    frame, y_ticks = Frame.around(
        (0.0, end), (value for _, value in thinned), (width, height), log_x=False
    )
    x_ticks = [
        (tick, count(tick))
        for tick in ticks(0.0, end, max(4, width // 140))
        if tick <= end and tick == int(tick)
    ]
    path = " ".join(f"{x},{y}" for x, y in (frame.at(*point) for point in thinned))
    x, y = frame.at(*thinned[-1])
    marks = f'<circle class="dot" cx="{x}" cy="{y}" r="3.5"/>'
    marks += "".join(_ring(frame, point) for point in points if point[0] == best)
    line = f'<polyline class="line" points="{path}"/>'
    return frame.drawn(f"{frame.axes(x_ticks, y_ticks, 'step')}{line}{marks}", says)


def _ring(frame: Frame, point: Point) -> str:
    x, y = frame.at(*point)
    return f'<circle class="ring" cx="{x}" cy="{y}" r="7"/>'


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
