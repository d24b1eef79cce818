"""A table of metrics: the model beside all that it is compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

from recsys.formats import change, change_span, is_number, span
from recsys.report.evaluated import (
    Evaluated,
    is_beyond,
    long_name,
    metric_title,
    shown,
    subject_name,
)

MEANINGS = {
    "recall": "share of what came later that is in the list",
    "precision": "share of the list that came later",
    "hit_rate": "share of the lists with at least one hit",
    "ndcg": "recall that counts early places more",
    "map": "precision at each hit, averaged",
    "mrr": "1 ÷ place of the first hit",
    "auc": "share of pairs in the right order",
    "coverage": "share of the catalogue that is in at least one list",
    "gini": "0: every item is shown equally often; 1: a single one is",
    "novelty": "how rare the shown items are, in bits; more is rarer",
    "popularity_lift": "how popular the lists are beside what users did before; 0 is alike",
    "diversity": "how unlike each other the items of a list are; 0 is the same",
}


@dataclasses.dataclass(frozen=True)
class Cell:
    """The figure of what the model is compared with.

    Attributes:
        name: What it is called.
        text: Its figure.
        is_better: Whether it beats the model.
    """

    name: str
    text: str
    is_better: bool


@dataclasses.dataclass(frozen=True)
class Row:
    """One metric.

    Attributes:
        name: Its name.
        meaning: What it says, in a line.
        model: The model's figure.
        interval: Its interval.
        cells: The figures of the others, each under its name.
        change: How far the model lies from the strongest of the others.
        change_span: The interval of that.
        outcome: `better`, `worse` or `level`; empty where nothing says.
        decides: Whether the blessing rests on it.
    """

    name: str
    meaning: str
    model: str
    interval: str
    cells: list[Cell]
    change: str
    change_span: str
    outcome: str
    decides: bool


@dataclasses.dataclass(frozen=True)
class Table:
    """Several metrics of the same subjects.

    Attributes:
        rows: The metrics.
        others: Names of what the model is compared with.
        strongest: The one of them that the differences are from; empty where none is.
        strongest_is: The same in a sentence.
        interval_name: What the intervals are, `95 % interval`.
        has_intervals: Whether any metric has one.
        has_better: Whether any figure is better than the model's.
    """

    rows: list[Row]
    others: list[str]
    strongest: str
    strongest_is: str
    interval_name: str
    has_intervals: bool
    has_better: bool


def tabulate(found: Evaluated, names: Iterable[str], *, is_chosen: bool) -> Table:
    """Returns the metrics `names` of all subjects; with `is_chosen` one of them decides."""
    strongest = found.strongest()
    rows = [_row(found, name, strongest, is_chosen=is_chosen) for name in names]
    return Table(
        rows=rows,
        others=[subject_name(key) for key in found.others],
        strongest="" if strongest is None else subject_name(strongest),
        strongest_is="" if strongest is None else long_name(strongest),
        interval_name=found.interval_name(),
        has_intervals=any(row.interval for row in rows),
        has_better=any(cell.is_better for row in rows for cell in row.cells),
    )


def _row(found: Evaluated, name: str, strongest: str | None, *, is_chosen: bool) -> Row:
    ends = found.interval(name)
    model = found.metrics[name]
    apart = None if strongest is None else found.difference(strongest, name)
    cells = []
    for key in found.others:
        figure = found.figure(key, name)
        is_better = is_number(figure) and is_number(model) and figure > model
        cells.append(Cell(subject_name(key), shown(name, figure), is_better and _can_win(name)))
    return Row(
        name=metric_title(name),
        meaning=MEANINGS.get(name.partition("@")[0], ""),
        model=shown(name, model),
        interval="" if ends is None else span(ends),
        cells=cells,
        change="" if apart is None else change(apart.relative),
        change_span="" if apart is None or apart.interval is None else change_span(apart.interval),
        outcome="" if apart is None or is_beyond(name) else apart.outcome,
        decides=is_chosen and name == found.deciding,
    )


def _can_win(metric: str) -> bool:
    """Returns whether more is better: of the lists themselves nobody can say."""
    return not is_beyond(metric)
