"""Statistics of the data, and distances from earlier data."""

from __future__ import annotations

import dataclasses
import shutil
from collections.abc import Iterator, Mapping
from pathlib import Path, PurePath
from typing import Any
from urllib.parse import quote

from recsys.formats import ABSENT, counted
from recsys.report.artifacts import Artifacts, MissingError, read_json
from recsys.report.columns import Column, read_column


@dataclasses.dataclass(frozen=True)
class Distance:
    """How far a column of a split lies from the earlier ones.

    Attributes:
        column: Name of the column.
        split: Name of the split.
        measure: Name of the measure.
        drift: Distance from the data accepted before.
        skew: Distance from the data of the last blessed model.
        limit: The highest that is allowed; two where they differ.
        beyond: Which of `drift` and `skew` is beyond its limit.
    """

    column: str
    split: str
    measure: str
    drift: str
    skew: str
    limit: str
    beyond: list[str]


@dataclasses.dataclass(frozen=True)
class Validation:
    """One kind of data.

    Attributes:
        name: `interactions`, `items` or `users`.
        rows: Rows of each split, in words.
        split: Name of the split that the columns are of.
        columns: Its columns.
        anomalies: What breaks the schema: where, and what.
        distances: How far the columns lie from the earlier ones, the farthest first.
        compared: What they were compared with, as a sentence.
        left_out: Columns that were not compared, and why.
        pages: Pages of statistics: file and title.
        schema: Path of the schema.
    """

    name: str
    rows: str
    split: str
    columns: list[Column]
    anomalies: list[tuple[str, str]]
    distances: list[Distance]
    compared: str
    left_out: list[tuple[str, str]]
    pages: list[tuple[str, str]]
    schema: str


def read_validations(artifacts: Artifacts) -> list[Validation]:
    """Returns what TFDV found in each kind of data."""
    return [_validation(name, validation) for name, validation in _read(artifacts).items()]


def copy_pages(artifacts: Artifacts, out: Path) -> None:
    """Copies the pages of statistics into the folder of the report."""
    if artifacts.validation is None:
        return
    for page in artifacts.validation.glob("statistics-*.html"):
        shutil.copy(page, out / page.name)


def _read(artifacts: Artifacts) -> dict[str, Any]:
    if artifacts.validation is None:
        raise MissingError("The run named no validation of its data.")
    return read_json(artifacts.validation / "verdict.json", "The validation of the data")


def _validation(name: str, validation: Mapping[str, Any]) -> Validation:
    splits = validation["splits"]
    split = "train" if "train" in splits else min(splits)
    comparisons = validation["comparisons"]
    return Validation(
        name=name,
        rows=", ".join(
            f"{counted(part['rows'], 'row', 'rows')} in {name}" for name, part in splits.items()
        ),
        split=split,
        columns=[read_column(column) for column in splits[split]["columns"]],
        anomalies=[
            (f"{anomaly['column'] or 'all columns'}, split {anomaly['split']}", anomaly["text"])
            for anomaly in validation["anomalies"]
        ],
        distances=list(_distances(comparisons)),
        compared=_compared(validation["earlier"]),
        left_out=sorted({(c["column"], c["note"]) for c in comparisons if c["value"] is None}),
        pages=[(quote(PurePath(page["file"]).name), page["title"]) for page in validation["pages"]],
        schema=validation["schema"],
    )


def _distances(comparisons: list[Mapping[str, Any]]) -> Iterator[Distance]:
    """Yields a row for each column, split and measure, the largest distance first."""
    rows: dict[tuple[str, str, str], dict[str, Mapping[str, Any]]] = {}
    for comparison in comparisons:
        if comparison["value"] is not None:
            key = (comparison["column"], comparison["split"], comparison["measure"])
            rows.setdefault(key, {})[comparison["kind"]] = comparison
    farthest = sorted(rows.items(), key=lambda row: -max(c["value"] for c in row[1].values()))
    for (column, split, measure), kinds in farthest:
        values = {kind: _distance(comparison["value"]) for kind, comparison in kinds.items()}
        limits = {_limit(comparison["limit"]): None for comparison in kinds.values()}
        yield Distance(
            column=column,
            split=split,
            measure=measure,
            drift=values.get("drift", ABSENT),
            skew=values.get("skew", ABSENT),
            limit=" / ".join(limits),
            beyond=[kind for kind, comparison in kinds.items() if comparison["exceeds"]],
        )


def _distance(value: float) -> str:
    return f"{value:.3f}"


def _limit(value: float | None) -> str:
    return "none" if value is None else f"{value:.2f}"


def _compared(earlier: Mapping[str, bool]) -> str:
    """Returns what today's data was compared with, as a sentence."""
    drift = "the data that the gate accepted before"
    skew = "the data that the last blessed model was trained on"
    if earlier["drift"] and earlier["skew"]:
        return f"Drift is the distance from {drift}; skew is that from {skew}."
    if earlier["drift"]:
        return f"Drift is the distance from {drift}. No earlier model was blessed, so no skew."
    if earlier["skew"]:
        return f"Skew is the distance from {skew}. No earlier data was accepted, so no drift."
    return "There was no earlier data to compare with: this is the first that the gate accepted."
