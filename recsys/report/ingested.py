"""The ingested data: rows, spans, the split, vocabularies and features."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from pathlib import Path, PurePath
from typing import Any

import numpy as np
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.formats import count, counted, is_number, moment, share
from recsys.report.artifacts import Artifacts, MissingError, read_json, read_table

_EXAMPLES_A_REASON = 2
_SHOWN_CHARACTERS = 160
_SHOWN_FILES = 12


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
        name: `interactions`, `items` or `users`.
        facts: What was counted: name and figure.
        files: Rows read of each file, the last ones; files of spans are sorted by these.
        earlier_files: That there are more files; empty where there are none.
        reasons: Why rows were rejected, the most frequent first.
        missing: Why there is nothing to show; empty where there is.
        note: What is to be said of the dead letters.
    """

    name: str
    facts: list[tuple[str, str]]
    files: list[tuple[str, str]]
    earlier_files: str
    reasons: list[Reason]
    missing: str
    note: str


def read_sources(artifacts: Artifacts) -> list[Source]:
    """Returns what was read of each kind of data."""
    if not artifacts.dead_letters:
        raise MissingError("The run named no dead letters.")
    return [_source(name, folder) for name, folder in artifacts.dead_letters.items()]


def read_split(artifacts: Artifacts) -> list[tuple[str, str]]:
    """Returns the facts of the split and of the vocabularies: name and figure."""
    store = read_json(artifacts.data / "store" / "store.json", "The interaction store")
    train, held_out = store.get("train_events"), store.get("eval_events")
    facts = [
        _split(store),
        ("training events", count(train)),
        ("held-out events", f"{count(held_out)}{_of_all(held_out, train)}"),
        ("users with held-out events", count(store.get("eval_users"))),
    ]
    for name in ("users", "items"):
        path = artifacts.data / "vocabulary" / f"{name}.parquet"
        facts.append((f"vocabulary of {name}", _vocabulary_size(path)))
    facts.append(("items without training events", _count_cold(artifacts.data)))
    return facts


def _split(store: dict[str, Any]) -> tuple[str, str]:
    split = store.get("split", "time")
    return ("split at", moment(store.get("cut"))) if split == "time" else ("split", str(split))


def _of_all(part: Any, rest: Any) -> str:
    if not (is_number(part) and is_number(rest) and part + rest > 0):
        return ""
    return f" ({share(part / (part + rest))})"


def _vocabulary_size(path: Path) -> str:
    try:
        return count(pq.read_table(path, columns=["id"])["id"].drop_null().length())
    except (OSError, ValueError):
        return "not there"


def _count_cold(data: Path) -> str:
    try:
        items = read_table(data / "vocabulary" / "items.parquet", "The vocabulary", ["id", "count"])
    except MissingError:
        return "not known"
    is_cold = pc.and_(pc.is_valid(items["id"]), pc.equal(items["count"], 0))
    return count(pc.sum(is_cold).as_py() or 0)


def _source(name: str, folder: Path) -> Source:
    try:
        summary = read_json(folder / "summary.json", f"The summary of the {name}")
    except MissingError as missing:
        return Source(name, [], [], "", [], str(missing), "")
    by_reason = summary.get("by_reason") or {}
    files = list((summary.get("read_by_file") or {}).items())
    return Source(
        name=name,
        facts=_facts(summary),
        files=[(file, count(rows)) for file, rows in files[-_SHOWN_FILES:]],
        earlier_files=_earlier(len(files) - _SHOWN_FILES),
        reasons=_reasons(by_reason, summary.get("examples") or {}, summary.get("read")),
        missing="",
        note=_note(folder, by_reason),
    )


def _facts(summary: dict[str, Any]) -> list[tuple[str, str]]:
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
    if "empty_lists" in summary:
        facts.append(("rows with an empty list of events", count(summary["empty_lists"])))
    return facts


def _reasons(by_reason: dict[str, int], examples: dict[str, Any], read: Any) -> list[Reason]:
    """Returns why rows were rejected, the most frequent reason first."""
    ordered = sorted(by_reason.items(), key=lambda entry: (-entry[1], entry[0]))
    return [
        Reason(
            text=reason,
            rows=count(n),
            share=share(n / read) if read else "",
            letters=[_letter(row) for row in examples.get(reason, [])[:_EXAMPLES_A_REASON]],
        )
        for reason, n in ordered
    ]


def _earlier(n_files: int) -> str:
    return f"and {counted(n_files, 'earlier file', 'earlier files')}" if n_files > 0 else ""


