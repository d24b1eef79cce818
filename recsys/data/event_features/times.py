"""Event features that are parts of the local time."""

from __future__ import annotations

import functools
from datetime import datetime, timedelta, timezone
from typing import Any, ClassVar
from zoneinfo import ZoneInfo, ZoneInfoNotFoundError

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
from pydantic import field_validator

from recsys.data.event_features.feature import Encoded, EventFeature, Graph, Value


class _Calendar(EventFeature):
    """A part of the local time."""

    value: ClassVar[Value] = "time"
    zone: str = "UTC"
    """Time zone, such as `Europe/Paris`."""

    _n: ClassVar[int]

    @field_validator("zone")
    @classmethod
    def _zone_exists(cls, zone: str) -> str:
        try:
            ZoneInfo(zone)
        except (ZoneInfoNotFoundError, ValueError, OSError):
            raise ValueError(f"zone must be a name like Europe/Paris; received {zone!r}") from None
        return zone

    def table_rows(self, learned: pa.Table) -> int:
        """Returns the number of rows: row 0 and the values."""
        return 1 + self._n

    def encode(self, values: pa.Array, learned: pa.Table) -> Encoded:
        """Returns the part of each time, from 1 on; 0 if it is missing."""
        borders, offsets = offsets_of(self.zone)
        time = pc.fill_null(values, 0).to_numpy(zero_copy_only=False)
        local = time + offsets[np.searchsorted(borders, time, side="right")]
        is_there = values.is_valid().to_numpy(zero_copy_only=False)
        return np.where(is_there, 1 + self.of_local(local), 0).astype(np.int32)[:, None]

    def graph(self, learned: pa.Table) -> Graph:
        """Returns the function of times [s] int64; the lowest int64 is missing."""
        from recsys.data import event_graphs

        return event_graphs.of_local_time(*offsets_of(self.zone), self.of_local)

    def of_local(self, time: Any) -> Any:
        """Returns the value, from 0 on, of local times [s] int64: arrays or tensors."""
        raise NotImplementedError

    def token_names(self, learned: pa.Table) -> list[str] | None:
        """Returns the name of the feature with each value."""
        return ["", *(f"{self.kind} {n}" for n in range(self._n))]


class Hour(_Calendar):
    """The hour of the day, 0 … 23."""

    _n: ClassVar[int] = 24

    def of_local(self, time: Any) -> Any:
        """Returns the hour of local times."""
        return time // 3600 % 24


class Weekday(_Calendar):
    """The day of the week, Monday is 0."""

    _n: ClassVar[int] = 7

    def of_local(self, time: Any) -> Any:
        """Returns the weekday of local times; 1970-01-01 was a Thursday."""
        return (time // 86_400 + 3) % 7


class Month(_Calendar):
    """The month, January is 0."""

    _n: ClassVar[int] = 12

    def of_local(self, time: Any) -> Any:
        """Returns the month of local times."""
        return month_of(time // 86_400)


def month_of(days: Any) -> Any:
    """Returns the month of days since 1970, in the Gregorian calendar; January is 0.

    Howard Hinnant, "chrono-Compatible Low-Level Date Algorithms", civil_from_days.

    Args:
        days: Days int64: arrays or tensors.
    """
    day_of_era = (days + 719_468) % 146_097
    leap_days = day_of_era // 1460 - day_of_era // 36_524 + day_of_era // 146_096
    year_of_era = (day_of_era - leap_days) // 365
    day_of_year = day_of_era - (365 * year_of_era + year_of_era // 4 - year_of_era // 100)
    return ((5 * day_of_year + 2) // 153 + 2) % 12


_FIRST, _LAST = 0, 4_102_444_800
"""1970 and 2100 [seconds since 1970]: outside, the offsets at these times are used."""


@functools.cache
def offsets_of(zone: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns the times at which a zone's offset from UTC changes `[n]`, and the offsets `[n + 1]`.

    Both are int64 [s]. The offset `i` is used between the changes `i - 1` and `i`.
    """
    info = ZoneInfo(zone)

    def offset(time: int) -> int:
        at = datetime(1970, 1, 1, tzinfo=timezone.utc) + timedelta(seconds=time)  # noqa: UP017
        delta = at.astimezone(info).utcoffset()
        return 0 if delta is None else int(delta.total_seconds())

    step = 7 * 86_400
    borders, offsets = list[int](), [offset(_FIRST)]
    for end in range(_FIRST + step, _LAST, step):
        if (new := offset(end)) == offsets[-1]:
            continue
        low, high = end - step, end  # The offset changes in (low, high].
        while high - low > 1:
            middle = (low + high) // 2
            low, high = (low, middle) if offset(middle) == new else (middle, high)
        borders.append(high)
        offsets.append(new)
    return np.array(borders, np.int64), np.array(offsets, np.int64)
