"""Baselines that score an item by its weights with the items of the user's history.

item_knn      items that the same users take
transitions   items that soon follow one another
ease          weights that reconstruct each user's items
"""

from __future__ import annotations

import dataclasses
from typing import Annotated, Any

import numpy as np
from pydantic import Field, NonNegativeFloat, PositiveFloat, PositiveInt

from recsys.data.ease import as_candidates
from recsys.data.event_log import newest_first
from recsys.data.hold_out import newest_events
from recsys.data.neighbours import as_arrays, as_sets, strongest_pairs
from recsys.data.transitions import TransitionScores, of_items, transition_weights
from recsys.ragged import RaggedRows
from recsys.tasks.judging_side import Baseline, LeftOutError
from recsys.tasks.retrieval.judging.baselines import BaselineData, item_sets
from recsys.tasks.retrieval.judging.queries import Queries


@dataclasses.dataclass(frozen=True)
class PairWeights:
    """Weights of pairs of items.

    Attributes:
        weights: Weights of pairs, a row for each item of a history: CSR
            `[item rows, item rows]`, or an array `[items, items]` of the items in `rows`.
        fallback: Scores of items without a weight `[item rows]` float32.
        rows: Item rows of the entries of an array `[items]`.
        factors: If given, the weights are the products of the vectors `weights` and these,
            both `[items, dim]`, but 0 for an item with itself.
    """

    weights: Any
    fallback: np.ndarray
    rows: np.ndarray | None = None
    factors: np.ndarray | None = None

    def scorer(self, queries: Queries) -> PairScores:
        """Returns the scorer of the items for `queries`."""
        return PairScores(queries.seen, self)


@dataclasses.dataclass(frozen=True)
class PairScores:
    """Sums of the weights with the items of histories.

    Attributes:
        seen: Item rows in the history of each query's user.
        fitted: The weights.
    """

    seen: RaggedRows
    fitted: PairWeights

    def scores(self, block: slice) -> np.ndarray:
        """Returns the scores `[queries of the block, item rows]` float32."""
        fitted, n_rows = self.fitted, len(self.fitted.fallback)
        histories = as_sets(self.seen.part(block), n_rows)
        if fitted.rows is None:
            return _over(fitted.fallback, histories @ fitted.weights)
        histories = histories[:, fitted.rows]
        known = np.flatnonzero(np.diff(histories.indptr))
        sums = histories[known] @ fitted.weights
        if fitted.factors is not None:
            itself = (fitted.weights * fitted.factors).sum(axis=1)
            sums = sums @ fitted.factors.T - histories[known].multiply(itself).toarray()
        out = np.tile(fitted.fallback, (histories.shape[0], 1))
        out[np.ix_(known, fitted.rows)] = sums
        return out


def _over(fallback: np.ndarray, sums: Any) -> np.ndarray:
    """Returns `fallback` `[item rows]` for each row of a CSR matrix, with its entries instead."""
    out = np.tile(fallback, (sums.shape[0], 1))
    out[np.repeat(np.arange(len(out)), np.diff(sums.indptr)), sums.indices] = sums.data
    return out


def below_all(data: BaselineData) -> np.ndarray:
    """Returns negative scores by popularity `[item rows]` float32, below those of weights."""
    return data.ranks - data.ranks.max() - 1.0


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
    cure = "model: {type: auto, item_neighbours: 16}"

    neighbours: PositiveInt = 100
    """Number of neighbours per item."""
    shrinkage: NonNegativeFloat = 10.0
    """Summand in the denominator of a similarity, which lowers it for few common users."""
    events_of_user: PositiveInt = 500
    """Newest events of a user that are learned from. Pairs grow with their square: one user
    of 10,000 events would make as many as 400 of 500, and say less than those do."""

    def fit(self, data: BaselineData) -> PairWeights:
        """Learns from training events.

        Raises:
            LeftOutError: No training event has a known item.
        """
        taken = item_sets(data, self.events_of_user)
        neighbours = nearest(taken, self.neighbours, self.shrinkage)
        return PairWeights(neighbours, below_all(data))


