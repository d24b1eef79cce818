"""Ranks among a few random items, to reproduce papers that report such figures.

They say little of the ranks among all items, and may order two models the other way round
(Krichene and Rendle, 2020), so nothing else here uses them.
"""

from __future__ import annotations

import numpy as np

from recsys.errors import RecsysError
from recsys.evaluation.ranking import Ranking, Scorer
from recsys.ragged import Ragged

_BLOCK_SCORES = 2**24


def rank_sampled(
    scorer: Scorer,
    positives: Ragged,
    masked: Ragged,
    is_candidate: np.ndarray,
    is_item: np.ndarray,
    n_negatives: int,
    seed: int,
) -> Ranking:
    """Ranks each query's positives among themselves and random negatives.

    Args:
        scorer: Gives the scores.
        positives: Held-out item rows of each query.
        masked: Item rows of each query that are left out; a positive among them ranks last.
        is_candidate: Which item rows can be recommended `[item rows]` bool.
        is_item: Which item rows are items at all `[item rows]` bool.
        n_negatives: Negatives of each query, drawn evenly without replacement from the
            items that are neither positives nor masked; all of them where there are fewer.
            Those that can't be recommended then drop out.
        seed: Seed of the draw; with it, the same negatives for whatever is measured.

    Returns:
        Ranks among the drawn; the lists are empty.

    Raises:
        RecsysError: A score is NaN (R405).
    """
    n_queries, n_rows = len(positives), len(is_candidate)
    rng = np.random.default_rng(seed)
    ranks = np.empty(len(positives.rows), np.int64)
    n_ranked = np.empty(n_queries, np.int64)
    size = max(1, _BLOCK_SCORES // n_rows)
    for start in range(0, n_queries, size):
        scores = scorer.scores(slice(start, min(start + size, n_queries)))
        for query, row in enumerate(scores, start):
            own = slice(positives.offsets[query], positives.offsets[query + 1])
            wanted = positives.rows[own]
            is_left = np.ones(n_rows, bool)
            is_left[masked.part(slice(query, query + 1)).rows] = False
            allowed = is_item & is_left
            allowed[wanted] = False
            is_left &= is_candidate
            others = np.flatnonzero(allowed)
            negatives = rng.choice(others, min(n_negatives, len(others)), replace=False)
            listed = np.concatenate([wanted, negatives])
            listed = listed[is_left[listed]]
            _check(row[listed], query)
            n_ranked[query] = len(listed)
            place = _places(row, listed)
            ranks[own] = np.where(is_left[wanted], place[wanted], len(listed) + 1)
    return Ranking(
        ranks, n_ranked, np.zeros((n_queries, 0), np.int32), np.zeros((n_queries, 0), np.float32)
    )


def _places(scores: np.ndarray, listed: np.ndarray) -> np.ndarray:
    """Returns the place `[item rows]` of each listed row, ties in the order of the rows."""
    place = np.zeros(len(scores), np.int64)
    place[listed[np.lexsort((listed, -scores[listed]))]] = np.arange(1, len(listed) + 1)
    return place


def _check(scores: np.ndarray, query: int) -> None:
    n_bad = int(np.isnan(scores).sum())
    if n_bad:
        raise RecsysError(
            "R405",
            "Every score must be a number, else ranks mean nothing.",
            "Train again with lower learning rates.",
            f"{n_bad} of {len(scores)} scores of query {query} are NaN",
        )
