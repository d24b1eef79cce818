"""Finds the formats that times as text are written in."""

from __future__ import annotations

import functools
import itertools
import re

import pyarrow as pa

from recsys.data.sources.values import written_times
from recsys.data.time_format import time_pattern

_LEAST_SHARE = 0.9
_LONGEST = 64
_ORDERS = ("%d %m %Y", "%m %d %Y", "%Y %m %d", "%d %m %y", "%m %d %y", "%d %b %Y")
_DAYS = [
    *(order.replace(" ", sign) for sign in "/-." for order in _ORDERS),
    *("%B %d, %Y", "%d %B %Y", "%d. %B %Y", "%B %d %Y", "%a, %d %b %Y", "%A, %B %d, %Y"),
    *("%Y年%m月%d日", "%Y%m%d"),
]
_CLOCKS = (
    *(" %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", ", %H:%M", ", %H:%M:%S"),
    *(", %I:%M %p", ", %I:%M:%S %p", "T%H:%M:%S", ":%H:%M:%S"),
)
_ZONES = ("", " %z", " %Z")
_FORMATS = [
    *_DAYS,
    *(f"{day}{clock}{zone}" for day, clock, zone in itertools.product(_DAYS, _CLOCKS, _ZONES)),
    *(f"%a %b %d %H:%M:%S{zone} %Y" for zone in _ZONES),
]


def find_formats(texts: pa.Array) -> tuple[str, ...]:
    """Returns the formats that fit nearly all texts; several if they fit equally well.

    Args:
        texts: Distinct texts `[n]`.
    """
    few = texts.slice(0, 8).to_pylist()
    if not few or max(map(len, few)) > _LONGEST:
        return ()
    shares = {
        format_: 1.0 - written_times(texts, format_).null_count / len(texts)
        for format_, pattern in _patterns().items()
        if sum(pattern.match(text) is not None for text in few) >= 0.5 * len(few)
    }
    best = max(shares.values(), default=0.0)
    return tuple(f for f, share in shares.items() if share == best and best >= _LEAST_SHARE)


@functools.cache
def _patterns() -> dict[str, re.Pattern[str]]:
    return {format_: re.compile(time_pattern(format_)) for format_ in _FORMATS}
