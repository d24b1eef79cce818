"""Unit vectors to be searched, of a kind as trained towers give them, and of the hardest."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from recsys.evaluation.ranking import rank
from recsys.evaluation.scores import DotProducts
from recsys.ragged import Ragged

_ITEMS_OF_A_CLUSTER = 50
_SPREAD, _QUERY_SPREAD = 0.8, 1.0
"""Length of an item's way from the middle of its cluster, whose length is 1; of a query's."""
_BLOCK = 65_536

KINDS = ("clusters", "uniform")


def write_world(folder: Path, kind: str, n_items: int, n_queries: int, dim: int, k: int) -> None:
    """Writes items, queries and their exact answers as arrays of NumPy.

    `items` `[n_items + 1, dim]`, of which row 0 is no item; `queries` `[n_queries, dim]`;
    and `best` `[n_queries, k]`, the exact best rows.

    Args:
        folder: Where to; there.
        kind: `clusters`: one for each 50 items, of sizes that fall as 1/√rank, in
            directions that matter the less the later they come, with queries near them.
            `uniform`: no direction is more likely than another, the hardest that there is.
        n_items: Items.
        n_queries: Queries.
        dim: Width [floats].
        k: Best items of each query.
    """
    rng = np.random.default_rng(0)
    draw = _Clusters(rng, n_items, dim) if kind == "clusters" else _Uniform(rng, dim)
    items = np.zeros((n_items + 1, dim), np.float32)
    for start in range(1, n_items + 1, _BLOCK):
        stop = min(start + _BLOCK, n_items + 1)
        items[start:stop] = draw(stop - start, _SPREAD)
    queries = draw(n_queries, _QUERY_SPREAD)
    nothing = Ragged(np.zeros(0, np.int32), np.zeros(n_queries + 1, np.int64))
    is_item = np.arange(n_items + 1) > 0
    best = rank(DotProducts(queries, items), nothing, nothing, is_item, k).top
    for name, values in {"items": items, "queries": queries, "best": best}.items():
        np.save(folder / f"{name}.npy", values)


class _Uniform:
    def __init__(self, rng: np.random.Generator, dim: int) -> None:
        self._rng, self._dim = rng, dim

    def __call__(self, n: int, _spread: float) -> np.ndarray:
        return _unit(self._rng.standard_normal((n, self._dim), np.float32))


class _Clusters:
    def __init__(self, rng: np.random.Generator, n_items: int, dim: int) -> None:
        self._rng = rng
        n = max(n_items // _ITEMS_OF_A_CLUSTER, 1)
        # Standard deviation of each direction: the first matter most.
        self._scales = (1 / np.sqrt(1 + np.arange(dim) / 8)).astype(np.float32)
        self._middles = self._draw(n)
        sizes = 1 / np.sqrt(np.arange(1, n + 1))
        self._shares = sizes / sizes.sum()

    def _draw(self, n: int) -> np.ndarray:
        return _unit(self._rng.standard_normal((n, len(self._scales)), np.float32) * self._scales)

    def __call__(self, n: int, spread: float) -> np.ndarray:
        middles = self._middles[self._rng.choice(len(self._middles), n, p=self._shares)]
        return _unit(middles + np.float32(spread) * self._draw(n))


def _unit(vectors: np.ndarray) -> np.ndarray:
    return (vectors / np.linalg.norm(vectors, axis=1, keepdims=True)).astype(np.float32)
