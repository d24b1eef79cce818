"""Counts of distinct hashes: exact up to a limit, and nearly beyond."""

import numpy as np

from recsys.data.hash_count import HashCount


def test_different_values_are_counted_exactly_and_then_nearly():
    count = HashCount(100_000)
    hashes = np.random.default_rng(0).integers(0, 2**64, 310_000, dtype=np.uint64)
    count.add(np.tile(hashes[:1000], 5), np.arange(5000) % 2 == 0)
    assert (len(count), count.n_flagged, count.n_added, count.is_exact) == (1000, 500, 5000, True)
    for first in range(0, 300_000, 50_000):
        count.add(hashes[first : first + 60_000])
    assert not count.is_exact
    assert abs(len(count) - 310_000) < 310_000 * 0.03
