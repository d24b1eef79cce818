"""Dead letters: the rows that could not be used, why, and where they stand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

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
        reasons: What is wrong with each row `[n]`.
        file: The file that the rows stand in.
        lines: Line of each row, or its number where there are no lines `[n]`, from 1 on.
        rows: Each row as it stands there `[n]`.
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
