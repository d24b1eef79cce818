"""The baselines of retrieval: popularity and implicit ALS; `item_baselines` has those of pairs."""

from __future__ import annotations

import dataclasses
import functools
import itertools
import os
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import numpy as np
from pydantic import NonNegativeInt, PositiveFloat, PositiveInt

from recsys.data.config import Order
from recsys.data.hold_out import newest_events
from recsys.data.neighbours import as_sets
from recsys.ragged import RaggedRows
from recsys.tasks.judging_side import Baseline, LeftOutError
from recsys.tasks.retrieval.judging.scores import DotProducts

if TYPE_CHECKING:
    from recsys.data.event_log import EventLog
    from recsys.tasks.retrieval.judging.queries import Queries


@dataclasses.dataclass(frozen=True)
class BaselineData:
    """The training data of baselines.

    Attributes:
        train: Training events.
        counts: Number of training positives of each item row `[item rows]`.
        is_item: Whether each item row is an item `[item rows]` bool. Other rows (unknown items
            and shared rows) are neither recommended nor used as evidence.
        cut: End of the training data [seconds since 1970, UTC].
        recent_days: Number of days for `recent_popularity`.
        max_events: Maximum number of newest events that baselines other than popularity learn from.
        order: Order of the events; unless it is `time`, other numbers than times order them.
    """

    train: EventLog
    counts: np.ndarray
    is_item: np.ndarray
    cut: int
    recent_days: int
    max_events: int
    order: Order = "time"

    @functools.cached_property
    def ranks(self) -> np.ndarray:
        """Rank of each item row by popularity `[item rows]` float32, see `popularity_ranks`."""
        return popularity_ranks(self.is_item, self.counts)


def popularity_ranks(is_item: np.ndarray, *counts: np.ndarray) -> np.ndarray:
    """Returns the rank of each item row in an order `[item rows]` float32, the best the highest.

    Equal counts have equal ranks. Ranks are small integers, which float32 represents exactly,
    unlike large counts.

    Args:
        is_item: Whether each item row is an item `[item rows]` bool; others have rank 0.
        *counts: Counts of each item row `[item rows]`, the most significant first.
    """
    keys = np.where(is_item, np.stack(counts), -1)
    _, place = np.unique(keys, axis=1, return_inverse=True)
    return place.ravel().astype(np.float32)


def item_sets(data: BaselineData, max_user_events: int | None = None) -> Any:
    """Returns the user-item matrix of the newest training events.

    Args:
        data: The training data.
        max_user_events: Maximum number of newest events per user; None: all.

    Returns:
        A matrix `[users, item rows]` float32 in CSR, 1 if the user has an event with the item.
        Users without events are left out.

    Raises:
        LeftOutError: No training event has a known item.
    """
    events = newest_events(data.train, data.max_events)
    item = data.train.item_row.gather_sorted(events)
    is_known = data.is_item[item]
    events, item = events[is_known], item[is_known]
    if not len(item):
        raise LeftOutError("There is no training event of an item that the vocabulary knows.")
    n_of_users = np.unique(data.train.user_index(events), return_counts=True)[1]
    if max_user_events is not None:
        ends = np.cumsum(n_of_users)
        item = item[np.repeat(ends, n_of_users) - np.arange(len(item)) <= max_user_events]
        n_of_users = np.minimum(n_of_users, max_user_events)
    offsets = np.concatenate([[0], np.cumsum(n_of_users)])
    return as_sets(RaggedRows(item, offsets), len(data.is_item))


# --- popularity

_DAY_S = 86_400


@dataclasses.dataclass(frozen=True)
class SameForAll:
    """A baseline whose item scores are the same for all queries.

    Attributes:
        scores: Score of each item row `[item rows]` float32.
    """

    scores: np.ndarray

    def scorer(self, queries: Queries) -> DotProducts:
        """Returns the scorer of the items for `queries`."""
        return DotProducts(np.ones((len(queries), 1), np.float32), self.scores[:, None])


