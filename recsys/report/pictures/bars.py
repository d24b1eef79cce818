"""Counts as small bars, for a row of a table."""

from __future__ import annotations

from collections.abc import Sequence

from markupsafe import Markup

from recsys.formats import is_number

_GAP = 1


def draw_bars(counts: Sequence[float], width: int, height: int) -> Markup:
    """Returns bars as high as `counts`; empty where there is nothing to see.

    Args:
        counts: Numbers that are not negative.
        width: Width of the picture [pixels].
        height: Height of the highest bar [pixels].
    """
    highest = max((one for one in counts if is_number(one)), default=0)
    if highest <= 0:
        return Markup()
    step = width / len(counts)
    bars = []
    for i, one in enumerate(counts):
        # What is there is seen, however little it is.
        high = max(1.0, height * one / highest) if is_number(one) and one > 0 else 0.0
        bars.append(
            f'<rect x="{i * step:.1f}" y="{height - high:.1f}"'
            f' width="{max(step - _GAP, 1):.1f}" height="{high:.1f}"/>'
        )
    return Markup(  # noqa: S704 - numbers only
        f'<svg class="bar-chart" viewBox="0 0 {width} {height}" width="{width}"'
        f' height="{height}" aria-hidden="true">{"".join(bars)}</svg>'
    )
