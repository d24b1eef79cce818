"""The periods that a simulated night stands for: days, weeks or months, in UTC."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Literal

Period = Literal["day", "week", "month"]

_DAY = dt.timedelta(days=1)


def start_of(moment: dt.date, period: Period) -> dt.date:
    """Returns the first day of the period that a day lies in; weeks begin on Mondays."""
    if period == "month":
        return moment.replace(day=1)
    return moment - _DAY * moment.weekday() if period == "week" else moment


def next_start(start: dt.date, period: Period) -> dt.date:
    """Returns the first day of the period after the one that begins on `start`."""
    if period == "month":
        return (start + 31 * _DAY).replace(day=1)
    return start + _DAY * (7 if period == "week" else 1)


def periods(first: dt.date, last: dt.date, period: Period) -> list[dt.date]:
    """Returns the first day of each period from that of `first` to that of `last`."""
    return list(_periods(start_of(first, period), last, period))


def as_seconds(days: Sequence[dt.date]) -> list[int]:
    """Returns the midnights that days begin with [seconds since 1970, UTC]."""
    return [int(dt.datetime(d.year, d.month, d.day, tzinfo=dt.UTC).timestamp()) for d in days]


def _periods(start: dt.date, last: dt.date, period: Period) -> Iterator[dt.date]:
    while start <= last:
        yield start
        start = next_start(start, period)
