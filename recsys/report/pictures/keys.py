"""The mark and the dash of each series, and a sample of both for a legend.

The classes `s0` … `s5` take their colour and their dash from the style sheet.
"""

from __future__ import annotations

from collections.abc import Callable

from markupsafe import Markup

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
