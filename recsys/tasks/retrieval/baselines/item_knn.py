"""Item-based nearest neighbours."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import NonNegativeFloat, PositiveInt

from recsys.data.neighbours import as_sets, strongest_pairs
from recsys.ragged import RaggedRows
from recsys.registry import register_baseline
from recsys.tasks.judging_side import Baseline
from recsys.tasks.retrieval.baselines.baseline import BaselineData, item_sets

if TYPE_CHECKING:
    from recsys.tasks.retrieval.judging.queries import Queries


@register_baseline("item_knn")
class ItemKnn(Baseline):
    """Scores an item by its similarity to the items in the user's history.

    The similarity of two items is the cosine of the sets of their users, with shrinkage:
    `common / (√(users × users) + shrinkage)`. Each item has a limited number of nearest
    neighbours; the score of an item is the sum of its similarities to those items of the history
    that have it as a neighbour. (Sarwar, Karypis, Konstan, Riedl, "Item-based Collaborative
    Filtering Recommendation Algorithms", WWW 2001; Deshpande, Karypis, "Item-based Top-N
    Recommendation Algorithms", TOIS 2004.) Items that are no neighbours follow, by popularity.
    """

    title = "item-kNN"

    neighbours: PositiveInt = 100
    """Number of neighbours per item."""
    shrinkage: NonNegativeFloat = 10.0
    """Summand in the denominator of a similarity, which lowers it for few common users."""
    events_of_user: PositiveInt = 500
    """Newest events of a user that are learned from. Pairs grow with their square: one user
    of 10,000 events would make as many as 400 of 500, and say less than those do."""

    def fit(self, data: BaselineData) -> FittedKnn:
        """Learns from training events.

        Raises:
            LeftOutError: No training event has a known item.
        """
        taken = item_sets(data, self.events_of_user)
        neighbours = nearest(taken, self.neighbours, self.shrinkage)
        return FittedKnn(neighbours, data.ranks - data.ranks.max() - 1.0)


@dataclasses.dataclass(frozen=True)
class FittedKnn:
    """The neighbours of every item.

    Attributes:
        neighbours: Similarities `[item rows, item rows]`, CSR, a row for each item.
        fallback: Negative scores for items without a similarity `[item rows]` float32.
    """

    neighbours: Any
    fallback: np.ndarray

    def scorer(self, queries: Queries) -> KnnScores:
        """Returns the scorer of the items for `queries`."""
        return KnnScores(queries.seen, self.neighbours, self.fallback)


@dataclasses.dataclass(frozen=True)
class KnnScores:
    """Scores of item-based nearest neighbours.

    Attributes:
        seen: Item rows in the history of each query's user.
        neighbours: Similarities `[item rows, item rows]`, CSR; a row for each item.
        fallback: Negative scores for items without a similarity `[item rows]` float32.
    """

    seen: RaggedRows
    neighbours: Any
    fallback: np.ndarray

    def scores(self, block: slice) -> np.ndarray:
        """Returns the scores `[queries of the block, item rows]` float32."""
        sums = as_sets(self.seen.part(block), len(self.fallback)) @ self.neighbours
        out = np.tile(self.fallback, (sums.shape[0], 1))
        out[np.repeat(np.arange(len(out)), np.diff(sums.indptr)), sums.indices] = sums.data
        return out


def nearest(taken: Any, n: int, shrinkage: float) -> Any:
    """Returns the `n` nearest neighbours of each item.

    Items without a common user are no neighbours; ties go to the lower row.

    Args:
        taken: User-item matrix `[users, items]`, CSR, each value 1.
        n: Maximum number of neighbours per item.
        shrinkage: Summand in the denominator of a similarity.

    Returns:
        Similarities `[items, items]` float32, CSR, a row for each item.
    """
    length = np.sqrt(np.bincount(taken.indices, minlength=taken.shape[1]))

    def weigh(_: slice, common: Any, row: np.ndarray) -> None:
        common.data /= length[row] * length[common.indices] + shrinkage

    return strongest_pairs(taken, n, weigh)