class Transitions(Baseline):
    """Scores an item by how often it follows the newest items of the user's history.

    A pair of events of a user, the second at most `reach` places after the first, counts
    1 / distance. The weight of a pair of items is its count divided by
    `√(events × events) + shrinkage`. The score is the sum of the weights over the `newest` items
    of the history, each times `decay` to the power of its number of newer items. Items that follow
    none of these come last, by popularity.
    """

    title = "transitions"
    cure = "model: {type: auto, terms: [transitions]}"

    reach: PositiveInt = 5
    """Highest number of places between two events of a pair."""
    newest: PositiveInt = 10
    """Number of newest items of a history that are read."""
    decay: Annotated[float, Field(gt=0.0, le=1.0)] = 0.7
    """Factor per newer item of the history (0..1]."""
    neighbours: PositiveInt = 100
    """Number of following items that are kept for each item."""
    shrinkage: NonNegativeFloat = 10.0
    """Summand in the denominator of a weight, which lowers it for items with few events."""

    def fit(self, data: BaselineData) -> FittedTransitions:
        """Learns from training events.

        Raises:
            LeftOutError: The events have no order, or no known item.
        """
        if data.order == "none":
            raise LeftOutError("The events have no order, so none follows another.")
        events = newest_events(data.train, data.max_events)
        item, user = data.train.item_row.gather_sorted(events), data.train.user_index(events)
        known = data.is_item[item]
        item, user = item[known], user[known]
        if not len(item):
            raise LeftOutError("There is no training event of an item that the vocabulary knows.")
        offsets = np.append(np.flatnonzero(np.diff(user, prepend=-1)), len(user))
        lists, n_rows = RaggedRows(item, offsets), len(data.is_item)
        weights = transition_weights(lists, n_rows, self.neighbours, self.reach, self.shrinkage)
        factors = np.power(self.decay, np.arange(self.newest), dtype=np.float32)
        scores = TransitionScores(*as_arrays(weights, self.neighbours), factors)
        return FittedTransitions(scores, data.is_item, below_all(data))


@dataclasses.dataclass(frozen=True)
class FittedTransitions:
    """The scores of following items.

    Attributes:
        following: The scores.
        is_item: Whether each item row is an item `[item rows]` bool; others aren't read.
        fallback: Scores of items that follow none `[item rows]` float32.
    """

    following: TransitionScores
    is_item: np.ndarray
    fallback: np.ndarray

    def scorer(self, queries: Queries) -> FollowingItems:
        """Returns the scorer of the items for `queries`."""
        seen, newest = of_items(queries.seen, self.is_item), len(self.following.factors)
        history = newest_first(seen.rows, seen.offsets[:-1], seen.offsets[1:], newest)
        return FollowingItems(history, self)


@dataclasses.dataclass(frozen=True)
class FollowingItems:
    """Scores of the items that follow those of histories.

    Attributes:
        history: Item rows `[queries, newest]` int32, the newest first, padded with 0.
        fitted: The scores.
    """

    history: np.ndarray
    fitted: FittedTransitions

    def scores(self, block: slice) -> np.ndarray:
        """Returns the scores `[queries of the block, item rows]` float32."""
        sums = self.fitted.following.of_histories(self.history[block])
        return _over(self.fitted.fallback, sums)


class Ease(Baseline):
    """Scores an item by linear weights that best reconstruct the users' sets of items.

    The weights B minimise |X - X B|² + regularisation |B|² with a diagonal of 0, in closed form:
    with P = (XᵀX + regularisation I)⁻¹, `B_ij = -P_ij / P_jj` (Steck, "Embarrassingly Shallow
    Autoencoders for Sparse Data", WWW 2019, eq. 8).
    """

    title = "EASE"
    cure = "model: {type: ease}"

    regularisation: PositiveFloat = 200.0
    """Strength of the regularisation."""
    most_items: PositiveInt = 10_000
    """Highest number of items with training events, which have a weight for each pair."""

    def fit(self, data: BaselineData) -> PairWeights:
        """Learns from training events.

        Raises:
            LeftOutError: There are too many items, or no training event of a known one.
        """
        taken = item_sets(data)
        rows = np.unique(taken.indices)
        if len(rows) > self.most_items:
            raise LeftOutError(
                f"It has a weight for each pair of items, and {len(rows):,} items are more than"
                f" most_items, {self.most_items:,}."
            )
        taken = taken[:, rows]
        if taken.shape[0] < len(rows):
            vectors = _by_users(taken, self.regularisation)
            return PairWeights(vectors, below_all(data), rows, as_candidates(vectors))
        return PairWeights(_by_items(taken, self.regularisation), below_all(data), rows)


def _by_items(taken: Any, regularisation: float) -> np.ndarray:
    """Returns B `[items, items]` float32 for the user-item matrix in CSR."""
    from scipy import linalg

    inverse, _ = linalg.lapack.spotri(_factor(taken.T @ taken, regularisation), lower=1)
    inverse = np.tril(inverse) + np.tril(inverse, -1).T
    inverse /= -np.diag(inverse).copy()
    inverse[np.diag_indices_from(inverse)] = 0.0
    return inverse


def _by_users(taken: Any, regularisation: float) -> np.ndarray:
    """Returns vectors F `[items, users]` float32 with B_ij = F_i · F_j / (1 - |F_j|²).

    By the Woodbury identity, regularisation · P = I - Xᵀ (XXᵀ + regularisation I)⁻¹ X.
    """
    from scipy import linalg

    factor = _factor(taken @ taken.T, regularisation)
    return linalg.solve_triangular(factor, taken.toarray(), lower=True, overwrite_b=True).T


def _factor(products: Any, regularisation: float) -> np.ndarray:
    """Returns the Cholesky factor of a sparse matrix with a larger diagonal, below it."""
    from scipy import linalg

    gram = products.toarray().astype(np.float32)
    gram[np.diag_indices_from(gram)] += np.float32(regularisation)
    return linalg.lapack.spotrf(gram, lower=1, overwrite_a=1)[0]


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
