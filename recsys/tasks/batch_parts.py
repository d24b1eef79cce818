"""What batches of every task need: dropout of rows and attributes, and a count of bytes read."""

from __future__ import annotations

import threading

import numpy as np

from recsys.data.shuffle import BatchPart
from recsys.data.vocabulary import UNKNOWN_ROW


class ReadCount:
    """Counts the bytes read for batches; thread-safe.

    Attributes:
        batches: Number of batches read, or of parts of them.
        bytes: Bytes read for them: ids, histories, weights and features.
    """

    def __init__(self) -> None:
        self.batches = self.bytes = 0
        self._lock = threading.Lock()

    def add(self, batches: int, n_bytes: int) -> None:
        """Adds the bytes read for some batches."""
        with self._lock:
            self.batches += batches
            self.bytes += n_bytes


def drop_rows(
    rows: np.ndarray, share: float, random: np.random.Generator, part: BatchPart
) -> np.ndarray:
    """Returns the part's `rows` `[n, …]` with a share of them replaced by row 0 [0..1)."""
    if not share:
        return rows
    return np.where(part.uniform(rows.shape, random) < share, np.int32(UNKNOWN_ROW), rows)


def hidden(x: np.ndarray, is_hidden: np.ndarray, missing: int = 0) -> np.ndarray:
    """Returns `x` `[…, …]` with the entries at `is_hidden` `[…]` replaced by `missing`."""
    mask = is_hidden.reshape(*is_hidden.shape, *[1] * (x.ndim - is_hidden.ndim))
    return np.where(mask, x.dtype.type(missing), x)
