"""Intervals by the paired bootstrap over users.

Whole users are drawn with replacement, as many as there are, again and again; each draw
gives all means at once, so that the figures of two models on one draw belong together and
what both owe to easy or hard users cancels out (Efron and Tibshirani, 1993, ch. 13;
Sakai, 2006, for retrieval). An interval is that of the percentiles.
"""

from __future__ import annotations

import numpy as np

Interval = tuple[float, float]
_BLOCK_DRAWS = 2**24
_FEWEST_USERS = 10
"""With fewer, an interval of percentiles is far too narrow."""


def resampled_means(columns: np.ndarray, resamples: int, seed: int = 0) -> np.ndarray:
    """Returns the means of resampled users.

    Args:
        columns: Value of each user `[users, columns]`; NaN where a user has none, who then
            doesn't count in that column.
        resamples: How often users are drawn.
        seed: Same seed, same draws.

    Returns:
        `[resamples, columns]` float64; NaN where no user with a value was drawn.
    """
    n_users = len(columns)
    present = ~np.isnan(columns)
    values = np.where(present, columns, 0.0)
    rng = np.random.default_rng(seed)
    out = np.empty((resamples, columns.shape[1]))
    size = max(1, _BLOCK_DRAWS // n_users)
    for start in range(0, resamples, size):
        n = min(size, resamples - start)
        times = np.stack(
            [np.bincount(rng.integers(0, n_users, n_users), minlength=n_users) for _ in range(n)]
        ).astype(np.float64)
        with np.errstate(invalid="ignore"):
            out[start : start + n] = (times @ values) / (times @ present)
    return out


def interval(samples: np.ndarray, confidence: float) -> Interval | None:
    """Returns the percentiles that hold the middle `confidence` of `samples` `[n]`.

    None where one is infinite, or a tenth or more are no numbers: too few users have a value.
    """
    known = samples[~np.isnan(samples)]
    if np.isinf(known).any() or len(known) <= 0.9 * len(samples):
        return None
    tail = 50.0 * (1.0 - confidence)
    low, high = np.percentile(known, [tail, 100.0 - tail])
    return float(low), float(high)


def has_enough(column: np.ndarray) -> bool:
    """Returns whether enough users for an interval have a value in `column` `[users]`."""
    return int((~np.isnan(column)).sum()) >= _FEWEST_USERS
