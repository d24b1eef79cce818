"""Formats numbers for people; missing ones become words."""

from __future__ import annotations

import datetime as dt
import html
import math
import sys
from collections.abc import Collection, Iterable, Mapping
from typing import Any, TypeGuard

ABSENT = "–"

_LEAST_PERCENT = 1e-6  # Smaller ones are rounding errors.

# Keeps a number and its unit on one line.
_SPACE = "\N{NO-BREAK SPACE}"


def is_number(value: Any) -> TypeGuard[float]:
    """Returns whether `value` is a finite number within the range of floats."""
    is_real = isinstance(value, int | float) and not isinstance(value, bool)
    return is_real and abs(value) <= sys.float_info.max


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
    """Returns two decimals, `0.93`, for columns of figures."""
    return f"{value:.2f}" if is_number(value) else ABSENT


def share(value: Any) -> str:
    """Returns `12.3 %`; a small positive share becomes `< 0.1 %`."""
    if not is_number(value):
        return ABSENT
    if 0 < value < 0.001:
        return f"<{_SPACE}0.1{_SPACE}%"
    return f"{100 * value:.1f}{_SPACE}%"


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
    """Returns `756 µs`, `2.38 ms`, `0.4 s`, `48 s`, `3 min 20 s` or `2 h 5 min`."""
    if not is_number(seconds):
        return ABSENT
    if 0 < seconds < 0.05:
        return f"{1e6 * seconds:.3g} µs" if seconds < 1e-3 else f"{1e3 * seconds:.3g} ms"
    if seconds < 10:
        return f"{seconds:.1f} s"
    whole = round(seconds)
    if whole < 60:
        return f"{whole} s"
    if whole < 3600:
        return f"{whole // 60} min {whole % 60} s"
    return f"{whole // 3600} h {whole % 3600 // 60} min"


def moment(timestamp: Any) -> str:
    """Returns `2018-03-07 00:00 UTC`, or only the date and `UTC` at midnight."""
    if not is_number(timestamp):
        return ABSENT
    try:
        time = dt.datetime.fromtimestamp(timestamp, dt.UTC)
    except (OverflowError, ValueError, OSError):
        return f"{timestamp} s since 1970"
    at_midnight = time.hour == time.minute == time.second == 0
    return time.strftime("%Y-%m-%d" if at_midnight else "%Y-%m-%d %H:%M UTC")


def change(value: Any) -> str:
    """Returns a relative difference with its sign, `+3.1 %`.

    It has no decimals from 100 % on, and more below 0.05 %: `+0.03 %`.
    """
    if not is_number(value):
        return ABSENT
    return f"{_signed_percent(value)}{_SPACE}%"


def change_span(interval: Any) -> str:
    """Returns an interval of relative differences, `+1.9 … +4.4 %`."""
    ends = ends_of(interval)
    if ends is None:
        return ABSENT
    low, high = (_signed_percent(end) for end in ends)
    return f"{low}{_SPACE}%" if low == high else f"{low} … {high}{_SPACE}%"


def span(interval: Any) -> str:
    """Returns an interval of figures with the same number of decimals, `0.0964 … 0.1580`."""
    ends = ends_of(interval)
    if ends is None:
        return ABSENT
    texts = [figure(end) for end in ends]
    decimals = [len(text.partition(".")[2]) for text in texts]
    if max(map(abs, ends)) < 1000:
        # The finer end decides, unless it is near 0.
        texts = [f"{end:.{min(max(decimals), min(decimals) + 1)}f}" for end in ends]
    return " … ".join(texts)


def ends_of(interval: Any) -> tuple[float, float] | None:
    """Returns the two ends of an interval that was read from JSON; None for other values."""
    if not isinstance(interval, list | tuple) or len(interval) != 2:
        return None
    low, high = interval
    return (low, high) if is_number(low) and is_number(high) else None


def html_table(
    columns: Iterable[str],
    rows: Iterable[Iterable[Any]],
    caption: str = "",
    texts: Collection[str] = (),
) -> str:
    """Returns a table as HTML, with numbers of four decimals.

    Args:
        columns: Names of the columns.
        rows: The rows, with a value for each column.
        caption: Caption of the table.
        texts: Columns of text, which are left-aligned; notebooks right-align other columns.
    """
    columns = tuple(columns)

    def cell(tag: str, column: str, value: Any) -> str:
        side = " style='text-align:left'" if column in texts else ""
        text = f"{value:.4f}" if isinstance(value, float) else str(value)
        return f"<{tag}{side}>{html.escape(text)}</{tag}>"

    def row(tag: str, values: Iterable[Any]) -> str:
        cells = (cell(tag, *one) for one in zip(columns, values, strict=True))
        return f"<tr>{''.join(cells)}</tr>"

    title = f"<caption>{html.escape(caption)}</caption>" if caption else ""
    body = "".join(row("td", values) for values in rows)
    return f"<table>{title}<thead>{row('th', columns)}</thead><tbody>{body}</tbody></table>"


def html_facts(facts: Mapping[str, str]) -> str:
    """Returns names and texts as an HTML table, for notebooks."""
    rows = (
        f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
        f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
        for name, text in facts.items()
    )
    return f"<table>{''.join(rows)}</table>"


def _signed_percent(value: float) -> str:
    percent = 100 * abs(value)
    if percent < _LEAST_PERCENT:
        return "±0"
    digits = 0 if abs(value) >= 1 else 1
    if percent < 0.05:  # A small change is never shown as zero.
        digits = math.ceil(-math.log10(percent))
    return f"{'+' if value > 0 else '−'}{percent:,.{digits}f}"
