"""Dead letters: the rows that could not be used, why, and where they stand."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

SHOWN_CHARACTERS = 1000

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
        lines: Line of each row `[n]`, from 1 on.
        rows: Each row as it stands there `[n]`.
    """
    shown = [row.decode("utf-8", "replace")[:SHOWN_CHARACTERS] for row in rows]
    columns = [
        pa.array(reasons, pa.string()),
        pa.array([file] * len(shown), pa.string()),
        pa.array(lines, pa.int64()),
        pa.array(shown, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, schema=SCHEMA)


def count_reasons(letters: pa.RecordBatch | pa.Table) -> dict[str, int]:
    """Returns how many of `letters` give each reason."""
    counted = pc.value_counts(letters.column("reason"))
    return {entry["values"]: entry["counts"] for entry in counted.to_pylist()}
