"""Duplicates: of rows with the same key, the one that stands first stays."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

POSITION = pa.field("position", pa.int64())
"""Where a row stands among the rows of all files; leaves with the duplicates."""

_LINES_OF_A_FILE = 1 << 40


def positions(file_index: int, line: np.ndarray) -> pa.Array:
    """Returns the position of each line `[n]` of the file at `file_index`."""
    return pa.array(file_index * _LINES_OF_A_FILE + line, POSITION.type)


def keep_first(table: pa.Table, keys: Sequence[str]) -> tuple[pa.Table, int]:
    """Keeps the first row of each key.

    Args:
        table: Rows with the columns `keys` and `position`.
        keys: Columns that make two rows duplicates.

    Returns:
        The rows kept, sorted by position, without it, and how many were dropped.
    """
    position = table[POSITION.name].to_numpy()
    codes = [_codes(table[key]) for key in keys]
    order = np.lexsort((position, *codes))
    is_first = np.ones(len(order), bool)
    is_first[1:] = np.any([code[order[1:]] != code[order[:-1]] for code in codes], axis=0)
    kept = order[is_first]
    kept = kept[np.argsort(position[kept], kind="stable")]
    return table.drop_columns([POSITION.name]).take(pa.array(kept)), len(order) - len(kept)


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a number `[n]` for each value `[n]`, equal where the values are."""
    if pa.types.is_integer(column.type):
        return column.to_numpy()
    return column.combine_chunks().dictionary_encode().indices.to_numpy()
