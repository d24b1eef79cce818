"""Charts as SVG: no script, and colours that the page's style sheet decides.

Every series has a dash and a mark of its own, so that colour alone never tells two apart; the
classes `s0` … `s5` take both from the style sheet.

Measured against matplotlib 3.10 (`svg.fonttype: none`): importing it takes 1.7 s of a core and
a chart of six series 104 ms and 17 KB, an interval in a table's row 15 ms and 2.3 KB. Here a
chart takes 0.3 ms and 2.8 KB, an interval 8 µs and 0.3 KB. A report has some 20 charts and
50 intervals, so matplotlib would cost about 4.5 s a run.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Callable, Iterable, Iterator, Sequence
from typing import Any, NamedTuple

import numpy as np
from markupsafe import Markup, escape

from recsys.formats import count

Tick = tuple[float, str]
Size = tuple[int, int]
LEFT, RIGHT, TOP, BOTTOM = 44, 12, 14, 42
_Y_TICKS = 5
_HALF_LETTER = 3.8
"""Half of the width of a letter of a label, at most [pixels]."""
_LOG = " (logarithmic)"


def picture(
    title: str, caption: str, draw: Callable[[Size], Markup], wide: Size, narrow: Size
) -> dict[str, Any]:
    """Returns a chart for desktops and for phones, with its `title` and `caption`."""
    return {"title": title, "caption": caption, "wide": draw(wide), "narrow": draw(narrow)}


# --- scales and ticks


@dataclasses.dataclass(frozen=True)
class Scale:
    """Turns numbers into places along one side of a chart.

    Attributes:
        low: The number at `start`.
        high: The number at `end`, another one than `low`.
        start: First place [pixels].
        end: Last place [pixels]; before `start` for an axis that points up.
        is_log: Whether equal ratios are equally far apart; the numbers are positive then.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Returns the place of `value` [pixels], to a tenth."""
        low, high = self.low, self.high
        if self.is_log:
            low, high, value = math.log(low), math.log(high), math.log(value)
        return round(self.start + (self.end - self.start) * (value - low) / (high - low), 1)

    def holds(self, value: float) -> bool:
        """Returns whether `value` lies on the scale."""
        return self.low <= value <= self.high


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


def spread(n: int, most: int) -> list[int]:
    """Returns at most `most` of 0 … `n - 1`, evenly spread, the first and the last among them."""
    return sorted({round(place) for place in np.linspace(0, n - 1, min(n, most)).tolist()})


def decades(high: float) -> list[float]:
    """Returns 1, 10, 100, … up to the first that reaches `high`; two at least."""
    n = max(1, math.ceil(math.log10(max(high, 1.0)) - 1e-9))
    return [10.0**i for i in range(n + 1)]


def named(places: Sequence[float]) -> list[Tick]:
    """Returns places with their numbers as text, all with as many decimals."""
    texts = [f"{place:g}" for place in places]
    if any("e" in text for text in texts):
        return list(zip(places, texts, strict=True))
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [(place, f"{place:.{decimals}f}") for place in places]


# --- frames


@dataclasses.dataclass(frozen=True)
class _Frame:
    """A chart's size [pixels] and its two axes."""

    width: int
    height: int
    x: Scale
    y: Scale

    @classmethod
    def around(
        cls, x: tuple[float, float], y: Iterable[float], size: Size, *, log_x: bool = False
    ) -> tuple[_Frame, list[Tick]]:
        """Returns a frame whose axis up holds all of `y`, and the ticks of that axis."""
        values, (width, height) = list(y), size
        places = ticks(min(values), max(values), _Y_TICKS)
        end = x[1] if x[1] > x[0] else x[0] + 1.0
        across = Scale(x[0], end, LEFT, width - RIGHT, log_x)
        up = Scale(places[0], places[-1], height - BOTTOM, TOP)
        return cls(width, height, across, up), named(places)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Returns the place of the data point (x, y) [pixels]."""
        return self.x.at(x), self.y.at(y)

    def axes(
        self, x_ticks: Iterable[Tick], y_ticks: Iterable[Tick], x_name: str, drop: int = 0
    ) -> str:
        """Returns lines across at `y_ticks`, and the names of all ticks and of the axis.

        Args:
            x_ticks: Places across that have a name.
            y_ticks: Places up that have a line and a name.
            x_name: What is across.
            drop: How much lower the names across stand, to leave room for marks [pixels].
        """
        end, base = self.width - RIGHT, self.height - BOTTOM
        parts = [
            f'<line class="grid" x1="{LEFT}" x2="{end}" y1="{y}" y2="{y}"/>'
            + _label(LEFT - 6, y + 4, "end", text)
            for y, text in ((self.y.at(tick), text) for tick, text in y_ticks)
        ]
        parts += [
            _label(x, base + 16 + drop, "middle" if self._has_room(x, text) else "end", text)
            for x, text in ((self.x.at(tick), text) for tick, text in x_ticks)
        ]
        if x_name:
            parts.append(_label((LEFT + end) / 2, base + 35, "middle", x_name))
        return "".join(parts)

    def _has_room(self, x: float, text: str) -> bool:
        """Returns whether a name centred at `x` ends within the chart."""
        return x + _HALF_LETTER * len(text) <= self.width

    def drawn(self, content: str, says: str, kind: str = "") -> Markup:
        """Returns the whole chart; `says` is the chart in words."""
        return svg(f"picture {kind}", (self.width, self.height), content, says)


def svg(kind: str, size: Size, content: str, says: str = "") -> Markup:
    """Returns a picture of so many pixels; `says` is the picture in words."""
    width, height = size
    role = f'role="img" aria-label="{escape(says)}"' if says else 'aria-hidden="true"'
    return Markup(  # noqa: S704 - numbers, and text that `_label` and this escape
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f" {role}>{content}</svg>"
    )


def _label(x: float, y: float, anchor: str, text: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


# --- lines with a mark and a dash each

_MARKS = (
    "m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",  # a dot
    "m-3.2 -3.2h6.4v6.4h-6.4z",
    "m0 -4.3l4.1 7.5h-8.2z",
    "m0 -4.7l4.7 4.7l-4.7 4.7l-4.7 -4.7z",
    "m-3.2 -3.2l6.4 6.4m0 -6.4l-6.4 6.4",  # a cross
    "m0 4.3l4.1 -7.5h-8.2z",
)
"""The mark of each style, around its place."""
_CAP = 3.0
_ROOM_FOR_MARKS = 16
_LOG_MARGIN = 0.04
"""Room before the first and after the last place of a logarithmic axis, as a share of it."""


class Series(NamedTuple):
    """One line.

    Attributes:
        style: Which mark and dash it has, see `key`.
        points: Places across and values; a value of None breaks the line.
        intervals: Place across, low end and high end of each whisker.
    """

    style: int
    points: Sequence[tuple[float, float | None]]
    intervals: Sequence[tuple[float, float, float]] = ()

    def values(self) -> list[float]:
        """Returns every number that must be within the chart."""
        ends = [end for _, *both in self.intervals for end in both]
        return [y for _, y in self.points if y is not None] + ends


def key(style: int) -> Markup:
    """Returns a sample of the series `style`, for a legend."""
    line = f'<path class="stroke" d="M1 6h32"/><g class="mark">{_mark(style, 17, 6)}</g>'
    return svg("key-sample", (34, 12), f'<g class="series s{style % len(_MARKS)}">{line}</g>')


def draw_lines(
    series: Sequence[Series],
    x_ticks: Sequence[Tick],
    says: str,
    size: Size,
    *,
    x_name: str = "",
    log_x: bool = False,
    margin: float = 0.0,
    events: Sequence[tuple[float, str]] = (),
) -> Markup:
    """Returns a chart of lines; empty where no series has a number.

    Args:
        series: The lines; the first is drawn on top.
        x_ticks: Places across that have a name.
        says: The chart in words.
        size: Width and height [pixels].
        x_name: What is across.
        log_x: Whether the axis across is logarithmic.
        margin: Room before the first and after the last place across, in its numbers; a
            logarithmic axis has its own.
        events: Places across with a word, such as `failed`, whose first letter marks them.
    """
    values = [value for line in series for value in line.values()]
    if not values:
        return Markup()
    places = [x for line in series for x, _ in line.points] + [x for x, _ in events]
    ends = (min(places) - margin, max(places) + margin)
    if log_x:
        pad = (max(places) / min(places)) ** _LOG_MARGIN
        ends, x_name = (min(places) / pad, max(places) * pad), x_name and f"{x_name}{_LOG}"
    frame, y_ticks = _Frame.around(ends, [0.0, *values], size, log_x=log_x)
    drawn = [frame.axes(x_ticks, y_ticks, x_name, _ROOM_FOR_MARKS if events else 0)]
    drawn += [_series(frame, line) for line in reversed(series)]
    drawn += [
        f'<g class="event {escape(word)}">'
        f"{_label(frame.x.at(x), frame.y.start + 15, 'middle', word[:1].upper(), 'letter')}</g>"
        for x, word in events
    ]
    return frame.drawn("".join(drawn), says)


def _series(frame: _Frame, series: Series) -> str:
    whiskers = "".join(_error_bar(frame, *interval) for interval in series.intervals)
    paths = _paths(frame, series.points)
    lines = "".join(f'<polyline class="stroke" points="{path}"/>' for path in paths)
    marks = "".join(_mark(series.style, *frame.at(x, y)) for x, y in series.points if y is not None)
    kind = f"series s{series.style % len(_MARKS)}"
    return f'<g class="{kind}">{whiskers}{lines}<g class="mark">{marks}</g></g>'


def _paths(frame: _Frame, points: Sequence[tuple[float, float | None]]) -> Iterator[str]:
    """Yields the places of each stretch of points without a gap."""
    stretch: list[str] = []
    for x, y in [*points, (0.0, None)]:
        if y is not None:
            stretch.append("{},{}".format(*frame.at(x, y)))
            continue
        if len(stretch) > 1:
            yield " ".join(stretch)
        stretch = []


def _error_bar(frame: _Frame, x: float, low: float, high: float) -> str:
    across, top = frame.at(x, high)
    bottom, cap = frame.y.at(low), f"{across - _CAP:g}"
    return (
        f'<path class="whisker" d="M{across} {top}V{bottom}M{cap} {top}h{2 * _CAP:g}'
        f'M{cap} {bottom}h{2 * _CAP:g}"/>'
    )


def _mark(style: int, x: float, y: float) -> str:
    return f'<path d="M{x:g} {y:g}{_MARKS[style % len(_MARKS)]}"/>'


def dot(x: float, y: float, r: float, kind: str) -> str:
    """Returns a dot of a class of the style sheet."""
    return f'<circle class="{kind}" cx="{x:g}" cy="{y:g}" r="{r:g}"/>'


# --- one curve over the steps of a training

Point = tuple[float, float]
_MOST_POINTS = 300


def draw_curve(points: Sequence[Point], size: Size, says: str, best: float | None = None) -> Markup:
    """Returns the chart of `points` (step, value), sorted by step; empty for none.

    Args:
        points: Finite numbers.
        size: Width and height [pixels].
        says: The chart in words.
        best: A step to mark.
    """
    if not points:
        return Markup()
    thinned = thin_out(points, _MOST_POINTS)
    end = max(thinned[-1][0], 1.0)
    frame, y_ticks = _Frame.around((0.0, end), (value for _, value in thinned), size)
    steps = ticks(0.0, end, max(4, size[0] // 140))
    x_ticks = [(step, count(step)) for step in steps if step <= end and step == int(step)]
    path = " ".join("{},{}".format(*frame.at(*point)) for point in thinned)
    parts = [frame.axes(x_ticks, y_ticks, "step"), f'<polyline class="line" points="{path}"/>']
    parts.append(dot(*frame.at(*thinned[-1]), 3.5, "dot"))
    parts += [dot(*frame.at(*point), 7, "ring") for point in points if point[0] == best]
    return frame.drawn("".join(parts), says)


def thin_out(points: Sequence[Point], at_most: int) -> list[Point]:
    """Returns at most `at_most` points: means of equal stretches, and the ends as they are."""
    if len(points) <= at_most:
        return list(points)
    inner = points[1:-1]
    stretch = math.ceil(len(inner) / (at_most - 2))
    means = [np.mean(inner[i : i + stretch], axis=0) for i in range(0, len(inner), stretch)]
    return [points[0], *((float(x), float(y)) for x, y in means), points[-1]]


# --- clouds of dots

_STRIP = 22
"""Room for the counts of 0, which a logarithm can't show [pixels]."""
_CELL = 5.0
_LEAST_R, _MOST_R = 2.0, 7.0
_DROP = 4
"""How much lower the counts across stand, below the largest dots [pixels]."""


