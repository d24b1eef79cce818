"""Tallies: nested counts that workers make and that add up in any order."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

import pyarrow as pa

from recsys.data.dead_letters import count_reasons
from recsys.data.sources.source import RawBatch

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


def _sum(one: Any, other: Any) -> Any:
    if isinstance(one, dict):
        return add_up((one, other))
    if isinstance(one, list):
        both = sorted([*one, *other], key=lambda letter: (letter["file"], letter["line"]))
        return both[:_EXAMPLES_A_REASON]
    return one + other
