"""The grid and the axes of a large picture."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence

from markupsafe import Markup, escape

from recsys.report.pictures.scales import Scale, ticks

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
