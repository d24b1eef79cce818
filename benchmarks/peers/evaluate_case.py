"""The random data of `benchmarks.evaluate`. Needs only NumPy: peers have the rest."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

import numpy as np

KS = (1, 5, 10, 20, 50, 100)
"""Cut-offs."""


@dataclass(frozen=True)
class Data:
    """Embeddings and rows; item row 0 is no item.

    Attributes:
        query: Embedding of each user `[users, dim]` float32.
        candidates: Embedding of each item row `[1 + items, dim]` float32.
        positives: Item rows of each user `[users, positives]` int32.
        seen: Item rows of each user `[users, seen]` int32: no answers.
        counts: How often training saw each item row `[1 + items]`.
    """

    query: np.ndarray
    candidates: np.ndarray
    positives: np.ndarray
    seen: np.ndarray
    counts: np.ndarray

    @property
    def items(self) -> int:
        """Items of the catalogue."""
        return len(self.candidates) - 1

    def first(self, users: int) -> Data:
        """Returns the same with fewer users."""
        fewer = {name: getattr(self, name)[:users] for name in ("query", "positives", "seen")}
        return dataclasses.replace(self, **fewer)

    def __str__(self) -> str:
        """Returns the sizes."""
        return f"users={len(self.query)} items={self.items} dim={self.query.shape[1]}"


def draw(users: int, items: int, dim: int, positives: int, seen: int, seed: int, **_: Any) -> Data:
    """Returns embeddings from the normal distribution, and rows drawn evenly."""
    random = np.random.default_rng(seed)

    def rows(n: int) -> np.ndarray:
        return random.integers(1, items + 1, (users, n), np.int32)

    return Data(
        candidates=random.standard_normal((items + 1, dim), np.float32),
        counts=random.integers(0, 1000, items + 1),
        query=random.standard_normal((users, dim), np.float32),
        positives=rows(positives),
        seen=rows(seen),
    )
