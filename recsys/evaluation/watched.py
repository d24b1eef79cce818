"""The metrics that a training watches, recall, NDCG and MRR, and the mean over users.

They are apart from the other metrics, so that one more of those changes no training.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

Metrics = dict[str, np.ndarray]


def watched_metrics(
    ranks: np.ndarray, query: np.ndarray, n_queries: int, ks: Iterable[int]
) -> Metrics:
    """Returns `recall@k`, `ndcg@k` and `mrr` of each query; see `metrics.per_query`.

    Args:
        ranks: Rank of each positive `[positives]`, from 1; infinite if it is never found.
        query: Query of each positive `[positives]`, ascending.
        n_queries: Queries.
        ks: Cut-offs.

    Returns:
        `[n_queries]` float64 each, NaN for a query without positives.
    """
    n_positives = np.bincount(query, minlength=n_queries)
    metrics: Metrics = {}
    with np.errstate(invalid="ignore", divide="ignore"):
        for k in ks:
            metrics[f"recall@{k}"] = np.bincount(query, ranks <= k, n_queries) / n_positives
            gain = np.where(ranks <= k, 1.0 / np.log2(1.0 + ranks), 0.0)
            best = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))])
            ideal = best[np.minimum(n_positives, k)]
            metrics[f"ndcg@{k}"] = np.bincount(query, gain, n_queries) / ideal
    metrics["mrr"] = np.where(n_positives > 0, 0.0, np.nan)
    np.maximum.at(metrics["mrr"], query, 1.0 / ranks)
    return metrics


def per_user(values: np.ndarray, user: np.ndarray, n_users: int) -> np.ndarray:
    """Returns means `[n_users]` of query `values` `[n]`; NaN for a user without any.

    A query whose value is NaN doesn't count.
    """
    is_known = ~np.isnan(values)
    counts = np.bincount(user[is_known], minlength=n_users)
    with np.errstate(invalid="ignore"):
        return np.asarray(np.bincount(user[is_known], values[is_known], n_users) / counts)
