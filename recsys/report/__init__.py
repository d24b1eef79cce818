"""The report of a run: one HTML file with its results, the decision first.

`write_report` is imported when it is asked for: a page of statistics doesn't need it.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from recsys.report.write import write_report

__all__ = ["write_report"]


def __getattr__(name: str) -> Any:
    if name != "write_report":
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    from recsys.report.write import write_report

    return write_report
