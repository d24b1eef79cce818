"""What an answer rests on, and the answer where nothing is known: what most people took."""

from __future__ import annotations

import numpy as np

from recsys.data.histories import ServingHistories

USER, HISTORY, FEATURES, POPULARITY = "user", "history", "features", "popularity"
SOURCES = (USER, HISTORY, FEATURES, POPULARITY)
"""The strongest first: a trained row of the user's own; items of the history with a
trained row; features; nothing, and so what is popular."""


def popularity_shares(histories: ServingHistories, is_item: np.ndarray) -> np.ndarray:
    """Returns the share that each item has in the positives of all users `[item rows]` float32.

    Of all time, before the cut and after it: that is the order which the baseline
    `popularity` gives everybody, it needs no moment that "lately" is reckoned from, and an
    old bundle's answer doesn't wear away. Of equal items the smaller row comes first.

    Args:
        histories: What every user did.
        is_item: Which item rows are items `[item rows]` bool; others have 0.
    """
    counts = np.bincount(histories.item_rows, minlength=len(is_item))
    shares = np.where(is_item, counts, 0) / max(1, len(histories.item_rows))
    return shares.astype(np.float32)
