"""Pages of statistics beside the report, which DriftValidator writes."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.errors import shortened
from recsys.formats import ABSENT, count, figure, is_number, moment, share
from recsys.report.charts import draw_bars
from recsys.report.page import render

_SHOWN_CHARACTERS = 60
_TOP_VALUES = 5


def write_statistics(path: Path, what: str, data_sets: Mapping[str, Mapping[str, Any]]) -> None:
    """Writes a page that needs no network and no script.

    Args:
        path: File of the page.
        what: `interactions`, `items` or `users`.
        data_sets: By name the rows and the columns, as in `splits` of `validation.json`.

    Raises:
        OSError: The page can't be written.
    """
    columns: dict[str, list[dict[str, Any]]] = {}
    for split, data_set in data_sets.items():
        for column in data_set["columns"]:
            shown = read_column(column, _TOP_VALUES) | {"split": split}
            columns.setdefault(column["name"], []).append(shown)
    page = render(
        "statistics.html.jinja", what=what, data_sets=data_sets,
        columns=dict(sorted(columns.items())),
    )  # fmt: skip
    path.write_text(page, encoding="utf-8", errors="replace")


def read_column(column: Mapping[str, Any], n_top: int = 3) -> dict[str, Any]:
    """Returns the display form of one column of `validation.json`.

    Args:
        column: An entry of `columns`.
        n_top: Number of most frequent texts to show.
    """
    if column["kind"] == "number":
        write = moment if _is_time(column) else _plain
        values = " … ".join(write(column[name]) for name in ("min", "median", "max"))
        heights, spread = column["bars"], _spread(column)
    else:
        top = column.get("top", [])
        frequent = ", ".join(
            f"{shortened(text, _SHOWN_CHARACTERS)} ({share(part)})" for text, part in top[:n_top]
        )
        values = f"{count(column.get('unique'))} distinct: {frequent}"
        heights, spread = [part for _, part in top], ""
        if _is_even(column):
            values, heights = f"{count(column['unique'])} distinct, none more frequent", []
    return {**column, "shown": values, "spread": spread, "chart": draw_bars(heights)}


def _is_time(column: Mapping[str, Any]) -> bool:
    """Returns whether a column has times; earlier releases didn't write `is_time`."""
    return bool(column.get("is_time", column["name"] == "timestamp"))


def _is_even(column: Mapping[str, Any]) -> bool:
    """Returns whether many texts are equally frequent, as ids are."""
    top, unique = column.get("top") or [], column.get("unique")
    if not top or not is_number(unique) or unique <= len(top):
        return False
    return bool(top[0][1] * unique < 1 + 1e-6)


def _spread(column: Mapping[str, Any]) -> str:
    """Returns mean, standard deviation and share of zeros; empty for times."""
    if _is_time(column) or not is_number(column.get("mean")):
        return ""
    mean, deviation = (figure(column[name]) for name in ("mean", "std_dev"))
    return f"mean {mean}, standard deviation {deviation}, {share(column['zeros'])} zeros"


def _plain(value: Any) -> str:
    """Returns a number as text: whole numbers in full, others with six digits."""
    if not is_number(value):
        return ABSENT
    return str(int(value)) if value == int(value) else f"{value:.6g}"
