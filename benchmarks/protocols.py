"""The published protocols: metrics of user and item vectors, as their papers define them."""

from __future__ import annotations

from collections.abc import Callable, Iterator

import numpy as np

from benchmarks.public_splits import Split

Metrics = dict[str, float]
_BLOCK = 512


def measure(split: Split, user: np.ndarray, item: np.ndarray) -> Metrics:
    """Returns the metrics of a split's protocol, at each of its cut-offs.

    Args:
        split: What was held out.
        user: User vectors `[users, dim]` float32.
        item: Item vectors `[items, dim]` float32.
    """
    return _PROTOCOLS[split.protocol](split, user, item)


def full_ranking(split: Split, user: np.ndarray, item: np.ndarray) -> Metrics:
    """Returns metrics of the best items but those that are masked.

    As NGCF and LightGCN count: recall over all relevant items of a user, the ideal DCG
    over the first min(k, relevant) places, means over the users with a relevant item.
    """
    users = np.flatnonzero(np.diff(split.relevant.offsets))
    k_max = min(max(split.k), len(item))
    gain = 1.0 / np.log2(np.arange(2, max(split.k) + 2))
    ideal = np.cumsum(gain)
    sums: Metrics = {}
    for rows in _blocks(users):
        scores = user[rows] @ item.T
        _mask(split, rows, scores)
        top = _top(scores, k_max)
        is_relevant = np.zeros(scores.shape, bool)
        for place, row in enumerate(rows):
            is_relevant[place, split.relevant[row]] = True
        is_relevant &= scores > -np.inf
        hits = np.take_along_axis(is_relevant, top, axis=1)
        n_relevant = np.diff(split.relevant.offsets)[rows]
        for k in split.k:
            of_k = hits[:, :k]
            n_hits, dcg = of_k.sum(axis=1), of_k @ gain[: of_k.shape[1]]
            values = {
                "Recall": n_hits / n_relevant,
                "NDCG": dcg / ideal[np.minimum(n_relevant, k) - 1],
                "Precision": n_hits / k,
                "HR": n_hits > 0,
            }
            for name, of_users in values.items():
                key = f"{name}@{k}"
                sums[key] = sums.get(key, 0.0) + float(of_users.sum())
    return {name: total / len(users) for name, total in sums.items()}


def held_out_among_all(split: Split, user: np.ndarray, item: np.ndarray) -> Metrics:
    """Returns metrics of the item that was held out, among all but those that are masked."""
    users = np.flatnonzero(np.diff(split.relevant.offsets))
    ranks = []
    for rows in _blocks(users):
        scores = user[rows] @ item.T
        place, held_out = np.arange(len(rows)), split.relevant.items[split.relevant.offsets[rows]]
        own = scores[place, held_out].copy()
        _mask(split, rows, scores)
        scores[place, held_out] = -np.inf
        ranks.append(1 + (scores >= own[:, None]).sum(axis=1))
    return _of_ranks(np.concatenate(ranks), split.k)


def held_out_among_given(split: Split, user: np.ndarray, item: np.ndarray) -> Metrics:
    """Returns metrics of the item that was held out, among the negatives of its case.

    A negative that is the item itself, as some published lists have, is left out.
    """
    if split.candidates is None or split.users is None:
        raise ValueError("The split must name the candidates of each case.")
    ranks = []
    for cases in _blocks(np.arange(len(split.users))):
        candidates = split.candidates[cases]
        scores = np.einsum("ncd,nd->nc", item[candidates], user[split.users[cases]])
        is_other = candidates != candidates[:, -1:]
        ranks.append(1 + ((scores >= scores[:, -1:]) & is_other).sum(axis=1))
    return _of_ranks(np.concatenate(ranks), split.k)


_PROTOCOLS: dict[str, Callable[[Split, np.ndarray, np.ndarray], Metrics]] = {
    "fullrank": full_ranking,
    "loo_full": held_out_among_all,
    "loo_neg": held_out_among_given,
}


def _of_ranks(rank: np.ndarray, ks: tuple[int, ...]) -> Metrics:
    """Returns the metrics of one relevant item a case; a tie counts against it.

    Args:
        rank: Its rank in each case `[cases]`, from 1 on.
        ks: Cut-offs.
    """
    metrics = {}
    for k in ks:
        is_hit = rank <= k
        metrics[f"HR@{k}"] = float(is_hit.mean())
        metrics[f"NDCG@{k}"] = float(np.where(is_hit, 1.0 / np.log2(rank + 1), 0.0).mean())
    return {**metrics, "MRR": float((1.0 / rank).mean())}


def _blocks(numbers: np.ndarray) -> Iterator[np.ndarray]:
    for start in range(0, len(numbers), _BLOCK):
        yield numbers[start : start + _BLOCK]


def _mask(split: Split, rows: np.ndarray, scores: np.ndarray) -> None:
    for place, row in enumerate(rows):
        scores[place, split.masked[row]] = -np.inf
    if split.ranked is not None:
        scores[:, ~split.ranked] = -np.inf


def _top(scores: np.ndarray, k: int) -> np.ndarray:
    """Returns the places of the best scores of each row `[b, k]`, the best first."""
    best = np.argpartition(-scores, k - 1, axis=1)[:, :k]
    order = np.argsort(-np.take_along_axis(scores, best, axis=1), axis=1, kind="stable")
    return np.take_along_axis(best, order, axis=1)
