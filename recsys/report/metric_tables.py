"""Tables of metrics: the model beside all that it is compared with."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Any

from recsys.formats import change, change_span, count, counted, is_number, span
from recsys.report.artifacts import Artifacts, MissingError
from recsys.report.evaluated import (
    BLESSED,
    Evaluated,
    cut_offs,
    includes_repeats,
    repeats_in_words,
    shown,
)


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
    """Several metrics of the same systems.

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


def tabulate(evaluated: Evaluated, names: Iterable[str], *, is_chosen: bool) -> Table:
    """Returns the metrics `names` of all systems; with `is_chosen` one of them decides."""
    strongest = evaluated.strongest()
    rows = [_row(evaluated, name, strongest, is_chosen=is_chosen) for name in names]
    return Table(
        rows=rows,
        others=[evaluated.name(key) for key in evaluated.others],
        strongest="" if strongest is None else evaluated.name(strongest),
        strongest_is="" if strongest is None else evaluated.long_name(strongest),
        interval_name=evaluated.interval_name(),
        has_intervals=any(row.interval for row in rows),
        has_better=any(cell.is_better for row in rows for cell in row.cells),
    )


def _row(evaluated: Evaluated, name: str, strongest: str | None, *, is_chosen: bool) -> Row:
    ends = evaluated.interval(name)
    model = evaluated.metrics[name]
    apart = None if strongest is None else evaluated.difference(strongest, name)
    cells, better = [], evaluated.description(name)["better"]
    for key in evaluated.others:
        figure = evaluated.figure(key, name)
        cells.append(
            Cell(evaluated.name(key), shown(name, figure), _is_better(figure, model, better))
        )
    return Row(
        name=evaluated.title(name),
        meaning=evaluated.description(name)["meaning"],
        model=shown(name, model),
        interval="" if ends is None else span(ends),
        cells=cells,
        change="" if apart is None else change(apart.relative),
        change_span="" if apart is None or apart.interval is None else change_span(apart.interval),
        outcome="" if apart is None or evaluated.is_beyond(name) else apart.outcome,
        decides=is_chosen and name == evaluated.deciding,
    )


_PROTOCOLS = {
    "each_moment": (
        "each moment",
        "every held-out event is predicted from all that its user did before it",
    ),
    "at_cut": (
        "at the cut",
        "one query a user, from what the user did before the split; all that follows counts",
    ),
}
_ONCE = ("once a user", "one query a user, from the user's training events")


@dataclasses.dataclass(frozen=True)
class Measured:
    """The metrics under one protocol.

    Attributes:
        title: Name of the protocol.
        meaning: What it asks.
        basis: Users, queries and candidates, in words.
        table: The metrics at the cut-off that decides.
        all_cut_offs: The same at every cut-off; None where there is one alone.
        deciding: The metric that decides.
        notes: What is to be said of it.
        split: What the split of the data makes of the figures; empty where nobody says.
        warning: Why the figures are not what they seem; empty where they are.
    """

    title: str
    meaning: str
    basis: str
    table: Table
    all_cut_offs: Table | None
    deciding: str
    notes: list[str]
    split: str
    warning: str


def read_metrics(artifacts: Artifacts) -> Measured:
    """Returns the metrics under the protocol that the config chose."""
    evaluated = Evaluated.of(artifacts)
    notes = _notes(evaluated)
    if not evaluated.others:
        notes.append("No baseline was measured.")
    if BLESSED not in evaluated.others:
        notes.append("There is no earlier blessed model to compare with.")
    protocol = str(evaluated.part.get("query", "each_moment"))
    return _measured(evaluated, protocol, notes, is_chosen=True)


def read_other_protocol(artifacts: Artifacts) -> Measured | None:
    """Returns the metrics under the protocol that the config did not choose.

    None where the data are not split by time: the two protocols say the same there.
    """
    evaluation = artifacts.evaluated()
    if _split(evaluation) != "time":
        return None
    chosen = evaluation.get("query", "each_moment")
    other = "at_cut" if chosen == "each_moment" else "each_moment"
    part = evaluation.get("at_cut") or evaluation.get(other)
    if not isinstance(part, dict):
        raise MissingError("The evaluation holds one protocol only.")
    named = {name: evaluation.get(name) for name in ("confidence", "descriptions")} | part
    evaluated = Evaluated(named, artifacts.bless().get("metric"))
    # The verdict rests on the protocol that the config chose.
    return _measured(evaluated, other, [], is_chosen=False)


