"""TFDV's own pages of statistics: today's splits side by side, and each beside the earlier one.

The pages load Facets, which draws them, from the network.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from pathlib import Path

from tensorflow_data_validation.utils.display_util import get_statistics_html
from tensorflow_metadata.proto.v0 import statistics_pb2

Statistics = Mapping[str, statistics_pb2.DatasetFeatureStatisticsList]
"""Statistics of each split."""


def write_pages(
    folder: Path, what: str, now: Statistics, before: Statistics
) -> list[dict[str, str]]:
    """Writes TFDV's pages.

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
        # Facets shows two data sets beside each other, and tells them by their names.
        named = [_named(one, name) for name, one in group.items()]
        head = f'<!doctype html><meta charset="utf-8"><title>{what}: {title}</title>'
        (folder / file).write_text(f"{head}{get_statistics_html(*named)}\n")
        pages.append({"file": file, "title": title})
    return pages


def _groups(now: Statistics, before: Statistics) -> Iterator[Statistics]:
    """Yields what is shown on one page, by name: one data set or two."""
    yield dict(sorted(now.items(), reverse=True))
    for split in sorted(now.keys() & before.keys(), reverse=True):
        yield {f"{split} now": now[split], f"{split} before": before[split]}


def _named(
    statistics: statistics_pb2.DatasetFeatureStatisticsList, name: str
) -> statistics_pb2.DatasetFeatureStatisticsList:
    copy = statistics_pb2.DatasetFeatureStatisticsList()
    copy.CopyFrom(statistics)
    copy.datasets[0].name = name
    return copy
