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
"""Bound of the magnitudes, also of rounded items: products stay far below float32's maximum."""
_OVER = 2
"""Number of candidates to fetch from an index, as a multiple of `k`: its scores are rounded."""
_MOST_FETCHED = 4096
_MOST_LISTS = 0.125
"""Highest share of its lists that an index may search to be faster than int8 scores of all items:
these take 2 ns per item, an index 20 ns per item in the searched lists."""
_FEW_SHARE = 0.125
"""Share of all items up to which gathering them is cheaper than scoring all."""

Best = tuple[np.ndarray, np.ndarray]
"""Rows `[queries, k]` int32, padded with 0, and their scores float32, padded with -inf. Ties go to
the lower row."""


class Ranker:
    """Ranks the items of a bundle; scores are exact float32 dot products.

    On processors with fast byte products, items are first ranked by int8 scores, and only the best
    of them exactly. The result is the same to the bit (`recsys.kernels.rank_jobs`).

    Args:
        embeddings: Item embeddings `[item rows, dim]` float32, contiguous; may be a memory map.
        is_item: Whether each row is an item `[item rows]` bool.
        index: Index of these items; None: exact search.
        effort: Number of lists that the index searches.

    Attributes:
        is_rounded: Whether items are first ranked by int8 scores.
        is_exact: Whether the search is exact, because there is no index, or it would take longer.
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
        """Returns the best items of queries, ranked in the calling thread.

        There are always `k` rows if so many are allowed and not hidden: with `allowed`, and if the
        index finds too few, the search is exact.

        Args:
            queries: Query embeddings `[queries, dim]` float32.
            hidden: Rows to exclude for each query.
            k: Number of items per query.
            allowed: Item rows that may be returned `[item rows]` bool; None: all items.
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
        """Returns the best items as `best`, but only those that the index finds at an effort."""
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
        """Returns the best items as `best`, by an exact search in `threads` threads."""
        if allowed is not None:
            allowed = allowed & self._is_item
        queries = np.ascontiguousarray(queries)
        # Scores must be finite in float32.
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
        # Without int8 scores, BLAS on all cores is faster for one query. With them, the result must
        # not depend on which queries fall back to an exact search.
        if not self._is_native or (len(queries) == 1 and self._rounded is None):
            return self._by_numpy(queries, hidden, k, bias)
        # The kernel keeps as many candidates of a query as its list is long.
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
    """Returns at most `k` of `rows` with the highest finite scores, and the scores.

    Ties go to the lower row.
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
    except ValueError:  # Numbers or dimensions are out of the kernel's range.
        return None


def _run(job: Callable[[slice], None], n: int, size: int, threads: int) -> None:
    blocks = slices(n, size)
    if threads == 1 or len(blocks) == 1:
        for block in blocks:
            job(block)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(job, blocks))