class Popularity(Baseline):
    """Orders items by their number of training positives; ties go to the lower row."""

    title = "popularity"
    cure = "model: {type: auto, item_bias: true}"

    def fit(self, data: BaselineData) -> SameForAll:
        """Learns from training events.

        Raises:
            LeftOutError: No item has a training positive.
        """
        if not data.counts[data.is_item].any():
            raise LeftOutError("No item has a training positive.")
        return SameForAll(data.ranks)


class RecentPopularity(Baseline):
    """Orders items by their positives of the last days, then by all their positives.

    These are the days before the cut. If they have no events, they are the days before the
    newest training event.
    """

    title = "recent popularity"
    cure = "train: {half_life: 0.3}"

    days: PositiveInt | None = None
    """Days that are counted; `null`: evaluate.recent_days."""

    def fit(self, data: BaselineData) -> SameForAll:
        """Learns from training events.

        Raises:
            LeftOutError: No training event has a known item, or events have no times.
        """
        if data.order != "time":
            raise LeftOutError("The events have no times, so nothing is recent.")
        n_rows = len(data.is_item)
        length_s = (self.days or data.recent_days) * _DAY_S
        recent = _counts_since(data.train, data.cut - length_s, n_rows)
        if not recent[data.is_item].any():
            newest = _newest_of_items(data)
            recent = _counts_since(data.train, newest - length_s + 1, n_rows)
        return SameForAll(popularity_ranks(data.is_item, recent, data.counts))


def _counts_since(train: EventLog, since: int, n_rows: int) -> np.ndarray:
    """Returns the number of events of each item row since a time `[n_rows]` int64."""
    recent = (shard.item_row[shard.timestamp >= since] for shard in train.shards)
    counts = (np.bincount(rows, minlength=n_rows) for rows in recent)
    return sum(counts, start=np.zeros(n_rows, np.int64))


def _newest_of_items(data: BaselineData) -> int:
    """Returns the time of the newest event of a known item [seconds since 1970, UTC]."""
    times = (shard.timestamp[data.is_item[shard.item_row]] for shard in data.train.shards)
    newest = [int(of_shard.max()) for of_shard in times if len(of_shard)]
    if not newest:
        raise LeftOutError("There is no training event of an item that the vocabulary knows.")
    return max(newest)


# --- implicit ALS: matrix factorisation without sampling, with closed-form half-steps

_BLOCK_NUMBERS = 2**22
"""Maximum number of entries in the linear systems of a block; 16 MiB of float32."""
_CHUNK = 2**16
_MOST_THREADS = 16


@dataclasses.dataclass(frozen=True)
class Objective:
    """The objective of implicit ALS.

    Hu, Koren, Volinsky, "Collaborative Filtering for Implicit Feedback Datasets", ICDM 2008,
    with the frequency-scaled regularisation of Rendle, Krichene, Zhang, Koren, "Revisiting the
    Performance of iALS on Item Recommendation Benchmarks", RecSys 2022.

    It is the sum over all positive pairs of (score - 1)², plus `unobserved` times the sum over
    all pairs of score², plus, for each vector, its squared norm times `regularisation` times
    (number of its positive pairs + `unobserved` times the number of all its pairs).

    Attributes:
        unobserved: Weight of a pair that isn't positive; a positive one has 1 more.
        regularisation: Strength of the regularisation.
    """

    unobserved: float
    regularisation: float

    def ridge(self, n_taken: np.ndarray, n_others: int) -> np.ndarray:
        """Returns the weight of the squared norm of each vector `[n]` float64.

        Args:
            n_taken: Number of positive pairs of each vector `[n]`.
            n_others: Number of all pairs of a vector.
        """
        return self.regularisation * (n_taken + self.unobserved * n_others)


