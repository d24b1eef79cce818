"""Metrics of the lists themselves, whatever was right.

How much of the catalogue they show, how popular it is, and how unlike each other the items
of a list are.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np

from recsys.evaluation.metrics import Metrics
from recsys.ragged import Ragged

_BLOCK_FLOATS = 2**23
_BLOCK_ROWS = 2**22


@dataclasses.dataclass(frozen=True)
class Items:
    """What the metrics need to know of the items.

    Attributes:
        counts: Training positives of each item row `[item rows]`.
        is_candidate: Which item rows are items `[item rows]` bool.
        embeddings: What tells how alike two items are `[item rows, dim]` float32; the same
            for all lists that are compared.
    """

    counts: np.ndarray
    is_candidate: np.ndarray
    embeddings: np.ndarray

    @property
    def information(self) -> np.ndarray:
        """Self-information of each item row `[item rows]` float64 [bits].

        -log2 of its share of the training positives, each item counted once more than it
        occurs so that no share is 0.
        """
        n_items = int(self.is_candidate.sum())
        total = float(self.counts[self.is_candidate].sum()) + n_items
        return np.asarray(-np.log2((self.counts + 1.0) / total))


def of_each_list(top: np.ndarray, before: np.ndarray, items: Items, ks: Iterable[int]) -> Metrics:
    """Returns the metrics that each list has of its own.

    Args:
        top: Item rows of each list `[queries, most k]`, the best first; 0 past its end.
        before: Mean training positives of what each query's user did before `[queries]`,
            as `popularity_before` gives it.
        items: The items.
        ks: Cut-offs.

    Returns:
        `[queries]` float64 each, NaN where there is nothing to measure:

        - `novelty@k`: mean self-information of the first k items [bits] (Zhou et al., 2010;
          Vargas and Castells, 2011).
        - `popularity@k`: mean training positives of the first k items; NaN for a user
          without history.
        - `popularity_before@k`: `before`. `popularity_lift@k` is the ratio of the two means
          over users, less 1: how much more popular than what users take is what they are
          shown (Abdollahpouri et al., 2020).
        - `diversity@k`: mean of 1 - cosine over all pairs of the first k items
          (intra-list diversity, Ziegler et al., 2005; Vargas and Castells, 2011).
    """
    ks = list(ks)
    is_new = np.isnan(before)
    metrics: Metrics = {}
    novelty, popularity = (_running_means(x, top) for x in (items.information, items.counts))
    diversity = _diversity(top, items.embeddings, ks)
    for place, k in enumerate(ks):
        last = min(k, top.shape[1]) - 1
        metrics[f"novelty@{k}"] = novelty[:, last]
        metrics[f"popularity@{k}"] = np.where(is_new, np.nan, popularity[:, last])
        metrics[f"popularity_before@{k}"] = before
        metrics[f"diversity@{k}"] = diversity[:, place]
    return metrics


def popularity_before(seen: Ragged, items: Items) -> np.ndarray:
    """Returns the mean training positives `[queries]` of what each query's user did before.

    Rows that are no items of their own don't count; NaN where nothing does.

    Args:
        seen: What each query's user did before.
        items: The items.
    """
    means = np.full(len(seen), np.nan)
    for block in seen.blocks(_BLOCK_ROWS):
        part = seen.part(block)
        is_item = items.is_candidate[part.rows]
        owner, counts = part.owner()[is_item], items.counts[part.rows[is_item]]
        with np.errstate(invalid="ignore"):
            sums = np.bincount(owner, counts, len(part))
            means[block] = sums / np.bincount(owner, minlength=len(part))
    return means


def shown(top: np.ndarray, n_rows: int, k: int) -> np.ndarray:
    """Returns in how many lists each item row `[n_rows]` int64 is among the first k."""
    rows = top[:, :k]
    return np.bincount(rows[rows > 0], minlength=n_rows)


def coverage(times_shown: np.ndarray) -> float:
    """Returns the share of the catalogue that is in at least one list [0..1].

    Catalogue coverage, Herlocker et al., 2004.

    Args:
        times_shown: Lists that each item of the catalogue is in `[items]`.
    """
    return float((times_shown > 0).mean())


def gini(times_shown: np.ndarray) -> float:
    """Returns the Gini index of what is shown: 0 all items alike, 1 only one of them.

    With the numbers in ascending order, sum of (2 i - n - 1) x_i over (n - 1) sum of x_i
    (Fleder and Hosanagar, 2009; Castells et al., 2015, normalised to reach 1).

    Args:
        times_shown: Lists that each item of the catalogue is in `[items]`.
    """
    n = len(times_shown)
    if n < 2 or not times_shown.any():
        return 0.0
    ascending = np.sort(times_shown).astype(np.float64)
    weights = 2.0 * np.arange(1, n + 1) - n - 1.0
    return float(weights @ ascending / ((n - 1) * ascending.sum()))


def _running_means(values: np.ndarray, top: np.ndarray) -> np.ndarray:
    """Returns the mean `[queries, k]` of `values` over the first 1, 2, … items of each list."""
    is_item = top > 0
    sums = np.cumsum(np.where(is_item, values[top], 0.0), axis=1)
    with np.errstate(invalid="ignore"):
        return np.asarray(sums / np.cumsum(is_item, axis=1))


def _diversity(top: np.ndarray, embeddings: np.ndarray, ks: list[int]) -> np.ndarray:
    """Returns the diversity `[queries, ks]` of each list's first k items.

    The sum of all cosines of n unit vectors is the squared length of their sum, so that no
    pair is ever formed: mean cosine = (|sum|² - n) / (n (n - 1)).
    """
    lengths = np.maximum(np.linalg.norm(embeddings, axis=1, keepdims=True), 1e-12)
    unit = (embeddings / lengths).astype(np.float32)
    # Of an item that the model doesn't know nobody can tell what it is like.
    is_known = (unit != 0).any(axis=1)
    out = np.full((len(top), len(ks)), np.nan)
    size = max(1, _BLOCK_FLOATS // max(1, top.shape[1] * unit.shape[1]))
    for start in range(0, len(top), size):
        rows = top[start : start + size]
        vectors = np.where((rows > 0)[..., None], unit[rows], 0.0)
        sums = np.cumsum(vectors, axis=1, dtype=np.float64)
        counts = np.cumsum((rows > 0) & is_known[rows], axis=1)
        for place, k in enumerate(ks):
            last = min(k, rows.shape[1]) - 1
            n, total = counts[:, last].astype(np.float64), sums[:, last]
            squared = np.einsum("qd,qd->q", total, total)
            with np.errstate(invalid="ignore", divide="ignore"):
                mean = (squared - n) / (n * (n - 1))
            out[start : start + size, place] = np.where(n > 1, 1.0 - mean, np.nan)
    return out
