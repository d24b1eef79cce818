"""Metrics of accuracy, from the ranks of the held-out items.

A query has one or more positives; the rank of a positive is its place (1 is best)
in the list of all candidates without those that the user has seen. Items of one score
stand in the order of their rows, so a rank is never shared. Every metric is first the mean
over a user's queries, then the mean over users: a user with a thousand events counts as
much as one with a single event.
"""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np

from recsys.evaluation.watched import Metrics, per_user, watched_metrics

__all__ = ["Metrics", "per_query", "per_user"]


def per_query(
    ranks: np.ndarray,
    query: np.ndarray,
    n_queries: int,
    ks: Iterable[int],
    n_ranked: np.ndarray | None = None,
) -> Metrics:
    """Returns the metrics of each query.

    Args:
        ranks: Rank of each positive `[positives]`, from 1; above `n_ranked` where the
            positive is no candidate, which is then never found.
        query: Query of each positive `[positives]`, in 0 … `n_queries` - 1, ascending.
        n_queries: Queries.
        ks: Cut-offs.
        n_ranked: Items of each query's list `[n_queries]`; without it there is no AUC.

    Returns:
        `[n_queries]` float64 each, NaN for a query without positives; P is the number of a
        query's positives:

        - `recall@k`: positives within the first k places, over P.
        - `precision@k`: the same over k.
        - `hit_rate@k`: 1 if there is one, else 0.
        - `ndcg@k`: sum of 1 / log2(1 + rank) over the positives within the first k places,
          over that of the best order (Järvelin and Kekäläinen, 2002, binary gains).
        - `map@k`: sum of the precisions at the ranks of the positives within the first k
          places, over P (average precision, Buckley and Voorhees, 2000; cut as trec_eval's
          `map_cut` does).
        - `mrr`: 1 / rank of the best positive (Voorhees, 1999).
        - `auc`: share of the pairs of a positive and another item of the list in which the
          positive stands first (Hanley and McNeil, 1982; Rendle et al., 2009, eq. 1);
          0.5 where the list holds nothing else.
    """
    ks = list(ks)
    if n_ranked is not None:
        ranks = np.where(ranks > n_ranked[query], np.inf, ranks)
    n_positives = np.bincount(query, minlength=n_queries)
    nth = _places(ranks, query, n_queries)
    watched = watched_metrics(ranks, query, n_queries, ks)
    metrics: Metrics = {}
    with np.errstate(invalid="ignore", divide="ignore"):
        for k in ks:
            hits = np.bincount(query, ranks <= k, n_queries)
            metrics[f"recall@{k}"] = watched[f"recall@{k}"]
            metrics[f"precision@{k}"] = np.where(n_positives > 0, hits / k, np.nan)
            metrics[f"hit_rate@{k}"] = np.where(n_positives > 0, hits > 0, np.nan)
        for k in ks:
            precision = np.where(ranks <= k, nth / ranks, 0.0)
            metrics[f"ndcg@{k}"] = watched[f"ndcg@{k}"]
            metrics[f"map@{k}"] = np.bincount(query, precision, n_queries) / n_positives
    metrics["mrr"] = watched["mrr"]
    if n_ranked is not None:
        metrics["auc"] = _auc(ranks, nth, query, n_ranked)
    return metrics


def _places(ranks: np.ndarray, query: np.ndarray, n_queries: int) -> np.ndarray:
    """Returns the place `[positives]`, from 1, of each positive among those of its query."""
    order = np.lexsort((ranks, query))
    first = np.concatenate([[0], np.cumsum(np.bincount(query, minlength=n_queries))])
    nth = np.empty(len(ranks), np.int64)
    nth[order] = np.arange(1, len(ranks) + 1) - first[query[order]]
    return nth


def _auc(ranks: np.ndarray, nth: np.ndarray, query: np.ndarray, n_ranked: np.ndarray) -> np.ndarray:
    n_queries = len(n_ranked)
    is_listed = ranks <= n_ranked[query]
    n_others = n_ranked - np.bincount(query, is_listed, n_queries)
    before = np.where(is_listed, ranks - nth, n_others[query])
    with np.errstate(invalid="ignore", divide="ignore"):
        share = np.where(n_others[query] > 0, 1.0 - before / n_others[query], 0.5)
        return np.asarray(
            np.bincount(query, share, n_queries) / np.bincount(query, minlength=n_queries)
        )
