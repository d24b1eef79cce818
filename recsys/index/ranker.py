"""The best items of queries, by the index if there is one, else exactly over all items."""

from __future__ import annotations

from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from recsys import kernels
from recsys.index.ann_index import AnnIndex
from recsys.kernels import rank_jobs
from recsys.ragged import RaggedRows, slices

_LARGE = 1e15
"""Rounded items are no larger either; the product of two such is far from float32's end."""
_OVER = 2
"""Times `k` that is fetched of an index, whose scores are rounded."""
_MOST_FETCHED = 4096
_MOST_LISTS = 0.125
"""Share of its lists that an index may look through to be faster than a look at all items
in 8 bits: that takes 2 ns an item, and the index 20 ns for each in such a list."""
_FEW_SHARE = 0.125
"""Of all items; so few are cheaper to gather than all are to look at."""

Best = tuple[np.ndarray, np.ndarray]
"""Rows `[queries, k]` int32, 0: none, and their scores float32, -inf: of equal ones the
smaller rows come first."""


class Ranker:
    """Ranks the items of a bundle; scores are exact float32 dot products.

    On processors with fast byte products, items are first ranked in 8 bits, and only a few of
    them exactly. The result is the same to the bit (`recsys.kernels.rank_jobs`).

    Args:
        embeddings: `[item rows, dim]` float32, contiguous; may be a memory map.
        is_item: Which rows are items `[item rows]` bool.
        index: Of these items; None: all are looked at.
        effort: How hard the index searches.

    Attributes:
        is_rounded: Whether items are looked at in 8 bits first.
        is_exact: Whether all items are looked at: there is no index, or it takes longer.
    """

    def __init__(
        self,
        embeddings: np.ndarray,
        is_item: np.ndarray,
        index: AnnIndex | None = None,
        effort: int = 1,
    ) -> None:
        self._embeddings, self._is_item = embeddings, is_item
        self._bias = np.where(is_item, np.float32(0), np.float32(np.nan))
        self._is_native = kernels.status().available
        self._rounded = _rounded(embeddings, is_item)
        self.is_rounded = self._rounded is not None
        self._index, self._effort = index, effort
        lists = _MOST_LISTS * index.n_lists if index is not None else 0
        self.is_exact = index is None or (self.is_rounded and effort > lists)

    def best(
        self, queries: np.ndarray, hidden: RaggedRows, k: int, allowed: np.ndarray | None = None
    ) -> Best:
        """Returns the best items of queries, ranked in the thread that asks.

        Never fewer than `k` rows where so many are allowed and not hidden. With
        `allowed`, and where an index finds too few, all allowed items are looked at.

        Args:
            queries: `[queries, dim]` float32.
            hidden: Rows that each query leaves out.
            k: How many.
            allowed: Rows that may be among them `[item rows]` bool; None: all items.
        """
        if allowed is not None:
            few = np.flatnonzero(allowed & self._is_item)
            if len(few) > _FEW_SHARE * len(allowed):
                return self.exact(queries, hidden, k, allowed)
            return self._among([few] * len(queries), queries, hidden, k)
        if self.is_exact:
            return self.exact(queries, hidden, k)
        rows, scores = self.by_index(queries, hidden, k, self._effort)
        short = np.flatnonzero(rows[:, -1] == 0)
        if len(short):
            rows[short], scores[short] = self.exact(queries[short], hidden.select(short), k)
        return rows, scores

    def by_index(self, queries: np.ndarray, hidden: RaggedRows, k: int, effort: int) -> Best:
        """Answers as `best` does, with no more than the index finds, at another effort."""
        if self._index is None:
            raise ValueError("there is no index")
        most = int(np.diff(hidden.offsets).max(initial=0))
        n = min(_OVER * k + most, max(_OVER * k, _MOST_FETCHED), len(self._is_item))
        candidates = self._index.search(queries, n, effort)
        return self._among([rows[rows > 0] for rows in candidates], queries, hidden, k)

    def _among(
        self, candidates: list[np.ndarray], queries: np.ndarray, hidden: RaggedRows, k: int
    ) -> Best:
        """Returns the best of some rows for each query."""
        rows, scores = _nothing(len(queries), k)
        for number, (few, query) in enumerate(zip(candidates, queries, strict=True)):
            kept = few[~np.isin(few, hidden.part(slice(number, number + 1)).rows)]
            best = best_of(kept, self._embeddings[kept] @ query, k)
            rows[number, : len(best[0])], scores[number, : len(best[0])] = best
        return rows, scores

    def exact(
        self,
        queries: np.ndarray,
        hidden: RaggedRows,
        k: int,
        allowed: np.ndarray | None = None,
        threads: int = 1,
    ) -> Best:
        """Answers as `best` does, by a look at all items in so many threads."""
        if allowed is not None:
            allowed = allowed & self._is_item
        queries = np.ascontiguousarray(queries)
        # No score may be too large for float32, or NaN.
        is_ordinary = bool(np.abs(queries).max(initial=0) < _LARGE)
        rounded = self._rounded
        if rounded is None or not rounded.takes(k) or not is_ordinary:
            return self._by_floats(queries, hidden, k, allowed, threads)
        out = rank_jobs.TopResults.empty(len(queries), k)
        steps = rounded.masked(allowed)

        def job(block: slice) -> None:
            rounded.best(block, queries[block], hidden, steps, out)

        _run(job, len(queries), rank_jobs.QUERIES_OF_A_JOB, threads)
        rest = np.flatnonzero(out.is_given_up)
        if len(rest):
            best = self._by_floats(queries[rest], hidden.select(rest), k, allowed, threads)
            out.top[rest], out.top_scores[rest] = best
        return out.top, out.top_scores

    def _by_floats(
        self,
        queries: np.ndarray,
        hidden: RaggedRows,
        k: int,
        allowed: np.ndarray | None,
        threads: int,
    ) -> Best:
        bias = self._bias if allowed is None else np.where(allowed, self._bias, np.float32(np.nan))
        # Without a rough look BLAS, on all cores, is faster for one query; with one the
        # answer must not depend on which queries are given up.
        if not self._is_native or (len(queries) == 1 and self._rounded is None):
            return self._by_numpy(queries, hidden, k, bias)
        # What the kernel keeps of a query is as long as its list.
        width = min(k, len(bias))
        out = rank_jobs.RankResults.empty(0, len(queries), width)
        nothing = RaggedRows.empty(len(queries))

        def job(block: slice) -> None:
            table = self._embeddings
            rank_jobs.rank_queries(block, queries[block], table, bias, nothing, hidden, out)

        _run(job, len(queries), rank_jobs.QUERIES_STEP, threads)
        rows, scores = _nothing(len(queries), k)
        rows[:, :width], scores[:, :width] = out.top, out.top_scores
        return rows, scores

    def _by_numpy(self, queries: np.ndarray, hidden: RaggedRows, k: int, bias: np.ndarray) -> Best:
        rows, scores = _nothing(len(queries), k)
        for number, query in enumerate(queries):
            # One by one: BLAS reads a matrix for one vector faster than for a batch of one.
            row = self._embeddings @ query + bias
            row[hidden.part(slice(number, number + 1)).rows] = np.nan
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


def _nothing(n: int, k: int) -> Best:
    return np.zeros((n, k), np.int32), np.full((n, k), -np.inf, np.float32)


def _rounded(embeddings: np.ndarray, is_item: np.ndarray) -> rank_jobs.RoundedItems | None:
    if not rank_jobs.is_fast():
        return None
    try:
        return rank_jobs.RoundedItems(embeddings, is_item)
    except ValueError:  # Numbers, or dimensions, that are out of its range.
        return None


def _run(job: Callable[[slice], None], n: int, size: int, threads: int) -> None:
    blocks = slices(n, size)
    if threads == 1 or len(blocks) == 1:
        for block in blocks:
            job(block)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(job, blocks))
