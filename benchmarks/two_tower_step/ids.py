"""Ids as recommenders see them: few that are frequent, many that are rare."""

from __future__ import annotations

import numpy as np
import numpy.typing as npt

EXPONENT = 1.05


def zipf_batches(
    n_batches: int, batch: int, rows: int, seed: int, sides: int = 2
) -> npt.NDArray[np.int32]:
    """Returns rows `[n_batches, sides, batch]` int32 in 0…rows-1, each side drawn by itself.

    The r-th most frequent row is drawn with a probability proportional to r^-1.05; which
    row that is, a permutation says, so that frequent rows are no neighbours.
    """
    rng = np.random.default_rng(seed)
    cumulated = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -EXPONENT)
    ids = np.empty((n_batches, sides, batch), np.int32)
    for side in range(sides):
        drawn = rng.random((n_batches, batch)) * cumulated[-1]
        ranks = np.searchsorted(cumulated, drawn, side="right")
        ids[:, side] = rng.permutation(rows).astype(np.int32)[np.minimum(ranks, rows - 1)]
    return ids
