"""Removes duplicates: of rows with the same key, the first one is kept."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

POSITION = pa.field("position", pa.int64())
"""Where a row stands among the rows of all files; leaves with the duplicates."""

_LINES_OF_A_FILE = 1 << 40
_ODD = np.uint64(0x9E3779B97F4A7C15)  # 2⁶⁴ over the golden ratio, odd: a one-to-one factor.


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
    is_kept = np.ones(len(position), bool)
    suspects = _suspects(codes)
    is_kept[suspects[_is_repeated(position[suspects], [code[suspects] for code in codes])]] = False
    kept = np.flatnonzero(is_kept)
    # Mostly in order already, which a stable sort sees.
    kept = kept[np.argsort(position[kept], kind="stable")]
    unique = table.drop_columns([POSITION.name]).combine_chunks().take(pa.array(kept))
    return unique, len(position) - len(kept)


def _suspects(codes: Sequence[np.ndarray]) -> np.ndarray:
    """Returns the rows whose mixed key another row has too: few, and all duplicates."""
    mixed = np.zeros(len(codes[0]), np.uint64)
    for code in codes:
        mixed = (mixed ^ code.astype(np.int64).view(np.uint64)) * _ODD
        mixed ^= mixed >> np.uint64(32)
    ordered = np.sort(mixed)
    twice = ordered[1:][ordered[1:] == ordered[:-1]]
    is_suspect = pc.is_in(pa.array(mixed), pa.array(twice))
    return np.flatnonzero(is_suspect.to_numpy(zero_copy_only=False))


def _is_repeated(position: np.ndarray, codes: Sequence[np.ndarray]) -> np.ndarray:
    """Returns which rows `[n]` repeat an earlier row."""
    order = np.lexsort((position, *codes))
    repeated = np.zeros(len(order), bool)
    equal = [code[order[1:]] == code[order[:-1]] for code in codes]
    repeated[order[1:]] = np.all(equal, axis=0)
    return repeated


def _codes(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a number `[n]` for each value `[n]`, equal where the values are."""
    if pa.types.is_integer(column.type):
        return column.to_numpy()
    return column.combine_chunks().dictionary_encode().indices.to_numpy()
