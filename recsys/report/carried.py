"""What the training took over from an earlier model, or that it began anew."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from typing import Any

from recsys.formats import count, is_number, moment, share
from recsys.report.artifacts import Artifacts, read_json


@dataclasses.dataclass(frozen=True)
class CarriedTable:
    """One table.

    Attributes:
        name: Its name.
        kept: Rows that kept their vector and their slots.
        share: Their share of all rows.
        new: Rows that are new.
        reset: Rows that had another id before.
        neighbours: Of the new and the reset ones, those made of their features' neighbours.
        dropped: Ids or tokens of the earlier model that are no more.
    """

    name: str
    kept: str
    share: str
    new: str
    reset: str
    neighbours: str
    dropped: str


@dataclasses.dataclass(frozen=True)
class Carried:
    """What was taken over.

    Attributes:
        facts: Name and figure; empty for a training that began anew.
        tables: The tables.
        sentence: Why it began anew though it might not have; empty where nobody says.
    """

    facts: list[tuple[str, str]]
    tables: list[CarriedTable]
    sentence: str


def read_carried(artifacts: Artifacts) -> Carried:
    """Returns what the training took over."""
    training = read_json(artifacts.model / "training.json", "The record of the training")
    told = training.get("warm_start")
    if not isinstance(told, Mapping):
        return Carried([], [], str(training.get("cold") or ""))
    carried = told.get("carried") or {}
    tables = [_table(str(name), one) for name, one in carried.items() if _is_table(one)]
    facts = [
        ("went on from", str(told.get("base"))),
        ("which was trained on events until", moment(told.get("trained_until"))),
        ("steps before", count(told.get("steps_before"))),
        ("warm starts since the last beginning", count(told.get("warm_starts"))),
    ]
    return Carried([fact for fact in facts if fact[1] not in ("–", "None")], tables, "")


def _is_table(one: Any) -> bool:
    return isinstance(one, Mapping) and is_number(one.get("kept"))


def _table(name: str, one: Mapping[str, Any]) -> CarriedTable:
    keys = ("kept", "new", "reset", "neighbours", "dropped")
    parts = {key: one.get(key) or 0 for key in keys}
    total = parts["kept"] + parts["new"] + parts["reset"]
    kept = share(parts["kept"] / total) if total else ""
    return CarriedTable(name, share=kept, **{key: count(parts[key]) for key in keys})
