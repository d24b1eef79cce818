"""Counts distinct hashes in bounded memory."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.hashes import fingerprints

_LEAST_LOOSE = 1 << 20


class HashCount:
    """Counts distinct hashes, exactly up to a limit, and by a sample of their last bits beyond.

    Args:
        most: Maximum number of hashes to keep; None: no limit.
    """

    def __init__(self, most: int | None = None) -> None:
        self.n_added = 0
        self._most, self._shift, self._n_loose = most, 0, 0
        self._hashes, self._flags = [np.zeros(0, np.uint64)], [np.zeros(0, bool)]

    def add(self, hashes: np.ndarray, flags: np.ndarray | None = None) -> None:
        """Adds hashes `[n]` uint64 with flags `[n]` bool; the first flag of a hash counts."""
        self.n_added += len(hashes)
        self._n_loose += len(hashes)
        self._hashes.append(hashes)
        self._flags.append(np.zeros(len(hashes), bool) if flags is None else flags)
        # So rarely that the total work is linear in the number of hashes.
        if self._n_loose > max(_LEAST_LOOSE, len(self._hashes[0])):
            self._join()

    def add_texts(self, texts: pa.Array) -> None:
        """Adds texts `[n]`, except nulls."""
        self.add(fingerprints(pc.unique(texts).drop_null().cast(pa.large_string())))

    @property
    def is_exact(self) -> bool:
        """Whether all hashes are kept."""
        self._join()
        return self._shift == 0

    @property
    def n_flagged(self) -> int:
        """Number of distinct flagged hashes."""
        self._join()
        return int(self._flags[0].sum()) << self._shift

    def __len__(self) -> int:
        self._join()
        return len(self._hashes[0]) << self._shift

    def _join(self) -> None:
        if len(self._hashes) == 1:
            return
        hashes, first = np.unique(np.concatenate(self._hashes), return_index=True)
        flags = np.concatenate(self._flags)[first]
        is_kept = hashes & np.uint64((1 << self._shift) - 1) == 0
        while self._most is not None and is_kept.sum() > self._most:
            self._shift += 1
            is_kept = hashes & np.uint64((1 << self._shift) - 1) == 0
        self._hashes, self._flags, self._n_loose = [hashes[is_kept]], [flags[is_kept]], 0
