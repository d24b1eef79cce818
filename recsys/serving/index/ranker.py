"""The best items of queries: by the index where there is one, else by looking at all."""

from __future__ import annotations

import numpy as np

from recsys.ragged import Ragged
from recsys.serving.index.ann import AnnIndex
from recsys.serving.index.exact import ExactItems, best_of

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
        self, queries: np.ndarray, hidden: Ragged, k: int, allowed: np.ndarray | None = None
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

    def by_index(
        self, queries: np.ndarray, hidden: Ragged, k: int, effort: int
    ) -> tuple[np.ndarray, np.ndarray]:
        """Answers as `best` does, with no more than the index finds, at another effort."""
        if self._index is None:
            raise ValueError("there is no index")
        rows = np.zeros((len(queries), k), np.int32)
        scores = np.full((len(queries), k), -np.inf, np.float32)
        most = int(np.diff(hidden.offsets).max(initial=0))
        n = min(_OVER * k + most, max(_OVER * k, _MOST_FETCHED), len(self._is_item))
        for number, found in enumerate(self._index.search(queries, n, effort)):
            kept = found[found > 0]
            mine = hidden.part(slice(number, number + 1)).rows
            best = self._score(queries[number], kept[~np.isin(kept, mine)], k)
            rows[number, : len(best[0])], scores[number, : len(best[0])] = best
        return rows, scores

    def _among(
        self, queries: np.ndarray, hidden: Ragged, k: int, allowed: np.ndarray
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