def draw_cloud(
    points: Sequence[Point],
    size: Size,
    names: tuple[str, str],
    says: str,
    slope: float | None = None,
) -> Markup:
    """Returns the chart of `points`; empty for none.

    Points that would lie upon each other are one dot, the larger the more they are.

    Args:
        points: Counts across and up, none negative.
        size: Width and height [pixels].
        names: What is across, and what is up.
        says: The chart in words.
        slope: Draws the line up = slope × across.
    """
    if not points:
        return Markup()
    (width, height), zero = size, size[1] - BOTTOM
    x_ticks, y_ticks = (decades(max(counts)) for counts in zip(*points, strict=True))
    across = Scale(1.0, x_ticks[-1], LEFT + _STRIP, width - RIGHT, is_log=True)
    up = Scale(1.0, y_ticks[-1], zero - _STRIP, TOP + 12, is_log=True)
    frame = _Frame(width, height, across, up)
    parts = [
        frame.axes(_short(x_ticks), _short(y_ticks), f"{names[0]}{_LOG}", _DROP),
        f'<line class="grid" x1="{LEFT}" x2="{width - RIGHT}" y1="{zero}" y2="{zero}"/>',
        _label(LEFT - _MOST_R - 3, zero + 4, "end", "0"),
        _label(LEFT, zero + 16 + _DROP, "middle", "0"),
        _label(0, 10, "start", f"{names[1]}{_LOG}"),
        _slope(frame, slope) if slope else "",
        f'<g class="cloud">{"".join(_dots(frame, points))}</g>',
    ]
    return frame.drawn("".join(parts), says, "scatter")


def _short(places: Iterable[float]) -> list[Tick]:
    """Names powers of ten so that they fit beside an axis: `1,000`, `100 k`, `10 M`."""
    units = ((1e7, 1e6, " M"), (1e4, 1e3, " k"), (0.0, 1.0, ""))
    ticks = []
    for place in places:
        size, sign = next((size, sign) for least, size, sign in units if place >= least)
        ticks.append((place, f"{place / size:,.0f}{sign}"))
    return ticks


def _dots(frame: _Frame, points: Iterable[Point]) -> Iterator[str]:
    """Yields a dot for each cell of the chart that holds a point."""
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


def _slope(frame: _Frame, slope: float) -> str:
    """Returns the part of the line that lies within the axes."""
    first, last = max(1.0, 1.0 / slope), min(frame.x.high, frame.y.high / slope)
    if last <= first:
        return ""
    (x1, y1), (x2, y2) = frame.at(first, slope * first), frame.at(last, slope * last)
    return f'<line class="even" x1="{x1}" y1="{y1}" x2="{x2}" y2="{y2}"/>'
