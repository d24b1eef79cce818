"""Exact ranks over the full catalogue, in blocks that fit memory."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import numpy as np

from recsys.ragged import Ragged

_BLOCK_SCORES = 2**24
"""Scores held at a time; 64 MiB of float32."""

Scorer = Callable[[slice], np.ndarray]
"""Gives the scores `[queries of the slice, item rows]` float32 of a slice of queries."""


@dataclasses.dataclass(frozen=True)
class Ranking:
    """What is known of the ranked lists.

    Attributes:
        ranks: Rank of each positive `[positives]`, from 1.
        top: Best item rows of each query `[queries, k]`, the best first.
        top_scores: Their scores `[queries, k]`; -inf where a query has no more items.
    """

    ranks: np.ndarray
    top: np.ndarray
    top_scores: np.ndarray


def rank(
    scorer: Scorer, positives: Ragged, seen: Ragged, is_candidate: np.ndarray, k: int
) -> Ranking:
    """Ranks the positives of every query among all items that the user hasn't seen.

    Of items with one score the one with the smaller row comes first. A positive that is
    no candidate, because the vocabulary doesn't know it, ranks behind every item.

    Args:
        scorer: Gives the scores of a slice of queries.
        positives: Held-out item rows of each query.
        seen: Item rows of each query that are left out of its list. A positive
            among them stays in: the user took it again.
        is_candidate: Which item rows are items `[item rows]` bool; row 0 is none.
        k: Items of the top lists.
    """
    n_queries, n_rows = len(positives), len(is_candidate)
    others = np.flatnonzero(~is_candidate)
    k = min(k, n_rows - len(others))
    ranks = np.empty(len(positives.rows), np.int64)
    top = np.zeros((n_queries, k), np.int64)
    top_scores = np.zeros((n_queries, k), np.float32)
    size = max(1, _BLOCK_SCORES // n_rows)
    for start in range(0, n_queries, size):
        block = slice(start, min(start + size, n_queries))
        wanted = positives.part(block)
        scores = _mask(scorer(block), wanted, seen.part(block), others)
        first = positives.offsets[block.start]
        ranks[first : first + len(wanted.rows)] = _ranks(scores, wanted, is_candidate)
        top[block], top_scores[block] = _best(scores, k)
    return Ranking(ranks, top, top_scores)


def _mask(scores: np.ndarray, positives: Ragged, seen: Ragged, others: np.ndarray) -> np.ndarray:
    masked = np.array(scores, np.float32)
    kept = masked[positives.owner(), positives.rows]
    masked[seen.owner(), seen.rows] = -np.inf
    masked[positives.owner(), positives.rows] = kept
    masked[:, others] = -np.inf
    return masked


def _ranks(scores: np.ndarray, positives: Ragged, is_candidate: np.ndarray) -> np.ndarray:
    query, rows = positives.owner(), positives.rows
    item = np.arange(scores.shape[1])
    ranks = np.empty(len(rows), np.int64)
    size = max(1, _BLOCK_SCORES // scores.shape[1])
    for start in range(0, len(rows), size):
        part = slice(start, start + size)
        theirs = scores[query[part]]
        own = scores[query[part], rows[part]][:, None]
        before = (theirs > own) | ((theirs == own) & (item < rows[part][:, None]))
        ranks[part] = 1 + before.sum(axis=1)
    return np.where(is_candidate[rows], ranks, scores.shape[1])


def _best(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the `k` best item rows and scores of each row, ties by item row."""
    chosen = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    least = np.take_along_axis(scores, chosen, axis=1).min(axis=1, keepdims=True)
    # Where a tie crosses the border the partition chose among equals at random.
    for query in np.flatnonzero((scores >= least).sum(axis=1) > k):
        chosen[query] = np.argsort(-scores[query], kind="stable")[:k]
    chosen.sort(axis=1)
    found = np.take_along_axis(scores, chosen, axis=1)
    order = np.argsort(-found, axis=1, kind="stable")
    return np.take_along_axis(chosen, order, axis=1), np.take_along_axis(found, order, axis=1)
