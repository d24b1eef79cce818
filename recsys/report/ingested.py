"""What came in: rows read, rows rejected and why, the split, the vocabularies."""

from __future__ import annotations

import dataclasses
from pathlib import Path, PurePath
from typing import Any

import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.formats import count, is_number, moment, share
from recsys.report.artifacts import Artifacts, MissingError, read_json, read_table

_EXAMPLES_A_REASON = 2
_SHOWN_CHARACTERS = 160


@dataclasses.dataclass(frozen=True)
class Letter:
    """One rejected row and where it stands."""

    where: str
    row: str


@dataclasses.dataclass(frozen=True)
class Reason:
    """Rows rejected for one reason."""

    text: str
    rows: str
    share: str
    letters: list[Letter]


@dataclasses.dataclass(frozen=True)
class Source:
    """What was read of one kind of data.

    Attributes:
        name: `interactions` or `items`.
        facts: What was counted: name and figure.
        reasons: Why rows were rejected, the most frequent first.
        missing: Why there is nothing to show; empty where there is.
        note: What is to be said of the dead letters.
    """

    name: str
    facts: list[tuple[str, str]]
    reasons: list[Reason]
    missing: str
    note: str


def read_sources(artifacts: Artifacts) -> list[Source]:
    """Returns what was read of each kind of data."""
    names = [*dict.fromkeys(["interactions", "items", *artifacts.dead_letters])]
    return [_source(name, artifacts.dead_letters.get(name)) for name in names]


def read_split(artifacts: Artifacts) -> list[tuple[str, str]]:
    """Returns the facts of the split and of the vocabularies: name and figure."""
    store = read_json(artifacts.data / "store" / "store.json", "The interaction store")
    train, held_out = store.get("train_events"), store.get("eval_events")
    facts = [
        ("split at", moment(store.get("cut"))),
        ("training events", count(train)),
        ("held-out events", f"{count(held_out)}{_of_all(held_out, train)}"),
        ("users with held-out events", count(store.get("eval_users"))),
    ]
    for name in ("users", "items"):
        path = artifacts.data / "vocabulary" / f"{name}.parquet"
        facts.append((f"vocabulary of {name}", _vocabulary_size(path)))
    facts.append(("items without training events", _count_cold(artifacts.data)))
    return facts


def _of_all(part: Any, rest: Any) -> str:
    if not (is_number(part) and is_number(rest) and part + rest > 0):
        return ""
    return f" ({share(part / (part + rest))})"


def _vocabulary_size(path: Path) -> str:
    try:
        return count(pq.read_metadata(path).num_rows)
    except (OSError, ValueError):
        return "not there"


def _count_cold(data: Path) -> str:
    try:
        counts = read_table(data / "vocabulary" / "items.parquet", "The vocabulary", ["count"])
    except MissingError:
        return "not known"
    return count(pc.sum(pc.equal(counts["count"], 0)).as_py() or 0)


def _source(name: str, folder: Path | None) -> Source:
    try:
        if folder is None:
            raise MissingError(f"The run named no dead letters of the {name}.")
        summary = read_json(folder / "summary.json", f"The summary of the {name}")
    except MissingError as missing:
        return Source(name, [], [], str(missing), "")
    read, rejected = summary.get("read"), summary.get("rejected")
    rejected_share = f" ({share(rejected / read)})" if read and rejected else ""
    facts = [
        ("rows read", count(read)),
        ("good", count(summary.get("good"))),
        ("rejected", f"{count(rejected)}{rejected_share}"),
        ("duplicates removed", count(summary.get("duplicates"))),
    ]
    if "positives" in summary:
        facts.append(("positives", count(summary["positives"])))
    by_reason = summary.get("by_reason") or {}
    letters, note = _examples(folder, name, list(by_reason))
    ordered = sorted(by_reason.items(), key=lambda entry: (-entry[1], entry[0]))
    reasons = [
        Reason(reason, count(n), share(n / read) if read else "", letters.get(reason, []))
        for reason, n in ordered
    ]
    if not rejected:
        note = "No row was rejected."
    return Source(name, facts, reasons, "", note)


def _examples(folder: Path, name: str, reasons: list[str]) -> tuple[dict[str, list[Letter]], str]:
    """Returns the first dead letters of each reason, and a note where there are none."""
    try:
        letters = read_table(folder / "dead_letters.parquet", f"The dead letters of the {name}")
        examples = {}
        for reason in reasons:
            rows = letters.filter(pc.equal(letters["reason"], reason))
            examples[reason] = [_letter(row) for row in rows[:_EXAMPLES_A_REASON].to_pylist()]
    except MissingError as missing:
        return {}, str(missing)
    except KeyError as error:
        return {}, f"The dead letters of the {name} can't be read: {error}."
    return examples, ""


def _letter(row: dict[str, Any]) -> Letter:
    text = str(row.get("row") or "")
    if len(text) > _SHOWN_CHARACTERS:
        text = text[: _SHOWN_CHARACTERS - 1] + "…"
    line = row.get("line")
    where = PurePath(str(row.get("file") or "file not known")).name
    return Letter(f"{where}, line {line:,}" if is_number(line) else where, text or "(empty row)")
