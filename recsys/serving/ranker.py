"""The best items of queries: by the index where there is one, else over all items, exactly."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor

import numpy as np

from recsys import kernels
from recsys.kernels import ranking
from recsys.ragged import RaggedRows
from recsys.serving.ann_index import AnnIndex

_GROUP = 64
_LARGE = 1e15
"""Rounded items are no larger either; the product of two such is far from float32's end."""


class ExactItems:
    """Ranks all items of a bundle for a few queries at a time.

    Where the processor multiplies bytes fast, items are first looked at in 8 bits, and
    few of them exactly; the answer is the same to the last bit (`recsys.kernels.ranking`).
    Of items with one score the one with the smaller row comes first.

    Args:
        embeddings: `[item rows, dim]` float32, contiguous.
        is_item: Which rows are items `[item rows]` bool.
    """

    def __init__(self, embeddings: np.ndarray, is_item: np.ndarray) -> None:
        self._embeddings = embeddings
        self._bias = np.where(is_item, np.float32(0), np.float32(np.nan))
        self._no_items = np.flatnonzero(~is_item)
        self._is_native = kernels.status().available
        self._rounded = _rounded(embeddings, is_item) if self._is_native else None

    @property
    def is_rounded(self) -> bool:
        """Whether items are looked at in 8 bits first."""
        return self._rounded is not None

    def best(
        self,
        queries: np.ndarray,
        hidden: RaggedRows,
        k: int,
        allowed: np.ndarray | None = None,
        threads: int = 1,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the best rows `[queries, k]` int32, 0: none, and their scores float32.

        Args:
            queries: `[queries, dim]` float32.
            hidden: Rows that each query leaves out.
            k: How many.
            allowed: Rows that may be among them `[item rows]` bool; None: all items.
            threads: That share the queries; 1: that which asks alone.
        """
        queries = np.ascontiguousarray(queries)
        if self._rounded is not None and self._rounded.takes(k) and _is_ordinary(queries):
            return self._by_rough_look(self._rounded, queries, hidden, k, allowed, threads)
        return self._by_all(queries, hidden, k, allowed, threads)

    def _by_rough_look(
        self,
        rounded: ranking.RoundedItems,
        queries: np.ndarray,
        hidden: RaggedRows,
        k: int,
        allowed: np.ndarray | None,
        threads: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        out = ranking.TopResults.empty(len(queries), k)
        steps = rounded.allowing(allowed)

        def job(block: slice) -> None:
            rounded.best(block, queries[block], hidden, steps, out)

        _run(job, list(_blocks(len(queries), ranking.QUERIES_OF_A_JOB)), threads)
        rest = np.flatnonzero(out.is_given_up)
        if len(rest):
            candidates = self._by_all(queries[rest], hidden.select(rest), k, allowed, threads)
            out.top[rest], out.top_scores[rest] = candidates
        return out.top, out.top_scores

    def _by_all(
        self,
        queries: np.ndarray,
        hidden: RaggedRows,
        k: int,
        allowed: np.ndarray | None,
        threads: int,
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns what `best` does, by all products of floats."""
        # Without a rough look BLAS, on all cores, is faster for one query; with one the
        # answer must not depend on which queries are given up.
        if not self._is_native or (len(queries) == 1 and self._rounded is None):
            return self._by_numpy(queries, hidden, k, allowed)
        bias = self._bias
        if allowed is not None:
            bias = np.where(allowed, bias, np.float32(np.nan))
        return self._by_kernel(queries, hidden, k, bias, threads)

    def _by_kernel(
        self, queries: np.ndarray, hidden: RaggedRows, k: int, bias: np.ndarray, threads: int
    ) -> tuple[np.ndarray, np.ndarray]:
        nothing = RaggedRows.empty(len(queries))
        # What the kernel keeps of a query is as long as its list.
        width = min(k, len(bias))
        out = ranking.RankResults.empty(0, len(queries), width)

        def job(block: slice) -> None:
            ranking.rank_queries(
                block, queries[block], self._embeddings, bias, nothing, hidden, out
            )

        _run(job, list(_blocks(len(queries), ranking.QUERIES_STEP)), threads)
        return _padded(out.top, out.top_scores, k)

    def _by_numpy(
        self, queries: np.ndarray, hidden: RaggedRows, k: int, allowed: np.ndarray | None
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


def _rounded(embeddings: np.ndarray, is_item: np.ndarray) -> ranking.RoundedItems | None:
    if not ranking.is_fast():
        return None
    try:
        return ranking.RoundedItems(embeddings, is_item)
    except ValueError:  # Numbers, or dimensions, that are out of its range.
        return None


def _is_ordinary(queries: np.ndarray) -> bool:
    """Returns whether no score can be too large for float32, or NaN."""
    return bool(np.abs(queries).max(initial=0) < _LARGE)


def _run(job: Callable[[slice], None], blocks: Sequence[slice], threads: int) -> None:
    if threads == 1 or len(blocks) == 1:
        for block in blocks:
            job(block)
        return
    with ThreadPoolExecutor(threads) as pool:
        list(pool.map(job, blocks))


def _blocks(n: int, size: int) -> Iterator[slice]:
    for start in range(0, n, size):
        yield slice(start, min(start + size, n))


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


_OVER = 2
"""Times `k` that is fetched of an index, whose scores are rounded."""
_MOST_FETCHED = 4096
_MOST_LISTS = 0.125
"""Share of its lists that an index may look through to be faster than a look at all items
in 8 bits: that takes 2 ns an item, and the index 20 ns for each in such a list."""
_FEW_SHARE = 0.125
"""Of all items; so few are cheaper to gather than all are to look at."""


class Ranker:
    """Ranks items in the thread that asks; scores are exact float32 dot products.

    Args:
        embeddings: `[item rows, dim]` float32, contiguous; may be a memory map.
        is_item: Which rows are items `[item rows]` bool.
        index: Of these items; None: all are looked at.
        effort: How hard the index searches.
    """

    def __init__(
        self,
        embeddings: np.ndarray,
        is_item: np.ndarray,
        index: AnnIndex | None = None,
        effort: int = 1,
    ) -> None:
        self._embeddings, self._is_item = embeddings, is_item
        self._exact = ExactItems(embeddings, is_item)
        self._index, self._effort = index, effort
        lists = _MOST_LISTS * index.n_lists if index is not None else 0
        self._is_exact = index is None or (self._exact.is_rounded and effort > lists)

    @property
    def is_exact(self) -> bool:
        """Whether it looks at all items: there is no index, or it takes longer."""
        return self._is_exact

    def best(
        self, queries: np.ndarray, hidden: RaggedRows, k: int, allowed: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns the best rows `[queries, k]` int32, 0: none, and their scores float32, -inf.

        Never fewer than `k` rows where so many are allowed and not hidden. With
        `allowed`, and where an index finds too few, all allowed items are looked at.

        Args:
            queries: `[queries, dim]` float32.
            hidden: Rows that each query leaves out.
            k: How many.
            allowed: Rows that may be among them `[item rows]` bool; None: all items.
        """
        if allowed is not None:
            return self._among(queries, hidden, k, allowed & self._is_item)
        if self.is_exact:
            return self._exact.best(queries, hidden, k)
        rows, scores = self.by_index(queries, hidden, k, self._effort)
        short = np.flatnonzero(rows[:, -1] == 0)
        if len(short):
            rows[short], scores[short] = self._exact.best(queries[short], hidden.select(short), k)
        return rows, scores

    def best_of_batch(
        self, queries: np.ndarray, hidden: RaggedRows, k: int, allowed: np.ndarray | None = None
    ) -> tuple[np.ndarray, np.ndarray]:
        """Returns what `best` does for many queries: over all items, exactly, on all cores."""
        if allowed is not None:
            allowed = allowed & self._is_item
        cores = len(os.sched_getaffinity(0))
        return self._exact.best(queries, hidden, k, allowed, cores)

    def by_index(
        self, queries: np.ndarray, hidden: RaggedRows, k: int, effort: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Answers as `best` does, with no more than the index finds, at another effort."""
        if self._index is None:
            raise ValueError("there is no index")
        rows = np.zeros((len(queries), k), np.int32)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        most = int(np.diff(hidden.offsets).max(initial=0))
        n = min(_OVER * k + most, max(_OVER * k, _MOST_FETCHED), len(self._is_item))
        for number, candidates in enumerate(self._index.search(queries, n, effort)):
            kept = candidates[candidates > 0]
            mine = hidden.part(slice(number, number + 1)).rows
            best = self._score(queries[number], kept[~np.isin(kept, mine)], k)
            rows[number, : len(best[0])], scores[number, : len(best[0])] = best
        return rows, scores

    def _among(
        self, queries: np.ndarray, hidden: RaggedRows, k: int, allowed: np.ndarray
    ) -> tuple[np.ndarray, np.ndarray]:
        few = np.flatnonzero(allowed)
        if len(few) > _FEW_SHARE * len(allowed):
            return self._exact.best(queries, hidden, k, allowed)
        rows = np.zeros((len(queries), k), np.int32)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        for number, query in enumerate(queries):
            mine = hidden.part(slice(number, number + 1)).rows
            best = self._score(query, few[~np.isin(few, mine)], k)
            rows[number, : len(best[0])], scores[number, : len(best[0])] = best
        return rows, scores

    def _score(self, query: np.ndarray, rows: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
        return best_of(rows, self._embeddings[rows] @ query, k)
