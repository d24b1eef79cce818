"""Scales, ticks, and the marks that tell series apart, for pictures as SVG.

A scale turns numbers into places. Every series has a dash and a mark of its own, so that
colour alone never tells two apart; the classes `s0` … `s5` take both from the style sheet.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Callable

from markupsafe import Markup


@dataclasses.dataclass(frozen=True)
class Scale:
    """Turns numbers into places along one side of a picture.

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
        low, high, value = (math.log(x) if self.is_log else x for x in self._with(value))
        return round(self.start + (self.end - self.start) * (value - low) / (high - low), 1)

    def held(self, value: float) -> float:
        """Returns the place of `value` [pixels], or of the end that it lies beyond."""
        return self.at(min(max(value, self.low), self.high))

    def _with(self, value: float) -> tuple[float, float, float]:
        return self.low, self.high, value


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


def decades(high: float) -> list[float]:
    """Returns 1, 10, 100, … up to the first that reaches `high`; two at least."""
    n = max(1, math.ceil(math.log10(max(high, 1.0)) - 1e-9))
    return [10.0**i for i in range(n + 1)]


_R = 3.6


def _circle(x: float, y: float) -> str:
    return f'<circle cx="{x:g}" cy="{y:g}" r="{_R}"/>'


def _square(x: float, y: float) -> str:
    side = 2 * _R - 0.8
    return f'<rect x="{x - side / 2:g}" y="{y - side / 2:g}" width="{side:g}" height="{side:g}"/>'


def _polygon(x: float, y: float, corners: tuple[tuple[float, float], ...]) -> str:
    places = " ".join(f"{x + _R * dx:.1f},{y + _R * dy:.1f}" for dx, dy in corners)
    return f'<polygon points="{places}"/>'


def _triangle(x: float, y: float) -> str:
    return _polygon(x, y, ((0, -1.2), (1.15, 0.9), (-1.15, 0.9)))


def _diamond(x: float, y: float) -> str:
    return _polygon(x, y, ((0, -1.3), (1.3, 0), (0, 1.3), (-1.3, 0)))


def _cross(x: float, y: float) -> str:
    r = _R - 0.4
    return f'<path d="M{x - r:g} {y - r:g}l{2 * r:g} {2 * r:g}m0 {-2 * r:g}l{-2 * r:g} {2 * r:g}"/>'


def _down(x: float, y: float) -> str:
    return _polygon(x, y, ((0, 1.2), (1.15, -0.9), (-1.15, -0.9)))


_MARKS: tuple[Callable[[float, float], str], ...] = (
    _circle, _square, _triangle, _diamond, _cross, _down,
)  # fmt: skip
N_STYLES = len(_MARKS)


def mark(style: int, x: float, y: float) -> str:
    """Returns the mark of the series `style` at a place [pixels]."""
    return _MARKS[style % N_STYLES](x, y)


def key(style: int) -> Markup:
    """Returns a sample of the series `style`, for a legend."""
    return Markup(  # noqa: S704 - numbers only
        f'<svg class="key-sample" viewBox="0 0 34 12" width="34" height="12" aria-hidden="true">'
        f'<g class="series s{style % N_STYLES}"><path class="stroke" d="M1 6h32"/>'
        f'<g class="mark">{mark(style, 17, 6)}</g></g></svg>'
    )
