"""The case, and what is drawn for it. Needs NumPy alone: peers bring the rest."""

from __future__ import annotations

from dataclasses import dataclass
from typing import NamedTuple

import numpy as np

from benchmarks.measure import AsJson


@dataclass(frozen=True)
class Case(AsJson):
    """What is measured.

    Attributes:
        users: Users, of one query each.
        items: Items of the catalogue.
        dim: Width of the embeddings [floats].
        positives: Positives of each user.
        seen: Items that are left out of each user's list.
        ks: Cut-offs.
        seed: Of all that is drawn.
    """

    users: int
    items: int
    dim: int = 64
    positives: int = 1
    seen: int = 50
    ks: tuple[int, ...] = (1, 5, 10, 20, 50, 100)
    seed: int = 0

    @property
    def flop(self) -> float:
        """Operations of the dot products of all users and items."""
        return 2.0 * self.users * self.items * self.dim

    def __str__(self) -> str:
        """Returns the case for people."""
        return f"users={self.users} items={self.items} dim={self.dim}"


class Data(NamedTuple):
    """What is drawn; item row 0 is no item.

    Attributes:
        query: Embedding of each user `[users, dim]` float32.
        candidates: Embedding of each item row `[1 + items, dim]` float32.
        positives: Item rows of each user `[users, positives]` int32.
        seen: Item rows of each user `[users, seen]` int32.
        counts: How often training saw each item row `[1 + items]`.
    """

    query: np.ndarray
    candidates: np.ndarray
    positives: np.ndarray
    seen: np.ndarray
    counts: np.ndarray

    def first(self, users: int) -> Data:
        """Returns the same with fewer users."""
        return self._replace(
            query=self.query[:users], positives=self.positives[:users], seen=self.seen[:users]
        )


def draw(case: Case) -> Data:
    """Returns embeddings from the normal distribution, and rows drawn evenly."""
    random = np.random.default_rng(case.seed)

    def rows(n: int) -> np.ndarray:
        return random.integers(1, case.items + 1, (case.users, n), np.int32)

    return Data(
        candidates=random.standard_normal((case.items + 1, case.dim), np.float32),
        counts=random.integers(0, 1000, case.items + 1),
        query=random.standard_normal((case.users, case.dim), np.float32),
        positives=rows(case.positives),
        seen=rows(case.seen),
    )
