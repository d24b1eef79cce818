"""Metrics of accuracy, from the ranks of the positives."""

from __future__ import annotations

import numpy as np

from recsys.metrics.metric import Metric, RankedLists
from recsys.registry import register_metric


@register_metric("recall")
class Recall(Metric):
    """Positives within the first k positions, over the query's positives."""

    title = "recall"
    meaning = "share of what came later that is in the list"

    def per_query(self, lists: RankedLists, k: int) -> np.ndarray:
        """Returns the values `[n_queries]` float64."""
        with np.errstate(invalid="ignore"):
            return np.asarray(lists.sum_by_query(lists.ranks <= k) / lists.n_positives)


@register_metric("precision")
class Precision(Metric):
    """Positives within the first k positions, over k."""

    title = "precision"
    meaning = "share of the list that came later"

    def per_query(self, lists: RankedLists, k: int) -> np.ndarray:
        """Returns the values `[n_queries]` float64."""
        hits = lists.sum_by_query(lists.ranks <= k)
        return np.where(lists.n_positives > 0, hits / k, np.nan)


@register_metric("hit_rate")
class HitRate(Metric):
    """1 if a positive is within the first k positions, else 0."""

    title = "hit rate"
    meaning = "share of the lists with at least one hit"

    def per_query(self, lists: RankedLists, k: int) -> np.ndarray:
        """Returns the values `[n_queries]` float64."""
        hits = lists.sum_by_query(lists.ranks <= k)
        return np.where(lists.n_positives > 0, hits > 0, np.nan)


@register_metric("ndcg")
class Ndcg(Metric):
    """Normalised discounted cumulative gain with binary gains (Järvelin and Kekäläinen, 2002).

    Sum of 1 / log2(1 + rank) over the positives within the first k positions, divided by the
    largest possible sum.
    """

    title = "NDCG"
    meaning = "recall that counts early places more"

    def per_query(self, lists: RankedLists, k: int) -> np.ndarray:
        """Returns the values `[n_queries]` float64."""
        gain = np.where(lists.ranks <= k, 1.0 / np.log2(1.0 + lists.ranks), 0.0)
        best = np.concatenate([[0.0], np.cumsum(1.0 / np.log2(np.arange(2, k + 2)))])
        ideal = best[np.minimum(lists.n_positives, k)]
        with np.errstate(invalid="ignore"):
            return np.asarray(lists.sum_by_query(gain) / ideal)


@register_metric("map")
class MeanAveragePrecision(Metric):
    """Average precision (Buckley and Voorhees, 2000), cut as trec_eval's `map_cut` does.

    Sum of the precisions at the ranks of the positives within the first k positions, over the
    query's positives.
    """

    title = "MAP"
    meaning = "precision at each hit, averaged"

    def per_query(self, lists: RankedLists, k: int) -> np.ndarray:
        """Returns the values `[n_queries]` float64."""
        precision = np.where(lists.ranks <= k, lists.nth / lists.ranks, 0.0)
        with np.errstate(invalid="ignore"):
            return np.asarray(lists.sum_by_query(precision) / lists.n_positives)


@register_metric("mrr")
class ReciprocalRank(Metric):
    """1 / rank of the best positive (Voorhees, 1999)."""

    title = "MRR"
    meaning = "1 ÷ place of the first hit"
    has_cut_off = False

    def per_query(self, lists: RankedLists, k: int) -> np.ndarray:
        """Returns the values `[n_queries]` float64."""
        best = np.where(lists.n_positives > 0, 0.0, np.nan)
        np.maximum.at(best, lists.query, 1.0 / lists.ranks)
        return best


@register_metric("auc")
class Auc(Metric):
    """Area under the ROC curve (Hanley and McNeil, 1982; Rendle et al., 2009, eq. 1).

    Share of the pairs of a positive and another item in which the positive ranks higher; 0.5
    if the list has no other items.
    """

    title = "AUC"
    meaning = "share of pairs in the right order"
    has_cut_off = False

    def per_query(self, lists: RankedLists, k: int) -> np.ndarray:
        """Returns the values `[n_queries]`; NaN without `n_ranked`."""
        if lists.n_ranked is None:
            return np.full(lists.n_queries, np.nan)
        is_listed = lists.ranks <= lists.n_ranked[lists.query]
        n_others = (lists.n_ranked - lists.sum_by_query(is_listed))[lists.query]
        with np.errstate(invalid="ignore", divide="ignore"):
            before = np.where(is_listed, lists.ranks - lists.nth, n_others)
            share = np.where(n_others > 0, 1.0 - before / n_others, 0.5)
            return np.asarray(lists.sum_by_query(share) / lists.n_positives)
