"""Where each of many ids is, without a table of Python objects.

Arrow's `index_in` hashes the whole list again for each call, which for 10^7 ids takes
longer than a batch of look-ups. Here the ids' fingerprints are sorted once; a look-up
begins where the first bits of the id's fingerprint say, and what it finds is compared
byte by byte, so that two ids of one fingerprint are never mistaken for each other.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.farmhash import fingerprints

_NOWHERE = -1


class IdIndex:
    """Finds ids in a list.

    Args:
        ids: The list `[n]`, `large_string`, unique; null is found nowhere.
    """

    def __init__(self, ids: pa.Array) -> None:
        self._ids = ids
        hashes = fingerprints(ids)
        order = np.argsort(hashes)
        if ids.null_count:
            order = order[ids.is_valid().to_numpy(zero_copy_only=False)[order]]
        self._place = order.astype(np.int32)
        # What is larger than every fingerprint but one ends each search.
        self._hashes = np.append(hashes[order], np.uint64(2**64 - 1))
        bits = max(1, len(order).bit_length())
        self._shift = np.uint64(64 - bits)
        prefixes = np.arange(1 << bits, dtype=np.uint64) << self._shift
        self._starts = np.searchsorted(self._hashes[:-1], prefixes).astype(np.int32)

    def find(self, ids: pa.Array) -> np.ndarray:
        """Returns the place `[n]` int64 of each id `[n]` `large_string`; -1 for none."""
        places = np.full(len(ids), _NOWHERE, np.int64)
        if len(self._place) == 0:
            return places
        hashes = fingerprints(ids)
        at = self._first_not_below(hashes)
        inside = np.minimum(at, len(self._place) - 1)
        is_alike = (self._hashes[inside] == hashes) & ids.is_valid().to_numpy(zero_copy_only=False)
        alike = np.flatnonzero(is_alike)
        candidates = self._place[inside[alike]]
        places[alike] = candidates
        asked = ids if len(alike) == len(ids) else ids.take(pa.array(alike))
        differs = pc.not_equal(asked, self._ids.take(pa.array(candidates)))
        twins = alike[differs.to_numpy(zero_copy_only=False)]
        if len(twins):
            places[twins] = self._search(ids.take(pa.array(twins)))
        return places

    def _first_not_below(self, hashes: np.ndarray) -> np.ndarray:
        at = self._starts[hashes >> self._shift]
        behind = np.flatnonzero(self._hashes[at] < hashes)
        while len(behind):
            at[behind] += 1
            behind = behind[self._hashes[at[behind]] < hashes[behind]]
        return at

    def _search(self, ids: pa.Array) -> np.ndarray:
        found = pc.index_in(ids, value_set=self._ids, skip_nulls=True)
        return pc.fill_null(found, _NOWHERE).to_numpy(zero_copy_only=False)
