"""A table's numbers in the order of its rows: how they are read, written and compared.

In memory rows lie spread (`recsys.embedding.spread`); on disk, and to everybody else,
row r is the r-th.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import keras
import numpy as np

from recsys.embedding.table import Table

_CHUNK_BYTES = 2**26


def chunks_in_order(table: Table, variable: Any) -> Iterator[np.ndarray]:
    """Yields `variable` `[places, width]` in the order of rows, without padding, in chunks.

    Args:
        table: The table.
        variable: Its weights or one of its slots.
    """
    parts = _parts(variable.value)
    width = int(variable.shape[1])
    n = max(1, _CHUNK_BYTES // (4 * width))
    for start in range(0, table.rows, n):
        places = table.place(np.arange(start, min(start + n, table.rows)))
        yield _picked(parts, places, width)


def in_order(table: Table, variable: Any) -> np.ndarray:
    """Returns `variable` in the order of rows `[rows, width]`, on the host."""
    return np.concatenate(list(chunks_in_order(table, variable)))


def in_places(table: Table, values: np.ndarray) -> np.ndarray:
    """Returns rows `[rows, width]` where they lie `[places, width]`; zeros in the padding."""
    if not table.is_spread:
        return np.asarray(values)
    out = np.zeros((table.places, values.shape[1]), values.dtype)
    out[table.place(np.arange(len(values)))] = values
    return out


def _parts(value: Any) -> list[tuple[int, int, np.ndarray]]:
    """Returns the first row, the first column and the numbers of each shard."""
    shards = getattr(value, "addressable_shards", None)
    if shards is None:
        return [(0, 0, keras.ops.convert_to_numpy(value))]
    found: dict[tuple[int, int], np.ndarray] = {}
    for shard in shards:
        row, column = (index.start or 0 for index in shard.index)
        found.setdefault((row, column), np.asarray(shard.data))
    return [(row, column, data) for (row, column), data in found.items()]


def _picked(parts: list[tuple[int, int, np.ndarray]], places: np.ndarray, width: int) -> np.ndarray:
    out = np.empty((len(places), width), np.float32)
    for row, column, data in parts:
        inside = (places >= row) & (places < row + len(data))
        out[inside, column : column + data.shape[1]] = data[places[inside] - row]
    return out
