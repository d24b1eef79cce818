"""Pages of TFDV's statistics: current splits side by side, and each beside the earlier one."""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping
from pathlib import Path
from typing import Any

from tensorflow_metadata.proto.v0 import statistics_pb2

from recsys.report.run_figures import write_statistics

Summaries = Mapping[str, Mapping[str, Any]]
"""Result of `summarize_split` for each split."""


def write_pages(folder: Path, what: str, now: Summaries, before: Summaries) -> list[dict[str, str]]:
    """Writes a page of all current splits, and one of each split beside the earlier one.

    Args:
        folder: Folder to write.
        what: `interactions`, `items` or `users`.
        now: Current statistics.
        before: Statistics of the last accepted data; may be empty.

    Returns:
        `file` and `title` of each page.
    """
    groups = [dict(sorted(now.items(), reverse=True))]
    for split in sorted(now.keys() & before.keys(), reverse=True):
        groups.append({f"{split} now": now[split], f"{split} before": before[split]})
    pages = []
    for group in groups:
        title = " and ".join(group)
        file = f"statistics-{what}-{title.replace(' ', '-')}.html"
        write_statistics(folder / file, what, group)
        pages.append({"file": file, "title": title})
    return pages


# --- TFDV's statistics as a small JSON object that the report draws without a network.

_TOP_VALUES = 5
_SHOWN_CHARACTERS = 80
_FIGURES = ("min", "median", "max", "mean", "std_dev")


def summarize_split(
    statistics: statistics_pb2.DatasetFeatureStatisticsList, times: Collection[str] = ()
) -> dict[str, Any]:
    """Returns `{"rows": n, "columns": [...]}`.

    A column has `name`, `kind` (`number` or `text`), `missing` [0..1], `values`, the number
    of its values, and `is_time`; a number `min`, `median`, `max`, `mean`, `std_dev`, `zeros`
    [0..1] and `bars` (counts of equally wide buckets), a text `unique` and `top` (pairs of
    value and share of the values).

    Args:
        statistics: TFDV's statistics of the split.
        times: Columns of seconds since 1970.
    """
    dataset = statistics.datasets[0]
    columns = [
        {**column, "is_time": column["name"] in times} for column in map(_column, dataset.features)
    ]
    return {
        "rows": int(dataset.num_examples),
        "columns": sorted(columns, key=lambda column: column["name"]),
    }


def _column(feature: statistics_pb2.FeatureNameStatistics) -> dict[str, Any]:
    stats = getattr(feature, feature.WhichOneof("stats"))
    common = stats.common_stats
    n_rows = common.num_missing + common.num_non_missing
    column = {
        "name": feature.path.step[0],
        "missing": common.num_missing / n_rows if n_rows else 0.0,
        "values": int(common.tot_num_values),
    }
    if feature.HasField("num_stats"):
        return {**column, "kind": "number", **_number(stats, common.tot_num_values)}
    if feature.HasField("string_stats"):
        return {**column, "kind": "text", **_text(stats, common.tot_num_values)}
    return {**column, "kind": "other"}


def _number(stats: statistics_pb2.NumericStatistics, n_values: float) -> dict[str, Any]:
    bars = [
        bucket.sample_count
        for histogram in stats.histograms
        if histogram.type == statistics_pb2.Histogram.STANDARD
        for bucket in histogram.buckets
    ]
    figures = {name: getattr(stats, name) for name in _FIGURES}
    return {
        **{name: value if math.isfinite(value) else None for name, value in figures.items()},
        "zeros": stats.num_zeros / max(n_values, 1),
        "bars": [round(n_samples, 1) for n_samples in bars],
    }


def _text(stats: statistics_pb2.StringStatistics, n_values: float) -> dict[str, Any]:
    most_frequent = stats.rank_histogram.buckets[:_TOP_VALUES]
    return {
        "unique": int(stats.unique),
        "top": [
            [bucket.label[:_SHOWN_CHARACTERS], bucket.sample_count / max(n_values, 1)]
            for bucket in most_frequent
        ],
    }
