"""Every item looked at: for several queries by the C kernel where it can be had, else by NumPy."""

from __future__ import annotations

import numpy as np

from recsys import native
from recsys.native import rank as kernel
from recsys.ragged import Ragged

_GROUP = 64


class ExactItems:
    """Ranks all items of a bundle for a few queries at a time, in the thread that asks.

    Of items with one score the one with the smaller row comes first.

    Args:
        embeddings: `[item rows, dim]` float32, contiguous.
        is_item: Which rows are items `[item rows]` bool.
    """

    def __init__(self, embeddings: np.ndarray, is_item: np.ndarray) -> None:
        self._embeddings = embeddings
        self._bias = np.where(is_item, np.float32(0), np.float32(np.nan))
        self._no_items = np.flatnonzero(~is_item)
        self._is_native = native.status().available

    def best(
        self, queries: np.ndarray, hidden: Ragged, k: int, allowed: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the best rows `[queries, k]` int32, 0: none, and their scores float32.

        Args:
            queries: `[queries, dim]` float32.
            hidden: Rows that each query leaves out.
            k: How many.
            allowed: Rows that may be among them `[item rows]` bool; None: all items.
        """
        if self._is_native and len(queries) > 1:  # Of one query BLAS is faster, on all cores.
            bias = self._bias
            if allowed is not None:
                bias = np.where(allowed, bias, np.float32(np.nan))
            return self._by_kernel(np.ascontiguousarray(queries), hidden, k, bias)
        return self._by_numpy(queries, hidden, k, allowed)

    def _by_kernel(
        self, queries: np.ndarray, hidden: Ragged, k: int, bias: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        nothing = Ragged(np.zeros(0, np.int32), np.zeros(len(queries) + 1, np.int64))
        # What the kernel keeps of a query is as long as its list.
        width = min(k, len(bias))
        out = kernel.Results.empty(0, len(queries), width)
        for start in range(0, len(queries), kernel.QUERIES_STEP):
            block = slice(start, min(start + kernel.QUERIES_STEP, len(queries)))
            kernel.rank_queries(block, queries[block], self._embeddings, bias, nothing, hidden, out)
        return _padded(out.top, out.top_scores, k)

    def _by_numpy(
        self, queries: np.ndarray, hidden: Ragged, k: int, allowed: np.ndarray | None
    ) -> tuple[np.ndarray, np.ndarray]:
        left_out = self._no_items
        if allowed is not None:
            left_out = np.union1d(left_out, np.flatnonzero(~allowed))
        rows = np.zeros((len(queries), k), np.int32)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for number, query in enumerate(queries):
            # One by one: BLAS reads a matrix for one vector faster than for a batch of one.
            row = self._embeddings @ query
            row[left_out] = -np.inf
            row[hidden.part(slice(number, number + 1)).rows] = -np.inf
            high = _not_under_the_best(row, k)
            best = best_of(high, row[high], k)
            rows[number, : len(best[0])], scores[number, : len(best[0])] = best
        return rows, scores


def best_of(rows: np.ndarray, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns at most `k` of `rows` with the highest finite scores, and these.

    Of equal ones the smaller rows come first.
    """
    is_there = np.isfinite(scores)
    rows, scores = rows[is_there], scores[is_there]
    if len(rows) > k:
        kept = scores >= np.partition(scores, -k)[-k]
        rows, scores = rows[kept], scores[kept]
    order = np.lexsort((rows, -scores))[:k]
    return rows[order], scores[order]


def _not_under_the_best(scores: np.ndarray, k: int) -> np.ndarray:
    """Returns places of `scores` that hold the best `k`, and few others, in order.

    The k-th highest of the maxima of groups is no higher than the k-th score: so much less
    than all is sorted.
    """
    whole = len(scores) // _GROUP * _GROUP
    maxima = scores[:whole].reshape(-1, _GROUP).max(axis=1)
    if len(maxima) < k:
        return np.arange(len(scores))
    return np.flatnonzero(scores >= np.partition(maxima, -k)[-k])


def _padded(rows: np.ndarray, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    more = ((0, 0), (0, k - rows.shape[1]))
    return np.pad(rows, more), np.pad(scores, more, constant_values=-np.inf)
