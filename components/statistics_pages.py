"""Pages of TFDV's statistics: today's splits side by side, and each beside the earlier one."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorflow_metadata.proto.v0 import statistics_pb2

from components.statistics_summary import summarize_split
from recsys.report.statistics_page import write_statistics

Statistics = Mapping[str, statistics_pb2.DatasetFeatureStatisticsList]
"""Statistics of each split."""


def write_pages(
    folder: Path, what: str, now: Statistics, before: Statistics
) -> list[dict[str, str]]:
    """Writes the pages.

    Args:
        folder: Where to.
        what: `interactions`, `items` or `users`.
        now: Today's statistics.
        before: Those of the data that was accepted last; empty where none was.

    Returns:
        The `file` and the `title` of each page.
    """
    pages = []
    for group in _groups(now, before):
        title = " and ".join(group)
        file = f"statistics-{what}-{title.replace(' ', '-')}.html"
        summaries = {name: summarize_split(statistics) for name, statistics in group.items()}
        write_statistics(folder / file, what, summaries)
        pages.append({"file": file, "title": title})
    return pages


def _groups(now: Statistics, before: Statistics) -> Iterator[Statistics]:
    """Yields what is shown on one page, by name: all of today's data sets, or two of a split."""
    yield dict(sorted(now.items(), reverse=True))
    for split in sorted(now.keys() & before.keys(), reverse=True):
        yield {f"{split} now": now[split], f"{split} before": before[split]}
