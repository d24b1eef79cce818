"""A scatter of counts on logarithmic axes, with a strip for 0 on either."""

from __future__ import annotations

import collections
import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from recsys.formats import count
from recsys.report.pictures.frame import BOTTOM, LEFT, RIGHT, TOP, Frame, Tick, label
from recsys.report.pictures.scales import Scale, decades

_STRIP = 22
"""Room for the counts of 0, which a logarithm can't show [pixels]."""
_CELL = 5.0
_LEAST_R, _MOST_R = 2.0, 7.0


def draw_cloud(
    points: Sequence[tuple[float, float]],
    size: tuple[int, int],
    names: tuple[str, str],
    says: str,
    slope: float | None = None,
) -> Markup:
    """Returns the picture of `points`; empty for none.

    Points that would lie upon each other are one dot, the larger the more they are.

    Args:
        points: Counts across and up, none negative.
        size: Width and height of the picture [pixels].
        names: What is across, and what is up.
        says: The picture in words.
        slope: Draws the line up = slope × across.
    """
    if not points:
        return Markup()
    width, height = size
    x_ticks = decades(max(x for x, _ in points))
    y_ticks = decades(max(y for _, y in points))
    frame = Frame(
        width,
        height,
        Scale(1.0, x_ticks[-1], LEFT + _STRIP, width - RIGHT, is_log=True),
        Scale(1.0, y_ticks[-1], height - BOTTOM - _STRIP, TOP + 12, is_log=True),
    )
    drawn = [_axes(frame, x_ticks, y_ticks, names)]
    if slope:
        drawn.append(_line(frame, slope))
    drawn.append(f'<g class="cloud">{"".join(_dots(frame, points))}</g>')
    return frame.drawn("".join(drawn), says, "scatter")


def _axes(
    frame: Frame, x_ticks: Sequence[float], y_ticks: Sequence[float], names: tuple[str, str]
) -> str:
    zero = frame.height - BOTTOM
    up: list[Tick] = [(tick, _short(tick)) for tick in y_ticks]
    across: list[Tick] = [(tick, _short(tick)) for tick in x_ticks]
    return "".join(
        [
            frame.axes(across, up, names[0]),
            f'<line class="grid" x1="{LEFT}" x2="{frame.width - RIGHT}" y1="{zero}" y2="{zero}"/>',
            label(LEFT - 6, zero + 4, "end", "0"),
            label(LEFT, zero + 16, "middle", "0"),
            label(0, 10, "start", names[1]),
        ]
    )


def _short(tick: float) -> str:
    """Returns a power of ten so that it fits beside an axis: `1,000`, `100 k`, `10 M`."""
    for unit, name in ((1e6, "M"), (1e3, "k")):
        if tick >= 10 * unit:
            return f"{tick / unit:,.0f} {name}"
    return count(tick)


def _dots(frame: Frame, points: Iterable[tuple[float, float]]) -> Iterable[str]:
    """Yields a dot for each cell of the picture that holds a point."""
    cells = collections.Counter(
        (
            round((frame.x.at(x) if x >= 1 else LEFT) / _CELL),
            round((frame.y.at(y) if y >= 1 else frame.height - BOTTOM) / _CELL),
        )
        for x, y in points
    )
    most = max(cells.values())
    for (x, y), n in sorted(cells.items()):
        r = _LEAST_R + (_MOST_R - _LEAST_R) * math.sqrt((n - 1) / most)
        yield f'<circle cx="{x * _CELL:g}" cy="{y * _CELL:g}" r="{r:.1f}"/>'


def _line(frame: Frame, slope: float) -> str:
    """Returns the part of the line that lies within the axes."""
    first = max(1.0, 1.0 / slope)
    last = min(frame.x.high, frame.y.high / slope)
    if last <= first:
        return ""
    (x1, y1), (x2, y2) = frame.at(first, slope * first), frame.at(last, slope * last)
    return f'<line class="even" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'
