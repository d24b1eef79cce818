"""Tallies: nested counts that workers make and that add up in any order; their summary."""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from recsys.data.dead_letters import count_reasons
from recsys.data.sources.source import RawBatch
from recsys.errors import RecsysError

_EXAMPLES_A_REASON = 2
_EXAMPLE_CHARACTERS = 1000

Tally = dict[Any, Any]
"""Numbers, dicts of such, and lists of example letters."""


def rows_tally(batch: RawBatch) -> Tally:
    """Returns how many rows of a file were read, and how many lists of events were empty."""
    tally: Tally = {"read": batch.n_read, "read_by_file": {batch.file: batch.n_read}}
    return {**tally, "empty_lists": batch.n_empty} if batch.n_empty else tally


def letters_tally(letters: pa.RecordBatch) -> Tally:
    """Returns how many dead letters there are, by reason, with the first of each."""
    by_reason = count_reasons(letters)
    examples: Tally = {reason: [] for reason in by_reason}
    letters = letters.sort_by([("file", "ascending"), ("line", "ascending")])
    reasons = letters.column("reason").to_pylist() if by_reason else []
    for at, reason in enumerate(reasons):
        if len(examples[reason]) < _EXAMPLES_A_REASON:
            (letter,) = letters.slice(at, 1).to_pylist()
            letter.pop("reason")
            examples[reason].append({**letter, "row": letter["row"][:_EXAMPLE_CHARACTERS]})
    return {"rejected": letters.num_rows, "by_reason": by_reason, "examples": examples}


def add_up(tallies: Iterable[Tally]) -> Tally:
    """Returns the sum: numbers are added, of examples the first by file and line stay."""
    total: Tally = {}
    for tally in tallies:
        for key, value in tally.items():
            total[key] = _sum(total[key], value) if key in total else value
    return total


def _sum(value: Any, other: Any) -> Any:
    if isinstance(value, dict):
        return add_up((value, other))
    if isinstance(value, list):
        both = sorted([*value, *other], key=lambda letter: (letter["file"], letter["line"]))
        return both[:_EXAMPLES_A_REASON]
    return value + other


def zero_summary(tallies: Iterable[Tally]) -> Tally:
    """Returns the sum of the workers' counts, with zeros for missing ones."""
    zero: Tally = {"read": 0, "good": 0, "rejected": 0, "duplicates": 0}
    nothing: Tally = {"by_reason": {}, "examples": {}}
    return add_up([zero, nothing, *tallies])


def write_summary(tallies: Iterable[Tally], letters: Path, files: Sequence[str]) -> Tally:
    """Adds up what all workers counted, writes it as `summary.json` and returns it."""
    summary = {**zero_summary(tallies), "files": list(dict.fromkeys(files))}
    (letters / "dead_letters").mkdir(parents=True, exist_ok=True)
    (letters / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def refuse_empty(summary: Tally, what: str, cure: str = "") -> None:
    """Raises an error if no row could be used.

    Args:
        summary: What was counted.
        what: The part of the config that names the source.
        cure: How to fix it, where that is known.

    Raises:
        RecsysError: There is no good row.
    """
    if summary["good"]:
        return
    received = dict(summary["by_reason"])
    examples = [letters[0] for letters in summary["examples"].values() if letters]
    for letter in examples[:1]:
        received["first"] = f"{letter['file']}, line {letter['line']}: {letter['row'][:80]!r}"
    raise RecsysError(
        "R206",
        f"The {what} must have at least one good row of {summary['read']}.",
        cure or f"Correct data.{what}.",
        received,
    )
