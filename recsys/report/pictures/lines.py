"""Several series over one axis, with whiskers for intervals."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from markupsafe import Markup

from recsys.report.pictures.frame import Frame, Tick, label
from recsys.report.pictures.keys import N_STYLES, mark

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
        values = [value for one in self.series for value in one.values()]
        if not values:
            return Markup()
        places = [x for one in self.series for x, _ in one.points] + [x for x, _ in over]
        ends = (min(places) - self.margin, max(places) + self.margin)
        size = (width, height)
        frame, y_ticks = Frame.around(ends, [0.0, *values], size, log_x=self.log_x)
        drop = _ROOM_FOR_MARKS if over else 0
        drawn = [frame.axes(self.x_ticks, y_ticks, self.x_name, drop)]
        drawn += [_series(frame, one) for one in reversed(self.series)]
        drawn += [_word(frame, x, text) for x, text in over]
        return frame.drawn("".join(drawn), self.says)


def _series(frame: Frame, series: Series) -> str:
    parts = [_whisker(frame, *interval) for interval in series.intervals]
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


def _whisker(frame: Frame, x: float, low: float, high: float) -> str:
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
