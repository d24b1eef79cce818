"""What is recommended beside what is popular, for a picture."""

from __future__ import annotations

from typing import Any

import numpy as np

_MOST_POINTS = 2_000


def exposure(times_shown: np.ndarray, counts: np.ndarray, k: int) -> dict[str, Any]:
    """Returns how often items are recommended, by how popular they are.

    Args:
        times_shown: Lists that each item of the catalogue is in `[items]`.
        counts: Training positives of each `[items]`.
        k: Places of a list that count.

    Returns:
        `k`; `points`: training positives and lists of single items, the most shown ones
        and, of more than 2,000, as many others drawn at random; `bins`: items whose
        training positives are 0, 1, 2 to 3, 4 to 7, …, with their shares of the training
        positives and of the places in lists.
    """
    return {"k": k, "points": _points(times_shown, counts), "bins": _bins(times_shown, counts)}


def _points(times_shown: np.ndarray, counts: np.ndarray) -> list[list[int]]:
    order = np.argsort(-times_shown, kind="stable")
    most, others = order[: _MOST_POINTS // 2], order[_MOST_POINTS // 2 :]
    n_others = min(len(others), _MOST_POINTS - len(most))
    drawn = np.random.default_rng(0).choice(others, n_others, replace=False)
    chosen = np.concatenate([most, np.sort(drawn)]).astype(np.int64)
    return [[int(counts[i]), int(times_shown[i])] for i in chosen]


def _bins(times_shown: np.ndarray, counts: np.ndarray) -> list[dict[str, Any]]:
    number = np.where(counts > 0, 1 + np.floor(np.log2(np.maximum(counts, 1))), 0).astype(np.int64)
    n_bins = int(number.max(initial=0)) + 1
    items, events, lists = (
        np.bincount(number, weights, n_bins) for weights in (None, counts, times_shown)
    )
    return [
        {
            "from": 2 ** (i - 1) if i else 0,
            "to": 2**i - 1 if i else 0,
            "items": int(items[i]),
            "training_share": float(events[i] / max(1.0, events.sum())),
            "recommended_share": float(lists[i] / max(1.0, lists.sum())),
        }
        for i in range(n_bins)
        if items[i]
    ]
