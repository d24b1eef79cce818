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
    """Scores an item by its similarity to all that the user took before.

    The similarity of two items is the cosine of the sets of their users, shrunk:
    `common / (√(users × users) + shrinkage)`. Each item keeps its nearest neighbours; the
    score of an item is the sum of the similarities of those items of the history whose
    neighbour it is. (Sarwar, Karypis, Konstan, Riedl, "Item-based Collaborative Filtering
    Recommendation Algorithms", WWW 2001; Deshpande, Karypis, "Item-based Top-N
    Recommendation Algorithms", TOIS 2004.) Items that are no neighbour of any have no
    similarity: they come after all others, by popularity.
    """

    title = "item-kNN"

    neighbours: PositiveInt = 100
    """Neighbours that an item keeps."""
    shrinkage: NonNegativeFloat = 10.0
    """What is added below the fraction, so that few common users count little."""
    events_of_user: PositiveInt = 500
    """Newest events of a user that are learned from. Pairs grow with their square: one user
    of 10,000 events would make as many as 400 of 500, and say less than those do."""

    def fit(self, data: BaselineData) -> FittedKnn:
        """Learns from training events.

        Raises:
            LeftOutError: There is no training event of a known item.
        """
        taken = item_sets(data, self.events_of_user)
        neighbours = nearest(taken, self.neighbours, self.shrinkage)
        return FittedKnn(neighbours, data.places - data.places.max() - 1.0)


@dataclasses.dataclass(frozen=True)
class FittedKnn:
    """The neighbours of every item.

    Attributes:
        neighbours: Similarities `[item rows, item rows]`, CSR, a row for each item.
        fallback: Scores below 0 `[item rows]` float32, of items without a similarity.
    """

    neighbours: Any
    fallback: np.ndarray

    def scorer(self, queries: Queries) -> KnnScores:
        """Returns what scores the items for `queries`."""
        return KnnScores(queries.seen, self.neighbours, self.fallback)


@dataclasses.dataclass(frozen=True)
class KnnScores:
    """Scores of item-based nearest neighbours.

    Attributes:
        seen: Item rows that each query's user took before.
        neighbours: Similarities `[item rows, item rows]`, CSR; a row holds those of the
            neighbours of one item.
        fallback: Scores below 0 `[item rows]` float32, of items without a similarity.
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

    Items without a common user are no neighbours; of equal ones the smaller row is nearer.

    Args:
        taken: Who took what `[users, items]`, CSR, each value 1.
        n: Neighbours of an item at the most.
        shrinkage: What is added below the fraction of a similarity.

    Returns:
        Similarities `[items, items]` float32, CSR, a row for each item.
    """
    length = np.sqrt(np.bincount(taken.indices, minlength=taken.shape[1]))

    def weigh(_: slice, common: Any, row: np.ndarray) -> None:
        common.data /= length[row] * length[common.indices] + shrinkage

    return strongest_pairs(taken, n, weigh)
