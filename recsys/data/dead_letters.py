"""Dead letters: the rejected rows, each with its reason and position, and counts of rows.

A *tally* is a nested map of numbers that workers create and that can be added in any order.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.errors import RecsysError

KEPT_CHARACTERS = 65_536
"""Maximum length of the stored text of a row [characters]."""

SCHEMA = pa.schema(
    [
        ("reason", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("row", pa.string()),
    ]
)

NOT_TEXT = "not UTF-8 text"
"""Reason for a row whose bytes can't be decoded."""

_REASON_EXAMPLES = 2
_EXAMPLE_CHARACTERS = 1000

Tally = dict[Any, Any]
"""Numbers, nested maps of them, and lists of example letters."""


def dead_letters(
    reasons: Sequence[str], file: str, lines: Sequence[int] | np.ndarray, rows: Sequence[bytes]
) -> pa.RecordBatch:
    """Returns dead letters in the columns of `SCHEMA`.

    Args:
        reasons: Reason for each row `[n]`.
        file: The file of the rows.
        lines: Line of each row, or its number in a file without lines `[n]`, from 1 on.
        rows: Raw text of each row `[n]`.
    """
    # A UTF-8 character has at most four bytes.
    shown = [
        row[: 4 * KEPT_CHARACTERS].decode("utf-8", "replace")[:KEPT_CHARACTERS] for row in rows
    ]
    columns = [reasons, [file] * len(shown), lines, shown]
    arrays = [pa.array(c, type_) for c, type_ in zip(columns, SCHEMA.types, strict=True)]
    return pa.RecordBatch.from_arrays(arrays, schema=SCHEMA)


def count_reasons(letters: pa.RecordBatch | pa.Table) -> dict[str, int]:
    """Returns the number of `letters` by reason, without details in parentheses."""
    counted = pc.value_counts(_without_details(letters.column("reason")))
    return {entry["values"]: entry["counts"] for entry in counted.to_pylist()}


def _without_details(reasons: Any) -> Any:
    return pc.replace_substring_regex(reasons, r" \([^()]*\)$", "")


def letters_tally(letters: pa.RecordBatch) -> Tally:
    """Returns the number of dead letters by reason, with the first examples of each."""
    by_reason = count_reasons(letters)
    table = pa.Table.from_batches([letters])
    table = table.sort_by([("file", "ascending"), ("line", "ascending")])
    reasons = _without_details(table["reason"])
    examples = {}
    for reason in by_reason:
        first = table.filter(pc.equal(reasons, reason)).slice(0, _REASON_EXAMPLES)
        examples[reason] = [
            {**letter, "row": letter["row"][:_EXAMPLE_CHARACTERS]}
            for letter in first.drop_columns(["reason"]).to_pylist()
        ]
    return {"rejected": letters.num_rows, "by_reason": by_reason, "examples": examples}


def add_up(tallies: Iterable[Tally]) -> Tally:
    """Returns the sum of tallies; of the examples, the first by file and line are kept."""
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
        return both[:_REASON_EXAMPLES]
    return value + other


def summarize(tallies: Iterable[Tally]) -> Tally:
    """Returns the sum of the workers' tallies, with zeros for missing counts."""
    zero: Tally = {"read": 0, "good": 0, "rejected": 0, "duplicates": 0}
    return add_up([{**zero, "by_reason": {}, "examples": {}}, *tallies])


def write_summary(tallies: Iterable[Tally], letters: Path, files: Sequence[str]) -> Tally:
    """Adds up the workers' tallies, writes the sum as `summary.json` and returns it."""
    summary = {**summarize(tallies), "files": list(dict.fromkeys(files))}
    (letters / "dead_letters").mkdir(parents=True, exist_ok=True)
    (letters / "summary.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def refuse_empty(summary: Tally, what: str, cure: str = "") -> None:
    """Raises an error if no row was usable.

    Args:
        summary: Summary of the dead letters.
        what: Key of the source in the config.
        cure: Advice, if known.

    Raises:
        RecsysError: There is no good row.
    """
    if summary["good"]:
        return
    received = dict(summary["by_reason"])
    for letter in [letters[0] for letters in summary["examples"].values() if letters][:1]:
        received["first"] = f"{letter['file']}, line {letter['line']}: {letter['row'][:80]!r}"
    raise RecsysError(
        "R206",
        f"The {what} must have at least one good row of {summary['read']}.",
        cure or _encoding_cure(what, summary) or f"Correct data.{what}.",
        received,
    )


def _encoding_cure(what: str, summary: Tally) -> str:
    """Returns advice on the encoding if most rejected rows aren't UTF-8."""
    by_reason = summary["by_reason"]
    if not by_reason or max(by_reason, key=by_reason.get) != NOT_TEXT:
        return ""
    key = f"data.{what}.csv.encoding"
    return (
        f"If it is CSV in another encoding, set {key}, such as gb18030, cp1251 or latin-1:"
        " recsys check guesses it."
    )


def check_rejected(what: str, folder: Path, max_rejected_share: float) -> list[str]:
    """Checks the share of rejected rows.

    Args:
        what: `interactions`, `items` or `users`.
        folder: Folder of the dead letters, with their `summary.json`.
        max_rejected_share: Highest share that may be rejected [0..1].

    Returns:
        Sentences on remarkable facts that are no errors.

    Raises:
        RecsysError: The share is too high.
    """
    summary = json.loads((folder / "summary.json").read_text())
    share = summary["rejected"] / max(summary["read"], 1)
    if share <= max_rejected_share:
        return list(summary.get("gate_remarks", []))
    reason = max(summary["by_reason"].items(), key=lambda item: item[1])[0]
    raise RecsysError(
        "R241",
        f"At most {100 * max_rejected_share:.3g} % of the {what} may be rejected,"
        f" {100 * share:.3g} % were ({summary['rejected']:,} of {summary['read']:,},"
        f" most often: {reason}).",
        f"See {folder / 'dead_letters'}, repair the data, or raise data.gate.max_rejected_share."
        f" {_encoding_cure(what, summary)}".rstrip(),
    )
