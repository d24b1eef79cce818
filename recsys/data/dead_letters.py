"""Dead letters: the rejected rows, each with its reason and its position."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.errors import RecsysError

KEPT_CHARACTERS = 65_536
"""Characters of a row that are kept, from its start."""

SCHEMA = pa.schema(
    [
        ("reason", pa.string()),
        ("file", pa.string()),
        ("line", pa.int64()),
        ("row", pa.string()),
    ]
)


def dead_letters(
    reasons: Sequence[str], file: str, lines: Sequence[int] | np.ndarray, rows: Sequence[bytes]
) -> pa.RecordBatch:
    """Returns dead letters in the columns of `SCHEMA`.

    Args:
        reasons: Reason of each row `[n]`.
        file: The file of the rows.
        lines: Line of each row, or its number where there are no lines `[n]`, from 1 on.
        rows: Raw text of each row `[n]`.
    """
    shown = [_shown(row) for row in rows]
    columns = [
        pa.array(reasons, pa.string()),
        pa.array([file] * len(shown), pa.string()),
        pa.array(lines, pa.int64()),
        pa.array(shown, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def _shown(row: bytes) -> str:
    # No character of UTF-8 takes more than four bytes.
    return row[: 4 * KEPT_CHARACTERS].decode("utf-8", "replace")[:KEPT_CHARACTERS]


def count_reasons(letters: pa.RecordBatch | pa.Table) -> dict[str, int]:
    """Returns how many of `letters` give each reason."""
    counted = pc.value_counts(letters.column("reason"))
    return {entry["values"]: entry["counts"] for entry in counted.to_pylist()}


def check_rejected(what: str, folder: Path, max_rejected_share: float) -> None:
    """Raises an error if too large a share of the rows was rejected.

    Args:
        what: `interactions`, `items` or `users`.
        folder: Dead letters, with their `summary.json`.
        max_rejected_share: Highest share that may be rejected [0..1].

    Raises:
        RecsysError: The share is higher.
    """
    summary = json.loads((folder / "summary.json").read_text())
    share = summary["rejected"] / max(summary["read"], 1)
    if share <= max_rejected_share:
        return
    reasons = sorted(summary["by_reason"].items(), key=lambda item: -item[1])
    raise RecsysError(
        "R241",
        f"At most {max_rejected_share:.2%} of the {what} may be rejected,"
        f" {share:.2%} were ({summary['rejected']} of {summary['read']},"
        f" most often: {reasons[0][0]}).",
        f"See {folder / 'dead_letters'}, mend the data, or raise data.gate.max_rejected_share.",
    )