def solve(taken: Any, others: np.ndarray, n_others: int, objective: Objective) -> np.ndarray:
    """Returns the vectors `[n, dim]` float32 that minimise the loss for given other vectors.

    The vector w of the row `u` of `taken` solves `(Σ h hᵀ over its columns + unobserved HᵀH +
    ridge I) w = Σ h over its columns`. It is computed in the basis in which `HᵀH` is diagonal:
    there a row with few columns is a small system in its columns (Woodbury's identity) instead
    of one with `dim` unknowns.

    Args:
        taken: Positive pairs `[n, others]`, CSR, each value 1.
        others: Vectors of the other side `[others, dim]` float32; 0 for missing ones.
        n_others: Number of entities on the other side.
        objective: The objective.
    """
    from threadpoolctl import threadpool_limits

    dim, n_taken = others.shape[1], np.diff(taken.indptr)
    out = np.zeros((len(n_taken), dim), np.float32)
    ridge = objective.ridge(n_taken, n_others)
    values, basis = np.linalg.eigh((others.T @ others).astype(np.float64))
    basis = basis.astype(np.float32)
    turned = others @ basis
    diagonal = objective.unobserved * np.maximum(values, 0.0)

    def solve_block(rows: np.ndarray) -> None:
        weights = (ridge[rows, None] + diagonal).astype(np.float32)
        step = _few if n_taken[rows[-1]] <= dim else _many
        out[rows] = step(taken, rows, turned, weights) @ basis.T

    # The systems are small, so that threads within each would mostly wait for each other.
    n_threads = min(_MOST_THREADS, len(os.sched_getaffinity(0)))
    with threadpool_limits(1, user_api="blas"), ThreadPoolExecutor(n_threads) as pool:
        list(pool.map(solve_block, _blocks(n_taken, dim)))
    return out


