"""Charts as SVG, without scripts; the page's style sheet decides on the colours.

Each series has its own dash and marker, so that no two differ only in colour; the classes `s0` …
`s7` take both from the style sheet.

Measured against matplotlib 3.10 (`svg.fonttype: none`): its import takes 1.7 s, a chart of six
series 104 ms and 17 KB. Here a chart takes 0.3 ms and 2.8 KB. A report has some 20 charts and
50 intervals, so matplotlib would cost about 4.5 s per run.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

import numpy as np
from markupsafe import Markup, escape

from recsys.formats import count, is_number

Tick = tuple[float, str]
Point = tuple[float, float | None]

WIDTH, HEIGHT = 480, 250
LEFT, RIGHT, TOP, BOTTOM = 50, 12, 14, 42
"""Size and margins of a chart [pixels]."""
_Y_TICKS = 5
_INSET = 16
"""Distance of the first and last marker from the ends of the x axis [pixels]."""
_MOST_POINTS = 300


@dataclasses.dataclass(frozen=True)
class Scale:
    """Maps numbers to positions along one axis of a chart.

    Attributes:
        low: The number at `start`.
        high: The number at `end`, different from `low`.
        start: First position [pixels].
        end: Last position [pixels]; before `start` for an axis that points up.
        is_log: Whether the scale is logarithmic.
    """

    low: float
    high: float
    start: float
    end: float
    is_log: bool = False

    def at(self, value: float) -> float:
        """Returns the position of `value` [pixels], to a tenth."""
        low, high, x = map(math.log if self.is_log else float, (self.low, self.high, value))
        return round(self.start + (self.end - self.start) * (x - low) / (high - low), 1)

    def holds(self, value: float) -> bool:
        """Returns whether `value` is on the scale."""
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
    """Returns at most `most` of 0 … `n - 1`, evenly spread, including the first and the last."""
    return sorted({round(index) for index in np.linspace(0, n - 1, min(n, most)).tolist()})


def _named(values: Sequence[float]) -> list[Tick]:
    """Returns numbers with their texts, all with the same number of decimals."""
    texts = [f"{value:g}" for value in values]
    if any("e" in text for text in texts):
        return list(zip(values, texts, strict=True))
    decimals = max(len(text.partition(".")[2]) for text in texts)
    return [(value, f"{value:.{decimals}f}") for value in values]


# --- charts with two axes

_MARKS = (
    "m-3.6 0a3.6 3.6 0 1 0 7.2 0a3.6 3.6 0 1 0 -7.2 0z",  # a dot
    "m-3.2 -3.2h6.4v6.4h-6.4z",
    "m0 -4.3l4.1 7.5h-8.2z",
    "m0 -4.7l4.7 4.7l-4.7 4.7l-4.7 -4.7z",
    "m0 -4.4l4.2 3l-1.6 5h-5.2l-1.6 -5z",  # a pentagon
    "m-3.2 -3.2l6.4 6.4m0 -6.4l-6.4 6.4",  # a cross
    "m-4.2 0h8.4m-4.2 -4.2v8.4",
    "m0 4.3l4.1 -7.5h-8.2z",
)
"""The marker of each style, relative to its position."""


class Series(NamedTuple):
    """One series of a chart.

    Attributes:
        style: Its marker and dash, see `key`.
        points: x and y of each point; a y of None breaks the line.
        intervals: x, low end and high end of each whisker.
        has_marks: Whether points have a marker; long curves have none.
    """

    style: int
    points: Sequence[Point]
    intervals: Sequence[tuple[float, float, float]] = ()
    has_marks: bool = True


@dataclasses.dataclass(frozen=True)
class Chart:
    """A chart.

    Attributes:
        title: Its title; may be empty.
        caption: The chart in words.
        series: The series; the first is drawn on top.
        x_ticks: Labelled positions on the x axis; None: round numbers.
        x_name: Label of the x axis.
        is_log: Whether the x axis is logarithmic.
        from_zero: Whether the y axis contains 0.
        events: x and a word, such as `failed`, whose first letter is drawn below the axis.
    """

    title: str
    caption: str
    series: Sequence[Series]
    x_ticks: Sequence[Tick] | None = None
    x_name: str = ""
    is_log: bool = False
    from_zero: bool = True
    events: Sequence[tuple[float, str]] = ()

    @property
    def svg(self) -> Markup:
        """The chart as SVG; empty without a point."""
        points = [point for series in self.series for point in series.points]
        whiskers = [interval for series in self.series for interval in series.intervals]
        x = [x for x, _ in points] + [x for x, _ in self.events]
        y = [y for _, y in points if y is not None] + [e for _, *ends in whiskers for e in ends]
        if not y:
            return Markup()
        zero = [0.0] if self.from_zero else []
        y_ticks = _named(ticks(min(y + zero), max(y + zero), _Y_TICKS))
        up = Scale(y_ticks[0][0], y_ticks[-1][0], HEIGHT - BOTTOM, TOP)
        end = max(x) if max(x) > min(x) else min(x) + 1.0
        across = Scale(min(x), end, LEFT + _INSET, WIDTH - RIGHT - _INSET, self.is_log)
        parts = [self._axes(across, up, y_ticks)]
        parts += [_drawn_series(across, up, series) for series in reversed(self.series)]
        parts += [
            f'<g class="event {escape(word)}">'
            f"{_label(across.at(at), up.start + 15, 'middle', word[:1].upper(), 'letter')}</g>"
            for at, word in self.events
        ]
        return _svg("chart", WIDTH, HEIGHT, "".join(parts), self.caption)

    def _axes(self, x: Scale, y: Scale, y_ticks: Sequence[Tick]) -> str:
        """Returns the grid, and the labels of ticks and axes."""
        end, base, low = WIDTH - RIGHT, y.start, 32 if self.events else 16
        parts = [
            f'<line class="grid" x1="{LEFT}" x2="{end}" y1="{at}" y2="{at}"/>'
            + _label(LEFT - 6, at + 4, "end", text)
            for at, text in ((y.at(tick), text) for tick, text in y_ticks)
        ]
        x_ticks = self.x_ticks
        if x_ticks is None:
            steps = ticks(x.low, x.high, 4)
            x_ticks = [(at, count(at)) for at in steps if x.holds(at) and at == int(at)]
        parts += [_label(x.at(at), base + low, "middle", text) for at, text in x_ticks]
        if self.x_name:
            name = f"{self.x_name} (logarithmic)" if self.is_log else self.x_name
            parts.append(_label((LEFT + end) / 2, base + 35, "middle", name))
        return "".join(parts)


def _drawn_series(x: Scale, y: Scale, series: Series) -> str:
    parts = [_whisker(x.at(at), y.at(low), y.at(high)) for at, low, high in series.intervals]
    points = series.points if series.has_marks else _thinned(series.points)
    parts += [f'<polyline class="stroke" points="{path}"/>' for path in _paths(x, y, points)]
    if series.has_marks:
        marks = [_mark(series.style, x.at(a), y.at(b)) for a, b in points if b is not None]
        parts.append(f'<g class="mark">{"".join(marks)}</g>')
    return f'<g class="series s{series.style % len(_MARKS)}">{"".join(parts)}</g>'


def _thinned(points: Sequence[Point]) -> list[Point]:
    """Returns at most `_MOST_POINTS` points, the means of stretches that are equally long."""
    if len(points) <= _MOST_POINTS:
        return list(points)
    stretches = np.array_split(np.array(points, np.float64), _MOST_POINTS)
    return [(float(x), float(y)) for x, y in (stretch.mean(axis=0) for stretch in stretches)]


def _paths(x: Scale, y: Scale, points: Iterable[Point]) -> Iterator[str]:
    """Yields the positions of each stretch of points without a gap."""
    stretch: list[str] = []
    for a, b in [*points, (0.0, None)]:
        if b is not None:
            stretch.append(f"{x.at(a)},{y.at(b)}")
            continue
        if len(stretch) > 1:
            yield " ".join(stretch)
        stretch = []


def _whisker(x: float, low: float, high: float) -> str:
    caps = "".join(f"M{x - 3:g} {end}h6" for end in (high, low))
    return f'<path class="whisker" d="M{x} {high}V{low}{caps}"/>'


def _mark(style: int, x: float, y: float) -> str:
    return f'<path d="M{x:g} {y:g}{_MARKS[style % len(_MARKS)]}"/>'


def key(style: int) -> Markup:
    """Returns a sample of the series `style`, for a legend."""
    line = f'<path class="stroke" d="M1 6h32"/><g class="mark">{_mark(style, 17, 6)}</g>'
    return _svg("key-sample", 34, 12, f'<g class="series s{style % len(_MARKS)}">{line}</g>')


def _svg(kind: str, width: int, height: int, content: str, says: str = "") -> Markup:
    role = f'role="img" aria-label="{escape(says)}"' if says else 'aria-hidden="true"'
    return Markup(  # noqa: S704 - numbers, and text that `_label` and this escape
        f'<svg class="{kind}" viewBox="0 0 {width} {height}" width="{width}" height="{height}"'
        f" {role}>{content}</svg>"
    )


def _label(x: float, y: float, anchor: str, text: str, kind: str = "label") -> str:
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


# --- small charts for the rows of a table

_ROW_WIDTH, _ROW_HEIGHT = 150, 18
_PAD, _MIDDLE = 7, 9
_WIDEST = 3.0


class Estimate(NamedTuple):
    """A value and the ends of its interval."""

    value: float
    low: float
    high: float


def shared_range(estimates: Iterable[Estimate], also: Iterable[float] = (0.0,)) -> Scale:
    """Returns one scale for intervals that are drawn below each other.

    It holds all values, and an interval unless it is much wider than the values are apart:
    one unbounded interval would leave no room for the others.

    Args:
        estimates: The intervals.
        also: Other numbers that must be on the scale.
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
    return Scale(low, high, _PAD, _ROW_WIDTH - _PAD)


