"""Parses times in a custom format, such as `31/12/2023 10:00`, to seconds."""

from __future__ import annotations

import calendar
import functools
import re

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.config.time_format import time_pattern

_MONTHS = {name.lower(): at for at, name in enumerate(calendar.month_name) if name}
_MONTHS |= {name[:3]: at for name, at in _MONTHS.items()} | {"sept": 9}


def written_times(text: pa.Array, format_: str) -> pa.Array:
    """Returns times `[n]` int64 [whole seconds since 1970, UTC], null where a text is none.

    Args:
        text: Text `[n]`; without an offset it is UTC.
        format_: How it is written, as Python's strptime has it.
    """
    matches = pc.extract_regex(text, _re2(format_))
    fits = matches.is_valid().to_numpy(zero_copy_only=False)
    parts = {field.name: matches.field(field.name) for field in matches.type}
    month = _month(parts)
    year = _year(parts)
    day = _number(parts, "day")
    first = ((year - 1970) * 12 + month - 1).astype("datetime64[M]")
    n_days = ((first + 1).astype("datetime64[D]") - first.astype("datetime64[D]")).astype(np.int64)
    hour, minute, second = _hour(parts), _number(parts, "minute"), _number(parts, "second")
    fits &= (month >= 1) & (month <= 12) & (day >= 1) & (day <= n_days)
    fits &= (hour >= 0) & (hour < 24) & (minute < 60) & (second < 60)
    days = first.astype("datetime64[D]").astype(np.int64) + day - 1
    seconds = ((days * 24 + hour) * 60 + minute) * 60 + second - _offset(parts, len(text))
    return pa.array(seconds, pa.int64(), mask=~fits)


@functools.cache
def _re2(format_: str) -> str:
    # RE2 takes no unused group and no escaped blank, both of which Python's re has.
    return re.sub(r"\\([^\w.+*?()\[\]{}|^$\\])", r"\1", time_pattern(format_))


def _number(parts: dict[str, pa.Array], name: str) -> np.ndarray:
    """Returns a part of each time `[n]` int64; 0 where there is none."""
    if name not in parts:
        n_rows = len(next(iter(parts.values())))
        return np.zeros(n_rows, np.int64)
    text = parts[name]
    whole = pc.if_else(pc.equal(pc.binary_length(text), 0), None, text)
    return pc.fill_null(whole.cast(pa.int64()), 0).to_numpy(zero_copy_only=False)


def _year(parts: dict[str, pa.Array]) -> np.ndarray:
    if "year" in parts:
        return _number(parts, "year")
    short = _number(parts, "short_year")
    return short + np.where(short >= 69, 1900, 2000)  # As POSIX has it.


def _month(parts: dict[str, pa.Array]) -> np.ndarray:
    """Returns the months `[n]`, 0 for a name that is none."""
    if "month" in parts:
        return _number(parts, "month")
    encoded = pc.utf8_lower(parts["month_name"]).dictionary_encode()
    names = encoded.dictionary.to_pylist()
    months = pa.array([_MONTHS.get(name, 0) for name in names], pa.int64())
    return pc.fill_null(months.take(encoded.indices), 0).to_numpy(zero_copy_only=False)


def _hour(parts: dict[str, pa.Array]) -> np.ndarray:
    """Returns the hours `[n]` [0..23]; -1 for one that no clock of 12 hours shows."""
    if "hour_of_12" not in parts:
        return _number(parts, "hour")
    hour = _number(parts, "hour_of_12")
    is_later = np.zeros(len(hour), bool)
    if "half" in parts:
        halves = pc.utf8_lower(parts["half"])
        is_later = pc.fill_null(pc.equal(halves, "p"), False).to_numpy(zero_copy_only=False)
    return np.where((hour >= 1) & (hour <= 12), hour % 12 + 12 * is_later, -1)


def _offset(parts: dict[str, pa.Array], n_rows: int) -> np.ndarray:
    """Returns what each time is ahead of UTC `[n]` [seconds]."""
    if "offset" not in parts:
        return np.zeros(n_rows, np.int64)
    encoded = pc.fill_null(parts["offset"], "Z").dictionary_encode()
    offsets = pa.array([_seconds(text) for text in encoded.dictionary.to_pylist()], pa.int64())
    return offsets.take(encoded.indices).to_numpy(zero_copy_only=False)


def _seconds(offset: str) -> int:
    digits = offset[1:].replace(":", "")
    if not digits:
        return 0
    return (1 if offset[0] == "+" else -1) * (3600 * int(digits[:2]) + 60 * int(digits[2:]))
