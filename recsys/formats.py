"""Numbers as people read them. What is no number is said in words."""

from __future__ import annotations

import datetime as dt
import math
from typing import Any, TypeGuard

ABSENT = "–"

# Keeps a figure and its unit on one line.
_SPACE = "\N{NO-BREAK SPACE}"


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether `value` is a finite number."""
    return isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value)


def count(value: Any) -> str:
    """Returns `12,345`."""
    return f"{round(value):,}" if is_number(value) else ABSENT


def counted(value: Any, one: str, many: str) -> str:
    """Returns `1 user` or `12,345 users`."""
    return f"{count(value)} {one if value == 1 else many}"


def figure(value: Any) -> str:
    """Returns three significant digits, `0.118` or `0.00421`; thousands as a count."""
    if not is_number(value):
        return ABSENT
    if abs(value) >= 1000:
        return count(value)
    if value == 0:
        return "0"
    decimals = min(9, max(0, 2 - math.floor(math.log10(abs(value)))))
    return f"{value:.{min(decimals, 3) if abs(value) >= 0.1 else decimals}f}"


def score(value: Any) -> str:
    """Returns two decimals, `0.93`, for figures that stand below each other."""
    return f"{value:.2f}" if is_number(value) else ABSENT


def share(value: Any) -> str:
    """Returns `12.3 %`; a share that is not quite nothing reads `< 0.1 %`."""
    if not is_number(value):
        return ABSENT
    if 0 < value < 0.001:
        return f"<{_SPACE}0.1{_SPACE}%"
    return f"{100 * value:.1f}{_SPACE}%"


def ratio(value: Any, other: Any) -> str:
    """Returns how many times `other` `value` is, `2.19 ×`."""
    if not is_number(value) or not is_number(other) or other <= 0:
        return ABSENT
    return f"{value / other:.2f}{_SPACE}×"


def size(n_bytes: Any) -> str:
    """Returns `3.4 MB`."""
    if not is_number(n_bytes):
        return ABSENT
    amount, unit = float(n_bytes), "B"
    for bigger in ("kB", "MB", "GB", "TB"):
        if amount < 1000:
            break
        amount, unit = amount / 1000, bigger
    return f"{amount:.0f}{_SPACE}{unit}" if unit == "B" else f"{amount:.1f}{_SPACE}{unit}"


def duration(seconds: Any) -> str:
    """Returns `0.4 s`, `48 s`, `3 min 20 s` or `2 h 5 min`."""
    if not is_number(seconds):
        return ABSENT
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(timestamp: Any) -> str:
    """Returns `2018-03-07 00:00 UTC`; the clock is left out at midnight."""
    if not is_number(timestamp):
        return ABSENT
    try:
        time = dt.datetime.fromtimestamp(timestamp, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp} s since 1970"
    at_midnight = time.hour == time.minute == time.second == 0
    return time.strftime("%Y-%m-%d" if at_midnight else "%Y-%m-%d %H:%M UTC")
