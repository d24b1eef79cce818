"""The queries that an index is judged by."""

from __future__ import annotations

import numpy as np

_FEWEST, _SEED = 512, 0
_WAY = 0.5
"""Length of the way that a made query lies from its item, as a share of the item's length."""


def judging_queries(queries: np.ndarray, embeddings: np.ndarray, rows: np.ndarray) -> np.ndarray:
    """Returns at least 512 queries `[n, dim]` float32.

    Args:
        queries: Those of the model `[m, dim]`; all of them are taken. One without a
            length is none: every item is as good as any other.
        embeddings: Of each item row `[item rows, dim]`.
        rows: Rows that are items; where there are too few queries, such as lie near
            random ones of them are made.
    """
    queries = np.asarray(queries, np.float32).reshape(-1, embeddings.shape[1])
    own = queries[np.abs(queries).max(axis=1, initial=0) > 0]
    missing = max(0, _FEWEST - len(own))
    rng = np.random.default_rng(_SEED)
    near = np.asarray(embeddings[rng.choice(rows, missing)], np.float32)
    ways = rng.standard_normal(near.shape, np.float32)
    ways /= np.maximum(np.linalg.norm(ways, axis=1, keepdims=True), 1e-12)
    lengths = np.linalg.norm(near, axis=1, keepdims=True)
    return np.concatenate([own, near + np.float32(_WAY) * lengths * ways])
