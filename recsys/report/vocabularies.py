"""What changed in the vocabularies since the run before."""

from __future__ import annotations

import dataclasses
from typing import Any

from recsys.formats import count, is_number, share
from recsys.report.artifacts import Artifacts, MissingError, read_json

_NAMES = ("users", "items")
_SHOWN_IDS = 5
_SHOWN_CHARACTERS = 40


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
    return text if len(text) <= _SHOWN_CHARACTERS else f"{text[: _SHOWN_CHARACTERS - 1]}…"
