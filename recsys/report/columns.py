"""A column of the data as the pages show it: its values, and how they are spread."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from markupsafe import Markup

from recsys.formats import ABSENT, count, is_number, moment, share
from recsys.report.sparklines import draw_bars

_BARS_WIDTH, _BARS_HEIGHT = 100, 24
_SHOWN_CHARACTERS = 60
_TOP_VALUES = 3
_TIME = "timestamp"


@dataclasses.dataclass(frozen=True)
class Column:
    """One column of a split.

    Attributes:
        name: Its name.
        kind: `number` or `text`.
        missing: Share of rows without a value.
        values: Smallest, middle and largest number, or how many texts and the frequent ones.
        spread: Mean, standard deviation and share of zeros of a number; else empty.
        bars: How the values are spread, as SVG.
    """

    name: str
    kind: str
    missing: str
    values: str
    spread: str
    bars: Markup


def read_column(column: Mapping[str, Any], n_top: int = _TOP_VALUES) -> Column:
    """Returns one column of `validation.json`, as it is shown.

    Args:
        column: An entry of `columns`.
        n_top: How many of the most frequent texts are named.
    """
    is_numeric = column["kind"] == "number"
    heights = column["bars"] if is_numeric else [part for _, part in column.get("top", [])]
    return Column(
        name=column["name"],
        kind=column["kind"],
        missing=share(column["missing"]) if column["missing"] else ABSENT,
        values=_numbers(column) if is_numeric else _texts(column, n_top),
        spread=_spread(column) if is_numeric else "",
        bars=draw_bars(heights, _BARS_WIDTH, _BARS_HEIGHT),
    )


def _numbers(column: Mapping[str, Any]) -> str:
    write = moment if column["name"] == _TIME else _plain
    return " … ".join(write(column[name]) for name in ("min", "median", "max"))


def _spread(column: Mapping[str, Any]) -> str:
    if column["name"] == _TIME or not is_number(column.get("mean")):
        return ""
    mean, deviation = (_plain(column[name]) for name in ("mean", "std_dev"))
    return f"mean {mean}, standard deviation {deviation}, {share(column['zeros'])} zeros"


def _plain(value: Any) -> str:
    """Returns a number as the data has it: whole ones in full, others to six digits."""
    if not is_number(value):
        return ABSENT
    return str(int(value)) if value == int(value) else f"{value:.6g}"


def _texts(column: Mapping[str, Any], n_top: int) -> str:
    frequent = ", ".join(
        f"{_shortened(value)} ({share(part)})" for value, part in column.get("top", [])[:n_top]
    )
    return f"{count(column.get('unique'))} different: {frequent}"


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