def draw_interval(
    estimate: Estimate,
    scale: Scale,
    says: str,
    zero: float | None = 0.0,
    least: float | None = None,
    is_lower: bool = False,
) -> Markup:
    """Returns an interval; an end beyond the scale is an arrow.

    Args:
        estimate: The value and its interval.
        scale: The scale, see `shared_range`.
        says: The chart in words.
        zero: Position of the thin line that means no difference; None for none. It decides
            the colour of an interval that doesn't contain it.
        least: Position of the dashed line of a threshold; None for none.
        is_lower: Whether lower values are better.
    """
    lines = "".join(
        f'<line class="{kind}" x1="{scale.at(x)}" x2="{scale.at(x)}" y1="0" y2="{_ROW_HEIGHT}"/>'
        for kind, x in (("zero", zero), ("least", least))
        if x is not None and scale.holds(x)
    )
    value, low, high = estimate
    side = "level"
    if zero is not None and not low <= zero <= high:
        side = "better" if (low > zero) != is_lower else "worse"
    first, last = (scale.at(min(max(end, scale.low), scale.high)) for end in (low, high))
    parts = [f'<path class="whisker" d="M{first} {_MIDDLE}H{last}"/>']
    for end, at, way in ((low, first, -1), (high, last, 1)):
        if scale.holds(end):
            parts.append(f'<path class="whisker" d="M{at} {_MIDDLE - 4}v8"/>')
        elif (end > scale.high) == (way > 0):
            parts.append(f'<path class="arrow" d="M{at + 5 * way} {_MIDDLE}l{-6 * way} -4.5v9z"/>')
    if scale.holds(value):
        parts.append(f'<circle class="dot" cx="{scale.at(value):g}" cy="{_MIDDLE}" r="3.5"/>')
    content = f'{lines}<g class="{side}">{"".join(parts)}</g>'
    return _svg("interval", _ROW_WIDTH, _ROW_HEIGHT, content, says)


def draw_bars(heights: Sequence[object]) -> Markup:
    """Returns a histogram; empty if all heights are 0."""
    numbers = [value if is_number(value) else 0.0 for value in heights]
    highest = max(numbers, default=0.0)
    if highest <= 0:
        return Markup()
    step = 100 / len(numbers)
    # The smallest bar is still visible.
    tall = [max(1.0, 24 * value / highest) if value > 0 else 0.0 for value in numbers]
    bars = "".join(
        f'<rect x="{i * step:.1f}" y="{24 - high:.1f}" width="{max(step - 1, 1):.1f}"'
        f' height="{high:.1f}"/>'
        for i, high in enumerate(tall)
    )
    return _svg("bar-chart", 100, 24, bars)
