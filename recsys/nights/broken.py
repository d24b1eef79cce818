"""Spans that arrive broken, as they do: cut off, of other columns, or full of rubbish."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq


def _truncate(file: Path) -> None:
    """Cuts a file off in the middle, as an upload that was."""
    content = file.read_bytes()
    file.write_bytes(content[: len(content) // 2])


def _rename_column(file: Path) -> None:
    """Gives the users' column another name, as a release of somebody else's code does."""
    table = pq.read_table(file)
    names = ["uid" if name == "user_id" else name for name in table.column_names]
    pq.write_table(table.rename_columns(names), file)


def _spoil_rows(file: Path) -> None:
    """Makes the times of a third of the rows lie in 1970, as a unit that changed does."""
    table = pq.read_table(file)
    times = table["timestamp"].to_numpy().copy()
    times[np.arange(len(times)) % 3 == 0] //= 1_000_000
    at = table.column_names.index("timestamp")
    pq.write_table(table.set_column(at, "timestamp", pa.array(times)), file)


BREAKS: dict[str, Callable[[Path], None]] = {
    "cut off": _truncate,
    "other columns": _rename_column,
    "wrong times": _spoil_rows,
}
"""What can be wrong with a span, and what does it to its file."""


def draw_broken(n_nights: int, n_broken: int, seed: int) -> dict[int, str]:
    """Returns which nights' spans arrive broken, and how; never the first or the last one.

    They lie apart, so that each is repaired before the next.
    """
    rng, kinds = np.random.default_rng(seed), list(BREAKS)
    # Nights that lie apart are any nights, with one more put behind each of them.
    drawn = rng.choice(n_nights - 2 - max(0, n_broken - 1), n_broken, replace=False)
    nights = 1 + np.sort(drawn) + np.arange(n_broken)
    return {int(night): kinds[i % len(kinds)] for i, night in enumerate(nights)}
