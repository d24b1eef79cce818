"""The periods that a simulated night stands for: days, weeks or months, in UTC."""

from __future__ import annotations

import datetime as dt
from collections.abc import Iterator, Sequence
from typing import Literal
from collections.abc import Callable
from pathlib import Path
import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

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



# --- broken spans: cut off, of other columns, or full of rubbish

def _truncate(file: Path) -> None:
    """Truncates a file in the middle, like an interrupted upload."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def _rename_column(file: Path) -> None:
    """Renames the column of users, like an upstream schema change."""
    table = pq.read_table(file)
    names = ["uid" if name == "user_id" else name for name in table.column_names]
    pq.write_table(table.rename_columns(names), file)


def _spoil_rows(file: Path) -> None:
    """Moves the times of a third of the rows to 1970, like a changed time unit."""
    table = pq.read_table(file)
    times = table["timestamp"].to_numpy().copy()
    times[np.arange(len(times)) % 3 == 0] //= 1_000_000
    at = table.column_names.index("timestamp")
    pq.write_table(table.set_column(at, "timestamp", pa.array(times)), file)


BREAKS: dict[str, Callable[[Path], None]] = {
    "cut off": _truncate,
    "other columns": _rename_column,
    "wrong times": _spoil_rows,
}
"""What can be wrong with a span, and what does it to its file."""


def draw_broken(n_nights: int, n_broken: int, seed: int) -> dict[int, str]:
    """Draws the nights whose spans arrive broken, and how; never the first or last one.

    They lie apart, so that each is repaired before the next.
    """
    rng, kinds = np.random.default_rng(seed), list(BREAKS)
    # Nights that lie apart are any nights, with one more put behind each of them.
    drawn = rng.choice(n_nights - 2 - max(0, n_broken - 1), n_broken, replace=False)
    nights = 1 + np.sort(drawn) + np.arange(n_broken)
    return {int(night): kinds[i % len(kinds)] for i, night in enumerate(nights)}


