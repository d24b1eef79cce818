"""Large pictures as SVG: no script, and colours that the page's style sheet decides.

Measured against matplotlib 3.10 (`svg.fonttype: none`): importing it takes 1.7 s of a core and
a chart of six series 104 ms and 17 KB, an interval in a table's row 15 ms and 2.3 KB. Here a
chart takes 0.3 ms and 2.8 KB, an interval 8 µs and 0.3 KB. A report has some 20 charts and
50 intervals, so matplotlib would cost about 4.5 s a run.
"""

from __future__ import annotations

import collections
import dataclasses
import math
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from recsys.formats import count
from recsys.report.scales import N_STYLES, Scale, decades, mark, ticks


@dataclasses.dataclass(frozen=True)
class Picture:
    """One picture.

    Attributes:
        title: What it shows; may be empty.
        wide: It for a desktop, as SVG.
        narrow: It for a phone.
        caption: It in words.
    """

    title: str
    wide: Markup
    narrow: Markup
    caption: str


Tick = tuple[float, str]

LEFT, RIGHT, TOP, BOTTOM = 44, 12, 14, 42
_Y_TICKS = 5


@dataclasses.dataclass(frozen=True)
class Frame:
    """A picture's size and its two axes.

    Attributes:
        width: Width of the picture [pixels].
        height: Height of the picture [pixels].
        x: The axis across.
        y: The axis up.
    """

    width: int
    height: int
    x: Scale
    y: Scale

    @classmethod
    def around(
        cls, x: tuple[float, float], y: Iterable[float], size: tuple[int, int], *, log_x: bool
    ) -> tuple[Frame, list[Tick]]:
        """Returns a frame whose axis up holds all of `y`, and the ticks of that axis.

        Args:
            x: First and last number across.
            y: Numbers that must be within; one at least.
            size: Width and height [pixels].
            log_x: Whether the axis across is logarithmic.
        """
        values = list(y)
        places = ticks(min(values), max(values), _Y_TICKS)
        width, height = size
        high = x[1] if x[1] > x[0] else x[0] + 1.0
        frame = cls(
            width,
            height,
            Scale(x[0], high, LEFT, width - RIGHT, log_x),
            Scale(places[0], places[-1], height - BOTTOM, TOP),
        )
        return frame, named(places)

    def at(self, x: float, y: float) -> tuple[float, float]:
        """Returns the place of the data point (x, y) [pixels]."""
        return self.x.at(x), self.y.at(y)

    def axes(
        self, x_ticks: Sequence[Tick], y_ticks: Sequence[Tick], x_name: str, drop: int = 0
    ) -> str:
        """Returns the lines of `y_ticks`, the names of all ticks, and that of the axis across.

        Args:
            x_ticks: Places across that have a name.
            y_ticks: Places up that have a line and a name.
            x_name: What is across.
            drop: How much lower the names across stand, to leave room for marks [pixels].
        """
        return "".join([self._up(y_ticks), self._across(x_ticks, drop), self._name(x_name)])

    def drawn(self, content: str, says: str, kind: str = "") -> Markup:
        """Returns the whole picture.

        Args:
            content: SVG elements.
            says: The picture in words.
            kind: Further class of the picture.
        """
        return Markup(  # noqa: S704 - numbers, and text that `label` and this escaped
            f'<svg class="picture {kind}" viewBox="0 0 {self.width} {self.height}"'
            f' width="{self.width}" height="{self.height}" role="img"'
            f' aria-label="{escape(says)}">{content}</svg>'
        )

    def _up(self, y_ticks: Sequence[Tick]) -> str:
        end = self.width - RIGHT
        parts = []
        for tick, text in y_ticks:
            y = self.y.at(tick)
            parts.append(f'<line class="grid" x1="{LEFT}" x2="{end}" y1="{y}" y2="{y}"/>')
            parts.append(label(LEFT - 6, y + 4, "end", text))
        return "".join(parts)

    def _across(self, x_ticks: Sequence[Tick], drop: int) -> str:
        y = self.height - BOTTOM + 16 + drop
        end = self.width - RIGHT
        return "".join(
            label(x, y, "end" if x > end - 20 else "middle", text)
            for x, text in ((self.x.at(tick), text) for tick, text in x_ticks)
        )

    def _name(self, x_name: str) -> str:
        if not x_name:
            return ""
        middle = (LEFT + self.width - RIGHT) / 2
        return label(middle, self.height - BOTTOM + 35, "middle", x_name)