def _note(folder: Path, by_reason: dict[str, int]) -> str:
    if not by_reason:
        return "No row was rejected."
    return f"All rejected rows, each with its reason, file and line: {folder / 'dead_letters'}"


def _letter(row: dict[str, Any]) -> Letter:
    text = str(row.get("row") or "")
    if len(text) > _SHOWN_CHARACTERS:
        text = text[: _SHOWN_CHARACTERS - 1] + "…"
    line = row.get("line")
    where = PurePath(str(row.get("file") or "file not known")).name
    return Letter(f"{where}, line {line:,}" if is_number(line) else where, text or "(empty row)")


_NAMES = ("users", "items")
_SHOWN_IDS = 5
_SHOWN_ID_CHARACTERS = 40


@dataclasses.dataclass(frozen=True)
class Growth:
    """How a vocabulary changed.

    Attributes:
        name: `users` or `items`.
        facts: Name and figure.
        examples: A few ids of each kind of change.
    """

    name: str
    facts: list[tuple[str, str]]
    examples: list[tuple[str, str]]


def read_growths(artifacts: Artifacts) -> list[Growth]:
    """Returns how each vocabulary changed."""
    if artifacts.vocabularies is None:
        raise MissingError("The run named no diff of its vocabularies.")
    diff = read_json(artifacts.vocabularies / "diff.json", "The diff of the vocabularies")
    return [_growth(name, diff[name]) for name in _NAMES if name in diff]


def _growth(name: str, diff: dict[str, Any]) -> Growth:
    facts = [
        ("new ids", count(diff["new"])),
        ("kept their row", count(diff["kept"])),
        ("evicted", count(diff["evicted"])),
        ("in recycled rows", count(diff["recycled"])),
        ("seen too seldom", count(diff["below_min_count"])),
        ("rows before", count(diff["rows_before"])),
        ("rows now", count(diff["rows_after"])),
        ("training events of unknown ids", share(diff["unknown_train_share"])),
    ]
    if is_number(diff["unknown_eval_share"]):
        facts.append(("held-out events of unknown ids", share(diff["unknown_eval_share"])))
    examples = [
        (kind.replace("_", " "), ", ".join(_shortened(id_) for id_ in ids[:_SHOWN_IDS]))
        for kind, ids in diff["examples"].items()
        if ids
    ]
    return Growth(name, facts, examples)


def _shortened(text: str) -> str:
    return text if len(text) <= _SHOWN_ID_CHARACTERS else f"{text[: _SHOWN_ID_CHARACTERS - 1]}…"


_FOLDERS = {"items": "catalogue", "users": "user_features"}
_BLOCK_ROWS = 1 << 18


@dataclasses.dataclass(frozen=True)
class FeatureRow:
    """One feature.

    Attributes:
        side: `items` or `users`.
        name: Its name.
        tokens: Rows of its table, padding left out.
        known: Share of the side's rows that have a token.
        mean: Tokens of those that have any.
    """

    side: str
    name: str
    tokens: str
    known: str
    mean: str


def read_features(artifacts: Artifacts) -> list[FeatureRow]:
    """Returns the features of both sides; none where the config has none."""
    return [row for side in _FOLDERS for row in _of_side(artifacts.data, side)]


def _of_side(data: Path, side: str) -> Iterator[FeatureRow]:
    folder = data / _FOLDERS[side]
    if side == "users" and not folder.exists():
        return
    for feature in read_json(folder / "features.json", f"The list of the {side}' features")[
        "features"
    ]:
        name = feature["name"]
        try:
            bags = np.load(folder / f"{name}.npy", mmap_mode="r", allow_pickle=False)
        except (OSError, ValueError, EOFError) as error:
            raise MissingError(f"The feature {name} can't be read: {error}.") from None
        n_known, n_tokens = _counts(bags[1:])
        yield FeatureRow(
            side=side,
            name=name,
            tokens=count(feature["rows"] - 1),
            known=share(n_known / max(1, len(bags) - 1)),
            mean=f"{n_tokens / max(1, n_known):.1f}",
        )


def _counts(bags: np.ndarray) -> tuple[int, int]:
    """Returns how many rows have a token, and how many tokens there are, block by block."""
    n_known = n_tokens = 0
    for start in range(0, len(bags), _BLOCK_ROWS):
        present = np.asarray(bags[start : start + _BLOCK_ROWS]) > 0
        n_known += int(present.any(axis=1).sum())
        n_tokens += int(present.sum())
    return n_known, n_tokens
