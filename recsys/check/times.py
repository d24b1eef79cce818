"""Whether values are times: in which unit, or in which format of text."""

from __future__ import annotations

import functools
import itertools
import re

import numpy as np
import pyarrow as pa

from recsys.config import TimestampUnit
from recsys.config.time_format import time_pattern
from recsys.data.interactions import EARLIEST, UNITS
from recsys.data.sources.values import to_times
from recsys.data.sources.written_times import written_times

_LEAST = {"iso8601": EARLIEST}
_BULK_AFTER = 631_152_000
"""1990 [seconds since 1970]: the bulk of numbers that are times lies between it and now."""
_LATER_THAN = 788_918_400
"""1995 [seconds since 1970]: numbers from here to now are seldom anything but times."""
_NEARLY_ALL = 0.9
_LONGEST = 64

_DAYS = [
    *(f"{a}{sign}{b}{sign}{c}" for sign in "/-." for a, b, c in (
        ("%d", "%m", "%Y"), ("%m", "%d", "%Y"), ("%Y", "%m", "%d"), ("%d", "%m", "%y"),
        ("%m", "%d", "%y"), ("%d", "%b", "%Y"),
    )),
    *("%B %d, %Y", "%d %B %Y", "%d. %B %Y", "%B %d %Y", "%a, %d %b %Y", "%A, %B %d, %Y"),
    *("%Y年%m月%d日", "%Y%m%d"),
]  # fmt: skip
_CLOCKS = (
    "", " %H:%M", " %H:%M:%S", " %H:%M:%S.%f", " %I:%M %p", " %I:%M:%S %p", ", %H:%M",
    ", %H:%M:%S", ", %I:%M %p", ", %I:%M:%S %p", "T%H:%M:%S", ":%H:%M:%S",
)  # fmt: skip
_FORMATS = [
    *(f"{day}{clock}{zone}" for day, clock in itertools.product(_DAYS, _CLOCKS)
      for zone in (("", " %z") if clock else ("",))),
    *("%a %b %d %H:%M:%S %Y", "%a %b %d %H:%M:%S %z %Y"),
]  # fmt: skip


def find_unit(column: pa.Array, now: int) -> tuple[TimestampUnit | None, bool]:
    """Returns the unit in which the bulk of values are times, and whether they are recent.

    Outliers, as the year 9999 for "never", don't decide: the median does. A number is a
    time in one unit at most, since units are a thousandfold apart.

    Args:
        column: Raw values `[n]`.
        now: The time [seconds since 1970, UTC].
    """
    n_values = max(1, len(column) - column.null_count)
    for unit in UNITS:
        times = to_times(column, unit).drop_null().to_numpy()
        if len(times) < 0.5 * n_values:
            continue
        if _LEAST.get(unit, _BULK_AFTER) <= np.median(times) <= now:
            is_recent = (times >= _LATER_THAN) & (times <= now)
            return unit, bool(is_recent.mean() >= _NEARLY_ALL)
    return None, True


def find_formats(texts: pa.Array) -> tuple[str, ...]:
    """Returns the formats that fit nearly all texts, the best ones; several fit equally well.

    Args:
        texts: Different texts `[n]`.
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
    if best < _NEARLY_ALL:
        return ()
    return tuple(one for one, share in shares.items() if share == best)


@functools.cache
def _patterns() -> dict[str, re.Pattern[str]]:
    return {format_: re.compile(time_pattern(format_)) for format_ in _FORMATS}