def named(places: Sequence[float]) -> list[Tick]:
    """Returns places with their numbers as text, all with as many decimals."""
    decimals = max(len(f"{place:g}".partition(".")[2]) for place in places)
    if any("e" in f"{place:g}" for place in places):
        return [(place, f"{place:g}") for place in places]
    return [(place, f"{place:.{decimals}f}") for place in places]


def label(x: float, y: float, anchor: str, text: str, kind: str = "label") -> str:
    """Returns a text of a picture.

    Args:
        x: Place across [pixels].
        y: Place down of the base line [pixels].
        anchor: `start`, `middle` or `end`: which part of the text is at `x`.
        text: The text, as it is read.
        kind: Its class.
    """
    return f'<text class="{kind}" x="{x:g}" y="{y:g}" text-anchor="{anchor}">{escape(text)}</text>'


_CAP = 3.0
_ROOM_FOR_MARKS = 16


@dataclasses.dataclass(frozen=True)
class Series:
    """One line.

    Attributes:
        style: Which mark and dash it has, see `keys`.
        points: Places across and values; a value of None breaks the line.
        intervals: Place across, low end and high end of each whisker.
    """

    style: int
    points: Sequence[tuple[float, float | None]]
    intervals: Sequence[tuple[float, float, float]] = ()

    def values(self) -> Iterable[float]:
        """Yields every number that must be within the picture."""
        yield from (y for _, y in self.points if y is not None)
        for _, low, high in self.intervals:
            yield from (low, high)


@dataclasses.dataclass(frozen=True)
class Lines:
    """What to draw.

    Attributes:
        series: The lines; the first is drawn on top.
        x_ticks: Places across that have a name.
        x_name: What is across.
        says: The picture in words.
        log_x: Whether the axis across is logarithmic.
        margin: Room before the first and after the last place across, in its numbers.
    """

    series: Sequence[Series]
    x_ticks: Sequence[Tick]
    x_name: str
    says: str
    log_x: bool = False
    margin: float = 0.0

    def draw(self, width: int, height: int, over: Sequence[tuple[float, str]] = ()) -> Markup:
        """Returns the picture; empty where no series has a number.

        Args:
            width: Its width [pixels].
            height: Its height [pixels].
            over: Places across with a word, such as `failed`, whose first letter marks them.
        """
        values = [value for series in self.series for value in series.values()]
        if not values:
            return Markup()
        places = [x for series in self.series for x, _ in series.points] + [x for x, _ in over]
        ends = (min(places) - self.margin, max(places) + self.margin)
        size = (width, height)
        frame, y_ticks = Frame.around(ends, [0.0, *values], size, log_x=self.log_x)
        drop = _ROOM_FOR_MARKS if over else 0
        drawn = [frame.axes(self.x_ticks, y_ticks, self.x_name, drop)]
        drawn += [_series(frame, series) for series in reversed(self.series)]
        drawn += [_word(frame, x, text) for x, text in over]
        return frame.drawn("".join(drawn), self.says)


def _series(frame: Frame, series: Series) -> str:
    parts = [_error_bar(frame, *interval) for interval in series.intervals]
    parts += [f'<polyline class="stroke" points="{path}"/>' for path in _paths(frame, series)]
    marks = "".join(mark(series.style, *frame.at(x, y)) for x, y in series.points if y is not None)
    body = "".join(parts)
    return f'<g class="series s{series.style % N_STYLES}">{body}<g class="mark">{marks}</g></g>'


def _paths(frame: Frame, series: Series) -> Iterable[str]:
    """Yields the places of each stretch of points without a gap."""
    stretch: list[str] = []
    for x, y in [*series.points, (0.0, None)]:
        if y is not None:
            stretch.append("{},{}".format(*frame.at(x, y)))
            continue
        if len(stretch) > 1:
            yield " ".join(stretch)
        stretch = []


def _error_bar(frame: Frame, x: float, low: float, high: float) -> str:
    across, top = frame.at(x, high)
    bottom = frame.y.at(low)
    return (
        f'<path class="whisker" d="M{across} {top}V{bottom}M{across - _CAP:g} {top}h{2 * _CAP:g}'
        f'M{across - _CAP:g} {bottom}h{2 * _CAP:g}"/>'
    )


def _word(frame: Frame, x: float, text: str) -> str:
    """Returns a mark under the axis: the first letter of what happened there."""
    across, y = frame.x.at(x), frame.y.start + 15
    letter = label(across, y, "middle", text[:1].upper(), "letter")
    return f'<g class="event {text}">{letter}</g>'


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
