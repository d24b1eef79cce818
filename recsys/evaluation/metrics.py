"""Retrieval metrics, from the ranks of the held-out items.

A query has one or more positives; the rank of a positive is its place (1 is best)
in the list of all candidates without those that the user has seen. Every metric
is first the mean over a user's queries, then the mean over users: a user with a
thousand events counts as much as one with a single event.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np


def per_query(
    ranks: np.ndarray, query: np.ndarray, n_queries: int, ks: Iterable[int]
) -> dict[str, np.ndarray]:
    """Returns the metrics of each query.

    Args:
        ranks: Rank of each positive `[positives]`, from 1.
        query: Query of each positive `[positives]`, in 0 … `n_queries` - 1.
        n_queries: Queries; each has at least one positive.
        ks: Cut-offs.

    Returns:
        `[n_queries]` float64 each:
        `recall@k`: share of the positives within the first k places.
        `ndcg@k`: sum of 1 / log2(1 + rank) over the positives within the first k
        places, divided by that of the best order (Järvelin and Kekäläinen, 2002,
        with binary gains).
        `mrr`: 1 / rank of the best positive (Voorhees, 1999).
    """
    n_positives = np.bincount(query, minlength=n_queries)
    metrics: dict[str, np.ndarray] = {}
    for k in ks:
        hit = ranks <= k
        metrics[f"recall@{k}"] = np.bincount(query, hit, n_queries) / n_positives
    for k in ks:
        gain = np.where(ranks <= k, 1.0 / np.log2(1.0 + ranks), 0.0)
        best = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))])
        metrics[f"ndcg@{k}"] = (
            np.bincount(query, gain, n_queries) / best[np.minimum(n_positives, k)]
        )
    metrics["mrr"] = np.zeros(n_queries)
    np.maximum.at(metrics["mrr"], query, 1.0 / ranks)
    return metrics


def per_user(values: np.ndarray, user: np.ndarray, n_users: int) -> np.ndarray:
    """Returns means `[n_users]` of query `values` `[n]`; NaN for a user without a query."""
    counts = np.bincount(user, minlength=n_users)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(user, values, n_users) / counts)
