"""Implicit ALS: matrix factorisation without sampling, in closed half-steps."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterator
from typing import Any

import numpy as np
from scipy import sparse

from recsys.evaluation.baselines.evidence import BaselineData, as_sets, item_sets
from recsys.evaluation.baselines.least_squares import Objective, solve
from recsys.evaluation.queries import Queries
from recsys.evaluation.ranking import DotProducts

_FIRST_LENGTH = 0.1
"""Length of the first item vectors, about; as Rendle et al. 2022 set it."""
_BLOCK_ITEMS = 2**24
"""Seen items of the queries that are solved at a time, at the most."""


@dataclasses.dataclass(frozen=True)
class IalsSettings:
    """How implicit ALS is set up.

    Rendle et al. 2022 show that it is a strong baseline where the weight of what wasn't
    taken, and the regularisation, suit the data, and a poor one where they don't. The
    best weight of a pair differs thirtyfold between Gowalla and MovieLens 1M; as a
    multiple of the taken pairs it hardly differs, so that is how it is set. The values
    are good ones of the validation parts of both.

    Attributes:
        dim: Length of the vectors.
        sweeps: How often all users and all items are solved.
        unobserved: Weight of all pairs together, as a multiple of the number of the
            taken ones; the weight of one pair is 1 at the most.
        regularisation: Strength of the regularisation.
        seed: Seed of the first item vectors.
    """

    dim: int = 128
    sweeps: int = 6
    unobserved: float = 10.0
    regularisation: float = 0.005
    seed: int = 0

    def objective(self, taken: Any) -> Objective:
        """Returns what is made small for the pairs `taken` `[users, items]`."""
        density = taken.nnz / (taken.shape[0] * taken.shape[1])
        return Objective(min(1.0, self.unobserved * density), self.regularisation)


class Ials:
    """Scores an item by the product of its vector and the user's.

    The user's vector is solved from all that the user took before the query, as in
    training; users without any get the items by popularity. Items without a training
    event have the vector 0, which is what the closed form gives.

    Args:
        data: What it learns from.
        settings: How it is set up.

    Raises:
        LeftOutError: There is no training event of a known item.
    """

    def __init__(self, data: BaselineData, settings: IalsSettings | None = None) -> None:
        settings = IalsSettings() if settings is None else settings
        taken, self.events = item_sets(data)
        # The items that training saw; the others would only dilute the objective.
        self._rows = np.unique(taken.indices)
        taken = taken[:, self._rows]
        self._objective = settings.objective(taken)
        self._vectors = factorise(taken, self._objective, settings)
        self._places = data.places

    def scorer(self, queries: Queries) -> DotProducts:
        """Returns what scores the items for `queries`."""
        dim = self._vectors.shape[1]
        query = np.zeros((len(queries), dim + 1), np.float32)
        for block in _blocks(queries.seen.offsets):
            taken = as_sets(queries.seen.part(block), len(self._places))[:, self._rows]
            query[block, :dim] = solve(taken, self._vectors, len(self._rows), self._objective)
            # One more entry, which is the popularity of the items.
            query[block, dim] = np.diff(taken.indptr) == 0
        candidates = np.zeros((len(self._places), dim + 1), np.float32)
        candidates[self._rows, :dim] = self._vectors
        candidates[:, dim] = self._places
        return DotProducts(query, candidates)


def factorise(taken: Any, objective: Objective, settings: IalsSettings) -> np.ndarray:
    """Returns the vectors of the items `[items, dim]` float32.

    Args:
        taken: Who took what `[users, items]`, CSR, each value 1.
        objective: What is made small.
        settings: Length of the vectors, number of sweeps and seed.
    """
    n_users, n_items = taken.shape
    by_item = sparse.csr_array(taken.T)
    rng = np.random.default_rng(settings.seed)
    items = rng.standard_normal((n_items, settings.dim), np.float32)
    items *= _FIRST_LENGTH / np.sqrt(settings.dim)
    for _ in range(settings.sweeps):
        users = solve(taken, items, n_items, objective)
        items = solve(by_item, users, n_users, objective)
    return items


def _blocks(offsets: np.ndarray) -> Iterator[slice]:
    """Yields blocks of queries with few enough seen items."""
    start, n = 0, len(offsets) - 1
    while start < n:
        end = int(np.searchsorted(offsets, offsets[start] + _BLOCK_ITEMS, side="right")) - 1
        yield slice(start, max(end, start + 1))
        start = max(end, start + 1)
