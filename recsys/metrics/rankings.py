"""Metrics of rankings: their accuracy, and properties that don't depend on the positives.

Accuracy is computed from the ranks of the positives. The others measure how much of the catalogue
is shown, how popular it is, and how diverse a list is; more is not always better.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recsys.metrics import CatalogueMetric, Items, Metric, RankedLists

_BLOCK_FLOATS = 2**23

# --- accuracy


class Recall(Metric):
    """Positives within the first k positions, over the query's positives."""

    title = "recall"
    meaning = "share of what came later that is in the list"

    def per_query(self, lists: RankedLists, k: int) -> np.ndarray:
        """Returns the values `[n_queries]` float64."""
        with np.errstate(invalid="ignore"):
            return np.asarray(lists.sum_by_query(lists.ranks <= k) / lists.n_positives)


class Precision(Metric):
    """Positives within the first k positions, over k."""

    title = "precision"
    meaning = "share of the list that came later"

    def per_query(self, lists: RankedLists, k: int) -> np.ndarray:
        """Returns the values `[n_queries]` float64."""
        hits = lists.sum_by_query(lists.ranks <= k)
        return np.where(lists.n_positives > 0, hits / k, np.nan)


class HitRate(Metric):
    """1 if a positive is within the first k positions, else 0."""

    title = "hit rate"
    meaning = "share of the lists with at least one hit"

    def per_query(self, lists: RankedLists, k: int) -> np.ndarray:
        """Returns the values `[n_queries]` float64."""
        hits = lists.sum_by_query(lists.ranks <= k)
        return np.where(lists.n_positives > 0, hits > 0, np.nan)


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


# --- beyond accuracy


class Coverage(CatalogueMetric):
    """Share of the catalogue that is in at least one list [0..1] (Herlocker et al., 2004)."""

    title = "coverage"
    meaning = "share of the catalogue that is in at least one list"

    def total(self, lists: RankedLists, k: int) -> float:
        """Returns the value."""
        return float((lists.times_shown(k) > 0).mean())


class Gini(CatalogueMetric):
    """Gini index of how often items are shown: 0 all equally often, 1 only one item.

    With the numbers in ascending order, sum of (2 i - n - 1) x_i over (n - 1) sum of x_i
    (Fleder and Hosanagar, 2009; Castells et al., 2015, normalised to reach 1).
    """

    title = "Gini index"
    meaning = "0: every item is shown equally often; 1: a single one is"

    def total(self, lists: RankedLists, k: int) -> float:
        """Returns the value."""
        return gini(lists.times_shown(k))


def gini(times_shown: np.ndarray) -> float:
    """Returns the Gini index of how many lists each item of the catalogue is in `[items]`."""
    n = len(times_shown)
    if n < 2 or not times_shown.any():
        return 0.0
    ascending = np.sort(times_shown).astype(np.float64)
    weights = 2.0 * np.arange(1, n + 1) - n - 1.0
    return float(weights @ ascending / ((n - 1) * ascending.sum()))


class Novelty(Metric):
    """Mean self-information of the first k items [bits] (Zhou et al., 2010)."""

    title = "novelty"
    meaning = "how rare the shown items are, in bits; more is rarer"
    better = None
    decides = False
    needs_lists = True

    def at_cut_offs(self, lists: RankedLists, ks: Sequence[int]) -> list[np.ndarray]:
        """Returns the values `[n_queries]` of each cut-off."""
        top, items = lists.lists()
        running = _running_means(items.information, top)
        return [running[:, min(k, running.shape[1]) - 1] for k in ks]


class PopularityLift(CatalogueMetric):
    """How much more popular the shown items are than the items in users' histories.

    Mean over users of the mean training positives of the first k items, divided by the same
    mean over the items in their histories, minus 1 (Abdollahpouri et al., 2020). Users without
    a history are left out.
    """

    title = "popularity lift"
    meaning = "how popular the lists are beside what users did before; 0 is alike"

    def total(self, lists: RankedLists, k: int) -> float | None:
        """Returns the value; None if no user has a history."""
        top, items = lists.lists()
        before = lists.popularity_before
        if before is None:
            return None
        shown = _running_means(items.counts, top[:, :k])[:, -1]
        mean = lists.user_mean(np.where(np.isnan(before), np.nan, shown))
        mean_before = lists.user_mean(before)
        return mean / mean_before - 1.0 if mean is not None and mean_before else None


class Diversity(Metric):
    """Mean of 1 - cosine over all pairs of the first k items (Ziegler et al., 2005).

    The sum of all cosines of n unit vectors is the squared length of their sum, so pairs aren't
    formed: mean cosine = (|sum|² - n) / (n (n - 1)). Items without an embedding are left out.
    """

    title = "diversity"
    meaning = "how unlike each other the items of a list are; 0 is the same"
    better = None
    decides = False
    needs_lists = True

    def at_cut_offs(self, lists: RankedLists, ks: Sequence[int]) -> list[np.ndarray]:
        """Returns the values `[n_queries]` of each cut-off."""
        top, items = lists.lists()
        out = np.full((len(ks), len(top)), np.nan)
        size = max(1, _BLOCK_FLOATS // max(1, top.shape[1] * items.embeddings.shape[1]))
        for start in range(0, len(top), size):
            rows = top[start : start + size]
            unit, is_known, index = _unit_vectors(items, rows)
            vectors = np.where((rows > 0)[..., None], unit[index], 0.0)
            sums = np.cumsum(vectors, axis=1, dtype=np.float64)
            counts = np.cumsum((rows > 0) & is_known[index], axis=1)
            for number, k in enumerate(ks):
                last = min(k, rows.shape[1]) - 1
                n, total = counts[:, last].astype(np.float64), sums[:, last]
                squared = np.einsum("qd,qd->q", total, total)
                with np.errstate(invalid="ignore", divide="ignore"):
                    mean = (squared - n) / (n * (n - 1))
                out[number, start : start + size] = np.where(n > 1, 1.0 - mean, np.nan)
        return list(out)


def _unit_vectors(items: Items, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    """Returns the normalised embeddings of the unique items of some lists.

    Args:
        items: The items.
        rows: Item rows `[…]`.

    Returns:
        Unit vectors `[n, dim]` float32; whether each is not 0 `[n]` bool; and the index of each
        item row's vector `[…]`.
    """
    is_shown = np.zeros(len(items.is_candidate), bool)
    is_shown[rows] = True
    shown = np.flatnonzero(is_shown)
    index = np.cumsum(is_shown, dtype=np.int64) - 1
    vectors = items.embeddings[shown]
    lengths = np.maximum(np.linalg.norm(vectors, axis=1, keepdims=True), 1e-12)
    unit = (vectors / lengths).astype(np.float32)
    return unit, (unit != 0).any(axis=1), index[rows]


def _running_means(values: np.ndarray, top: np.ndarray) -> np.ndarray:
    """Returns the mean `[queries, k]` of `values` over the first 1, 2, … items of each list."""
    is_item = top > 0
    sums = np.cumsum(np.where(is_item, values[top], 0.0), axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / np.cumsum(is_item, axis=1))