def read_beyond(artifacts: Artifacts) -> Table:
    """Returns the metrics of the lists themselves, at the cut-off that decides if they have it."""
    evaluated = Evaluated.of(artifacts)
    names = [name for name in evaluated.metrics if evaluated.is_beyond(name)]
    if not names:
        raise MissingError("The evaluation holds no metrics of the lists themselves.")
    ks = cut_offs(names)
    wanted = evaluated.deciding.partition("@")[2]
    k = wanted if wanted.isdecimal() and int(wanted) in ks else str(min(ks, default=""))
    order = list((evaluated.part.get("descriptions") or {}).get("metrics") or ())
    at_k = [name for name in names if name.partition("@")[2] in ("", k)]
    if order:
        at_k.sort(key=lambda name: order.index(name.partition("@")[0]))
    return tabulate(evaluated, at_k, is_chosen=False)


def _measured(
    evaluated: Evaluated, protocol: str, notes: list[str], *, is_chosen: bool
) -> Measured:
    names = [name for name in evaluated.metrics if not evaluated.is_beyond(name)]
    k = evaluated.deciding.partition("@")[2] or str(min(cut_offs(names), default=""))
    at_k = [name for name in names if name.partition("@")[2] in ("", k)]
    title, meaning = _PROTOCOLS.get(protocol, (protocol, "a protocol of the evaluation"))
    if _split(evaluated.part) != "time" and protocol == "at_cut":
        title, meaning = _ONCE
    everything = tabulate(evaluated, names, is_chosen=is_chosen) if len(at_k) < len(names) else None
    return Measured(
        title=title,
        meaning=meaning,
        basis=_basis(evaluated.part, is_chosen=is_chosen),
        table=tabulate(evaluated, at_k, is_chosen=is_chosen),
        all_cut_offs=everything,
        deciding=evaluated.title(evaluated.deciding),
        notes=notes,
        split=str(evaluated.part.get("meaning") or ""),
        warning=_warning(evaluated.part),
    )


def _split(evaluation: Any) -> str:
    return str((evaluation.get("split") or {}).get("split", "time"))


def _basis(part: Any, *, is_chosen: bool) -> str:
    basis = [_users(part), counted(part.get("queries"), "query", "queries")]
    if is_number(part.get("positives")):
        basis.append(counted(part["positives"], "held-out event", "held-out events"))
    if is_chosen and is_number(part.get("candidates")):
        basis.append(counted(part["candidates"], "candidate", "candidates"))
    return ", ".join(basis)


def _users(part: Any) -> str:
    users, held_out = part.get("users"), part.get("users_held_out")
    # Evaluations of earlier versions don't tell them from those whose queries are left out.
    chosen = part.get("users_chosen", held_out if part.get("left_out_queries") else users)
    text = counted(users, "user", "users")
    if is_number(chosen) and is_number(held_out) and held_out > chosen:
        return f"{text} (chosen at random of {count(held_out)})"
    return text


def _warning(part: Any) -> str:
    n = part.get("sampled_negatives")
    if not is_number(n):
        return ""
    return (
        f"Ranked among {count(n)} random items a query in place of the whole catalogue: such"
        " figures reproduce papers that do the same, are far too high, and bless no model."
    )


def _notes(evaluated: Evaluated) -> list[str]:
    part, notes = evaluated.part, []
    repeats = repeats_in_words(part)
    if repeats:
        notes.append(repeats)
    elif includes_repeats(part):
        notes.append("What a user did before may be recommended again.")
    unknown, left_out = part.get("unknown_positives"), part.get("left_out_queries")
    if is_number(unknown) and unknown > 0:
        events = counted(unknown, "held-out event is", "held-out events are")
        notes.append(f"{events} of items that the model doesn't know, and count as not found.")
    if is_number(left_out) and left_out > 0:
        queries = counted(left_out, "query was", "queries were")
        notes.append(f"{queries} left out: nothing but the answers was left to rank.")
    return notes


def _is_better(figure: object, model: object, better: str | None) -> bool:
    """Returns whether another system's figure beats the model's."""
    if not (is_number(figure) and is_number(model)):
        return False
    return (better == "higher" and figure > model) or (better == "lower" and figure < model)