def _blocks(n_taken: np.ndarray, dim: int) -> Iterator[np.ndarray]:
    """Yields blocks of rows with similar numbers of columns, which the same step solves."""
    order = np.argsort(n_taken, kind="stable")
    bands = [2**power for power in range(dim.bit_length()) if 2**power <= dim]
    ends = np.searchsorted(n_taken[order], [*bands, dim + 1, np.inf])
    for (start, end), longest in zip(itertools.pairwise(ends), [*bands[1:], dim, dim], strict=True):
        size = max(1, _BLOCK_NUMBERS // (dim * longest))
        for first in range(start, end, size):
            yield order[first : min(first + size, end)]


def _few(taken: Any, rows: np.ndarray, turned: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Solves `(D + XᵀX) w = Xᵀ1` as `w = D⁻¹Xᵀz` with `(I + X D⁻¹ Xᵀ) z = 1`.

    Args:
        taken: Positive pairs.
        rows: Rows to solve `[b]`, none with more than `dim` columns.
        turned: Vectors of the other side in the new basis `[others, dim]`, the rows of every `X`.
        weights: The diagonal of each `D` `[b, dim]`.
    """
    starts, ends = taken.indptr[rows], taken.indptr[rows + 1]
    place = starts[:, None] + np.arange((ends - starts).max())
    is_there = place < ends[:, None]
    x = turned[taken.indices[np.where(is_there, place, 0)]] * is_there[..., None]
    scaled = x / weights[:, None, :]
    system = scaled @ x.transpose(0, 2, 1)
    system += np.eye(system.shape[1], dtype=np.float32)
    z = np.linalg.solve(system, np.ones((*system.shape[:2], 1), np.float32))
    return (z.transpose(0, 2, 1) @ scaled)[:, 0]


def _many(taken: Any, rows: np.ndarray, turned: np.ndarray, weights: np.ndarray) -> np.ndarray:
    """Solves `(D + XᵀX) w = Xᵀ1` directly; see `_few`."""
    dim = turned.shape[1]
    system, right = (np.zeros((len(rows), dim, dim), np.float32), np.zeros((len(rows), dim)))
    for at, row in enumerate(rows):
        for start in range(taken.indptr[row], taken.indptr[row + 1], _CHUNK):
            x = turned[taken.indices[start : min(start + _CHUNK, taken.indptr[row + 1])]]
            system[at] += x.T @ x
            right[at] += x.sum(axis=0)
    system[:, np.arange(dim), np.arange(dim)] += weights
    return np.linalg.solve(system, right[..., None].astype(np.float32))[..., 0]


_FIRST_LENGTH = 0.1
"""Approximate norm of the initial item vectors, as in Rendle et al. 2022."""
_BLOCK_ITEMS = 2**24
"""Maximum number of seen items in the queries that are solved at a time."""


class Ials(Baseline):
    """Scores an item by the dot product of its vector and the user's.

    The user's vector is solved from all items before the query, as in training; users without
    any get the items by popularity. Items without a training event have the vector 0, which
    is the closed-form solution.

    Rendle et al. 2022 show that it is a strong baseline if the weight of unobserved pairs and
    the regularisation suit the data, and a poor one otherwise. The best weight of a pair
    differs by a factor of thirty between Gowalla and MovieLens 1M, but hardly as a multiple of
    the positive pairs, so that is how it is set. The defaults are good values on the
    validation parts of both.
    """

    title = "iALS"
    cure = "model: {type: ials}"

    dim: PositiveInt = 128
    """Width of the vectors."""
    sweeps: PositiveInt = 6
    """Number of times that all users and all items are solved."""
    unobserved: PositiveFloat = 10.0
    """Weight of all pairs together, as a multiple of the number of the taken ones; the
    weight of one pair is 1 at the most."""
    regularisation: PositiveFloat = 0.005
    """Strength of the regularisation."""
    seed: NonNegativeInt = 0
    """Seed of the initial item vectors."""

    def objective(self, taken: Any) -> Objective:
        """Returns the objective for the positive pairs `[users, items]`."""
        density = taken.nnz / (taken.shape[0] * taken.shape[1])
        return Objective(min(1.0, self.unobserved * density), self.regularisation)

    def fit(self, data: BaselineData) -> FittedIals:
        """Learns from training events.

        Raises:
            LeftOutError: No training event has a known item.
        """
        taken = item_sets(data)
        # Only the items with training events; the others would dilute the objective.
        rows = np.unique(taken.indices)
        taken = taken[:, rows]
        objective = self.objective(taken)
        vectors = factorise(taken, objective, self)
        return FittedIals(rows, vectors, objective, data.ranks)


@dataclasses.dataclass(frozen=True)
class FittedIals:
    """The vectors of the items.

    Attributes:
        rows: Item rows that have a vector `[items]`.
        vectors: Their vectors `[items, dim]` float32.
        objective: The objective.
        ranks: Rank of each item row by popularity `[item rows]` float32.
    """

    rows: np.ndarray
    vectors: np.ndarray
    objective: Objective
    ranks: np.ndarray

    def scorer(self, queries: Queries) -> DotProducts:
        """Returns the scorer of the items for `queries`."""
        dim = self.vectors.shape[1]
        query = np.zeros((len(queries), dim + 1), np.float32)
        for block in queries.seen.blocks(_BLOCK_ITEMS):
            taken = as_sets(queries.seen.part(block), len(self.ranks))[:, self.rows]
            query[block, :dim] = solve(taken, self.vectors, len(self.rows), self.objective)
            # One more entry, for the popularity of the items.
            query[block, dim] = np.diff(taken.indptr) == 0
        candidates = np.zeros((len(self.ranks), dim + 1), np.float32)
        candidates[self.rows, :dim] = self.vectors
        candidates[:, dim] = self.ranks
        return DotProducts(query, candidates)


def factorise(taken: Any, objective: Objective, settings: Ials) -> np.ndarray:
    """Returns the vectors of the items `[items, dim]` float32.

    Args:
        taken: User-item matrix `[users, items]`, CSR, each value 1.
        objective: The objective to minimise.
        settings: Length of the vectors, number of sweeps and seed.
    """
    from scipy import sparse

    n_users, n_items = taken.shape
    by_item = sparse.csr_array(taken.T)
    rng = np.random.default_rng(settings.seed)
    items = rng.standard_normal((n_items, settings.dim), np.float32)
    items *= _FIRST_LENGTH / np.sqrt(settings.dim)
    for _ in range(settings.sweeps):
        users = solve(taken, items, n_items, objective)
        items = solve(by_item, users, n_users, objective)
    return items
