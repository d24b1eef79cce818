"""Every item looked at: for several queries by the C kernel where it can be had, else by NumPy."""

from __future__ import annotations

import numpy as np

from recsys import native
from recsys.native import rank as kernel
from recsys.ragged import Ragged

_BLOCK_SCORES = 2**22
"""Scores that NumPy holds at a time; 16 MiB."""


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
        bias = self._bias if allowed is None else np.where(allowed, self._bias, np.float32(np.nan))
        if self._is_native and len(queries) > 1:  # Of one query BLAS is faster, on all cores.
            return self._by_kernel(np.ascontiguousarray(queries), hidden, k, bias)
        return self._by_numpy(queries, hidden, k, bias)

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
        self, queries: np.ndarray, hidden: Ragged, k: int, bias: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        rows = np.zeros((len(queries), k), np.int32)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        step = max(1, _BLOCK_SCORES // len(bias))
        for start in range(0, len(queries), step):
            block = queries[start : start + step] @ self._embeddings.T + bias
            for number, row in enumerate(np.where(np.isnan(block), -np.inf, block), start):
                row[hidden.part(slice(number, number + 1)).rows] = -np.inf
                best = best_of(np.arange(len(row)), row, k)
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


def _padded(rows: np.ndarray, scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    more = ((0, 0), (0, k - rows.shape[1]))
    return np.pad(rows, more), np.pad(scores, more, constant_values=-np.inf)
