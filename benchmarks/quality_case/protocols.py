"""The published protocols, as their papers define them."""

from __future__ import annotations

from collections.abc import Callable

import numpy as np

from benchmarks.quality_case.data_sets import Split

Metrics = dict[str, float]
_BLOCK = 512


def among_all(split: Split, user: np.ndarray, item: np.ndarray) -> Metrics:
    """Returns Recall@k and NDCG@k over all items but those of training.

    As NGCF and LightGCN count: recall over all relevant items of a user, the ideal DCG
    over the first min(k, relevant) places, means over the users with a relevant item.

    Args:
        split: What was held out.
        user: User vectors `[users, dim]` float32.
        item: Item vectors `[items, dim]` float32.
    """
    users = np.flatnonzero(np.diff(split.relevant.offsets))
    most = max(split.k)
    gain = 1.0 / np.log2(np.arange(2, most + 2))
    sums = {f"{name}@{k}": 0.0 for k in split.k for name in ("Recall", "NDCG")}
    for start in range(0, len(users), _BLOCK):
        block = users[start : start + _BLOCK]
        for one, top in zip(block, _top(split, user, item, block, most), strict=True):
            relevant = split.relevant[one]
            hits = np.isin(top, relevant)
            for k in split.k:
                ideal = gain[: min(k, len(relevant))].sum()
                sums[f"Recall@{k}"] += hits[:k].sum() / len(relevant)
                sums[f"NDCG@{k}"] += (hits[:k] * gain[:k]).sum() / ideal
    return {name: total / len(users) for name, total in sums.items()}


def one_among_all(split: Split, user: np.ndarray, item: np.ndarray) -> Metrics:
    """Returns HR@k and NDCG@k of the one item that was held out, among all the user hasn't."""
    found = among_all(split, user, item)
    return {name.replace("Recall", "HR"): value for name, value in found.items()}


def among_given(split: Split, user: np.ndarray, item: np.ndarray) -> Metrics:
    """Returns HR@k and NDCG@k of an item among given negatives; a tie counts against it.

    A negative that is the item itself, as some published lists have, is left out.
    """
    if split.candidates is None or split.users is None:
        raise ValueError("The split must name the candidates of each case.")
    scores = np.einsum("ncd,nd->nc", item[split.candidates], user[split.users])
    is_other = split.candidates != split.candidates[:, -1:]
    rank = 1 + ((scores >= scores[:, -1:]) & is_other).sum(axis=1)
    gain = 1.0 / np.log2(rank + 1)
    return {
        f"{name}@{k}": float(np.where(rank <= k, value, 0.0).mean())
        for k in split.k
        for name, value in (("HR", np.ones(len(rank))), ("NDCG", gain))
    }


PROTOCOLS: dict[str, Callable[[Split, np.ndarray, np.ndarray], Metrics]] = {
    "ranked among all": among_all,
    "ranked among all, one item": one_among_all,
    "ranked among given negatives": among_given,
}


def _top(split: Split, user: np.ndarray, item: np.ndarray, users: np.ndarray, k: int) -> np.ndarray:
    """Returns the best items of `users` `[b, k]`, without those that they have seen."""
    scores = user[users] @ item.T
    for row, one in enumerate(users):
        scores[row, (split.train if split.seen is None else split.seen)[one]] = -np.inf
    best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1)
