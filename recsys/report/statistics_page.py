"""Pages of statistics, beside the report; DriftValidator writes them, and nothing else does."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from recsys.formats import counted
from recsys.report.columns import Column, read_column
from recsys.report.page import render

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
    columns: dict[str, dict[str, Column]] = {}
    for name, data_set in data_sets.items():
        for column in data_set["columns"]:
            columns.setdefault(column["name"], {})[name] = read_column(column, _TOP_VALUES)
    page = render(
        "statistics.html.jinja",
        what=what,
        names=list(data_sets),
        rows=[
            f"{counted(data_set['rows'], 'row', 'rows')} in {name}"
            for name, data_set in data_sets.items()
        ],
        columns=sorted(columns.items()),
    )
    path.write_text(page, encoding="utf-8", errors="replace")
