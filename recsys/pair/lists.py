"""What a ranker reads of a retriever's list: the rank of an item, and its score within the list.

Training, judging and serving compute these features here, from rank and score alone: a retriever
that is trained again orders alike, while its scores may have another scale.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np

UNKNOWN = -1.0
"""Rank of an item whose list is unknown."""
_MOST = 5.0
"""Highest magnitude of a normalised score."""


def normalised(scores: Any, xp: Any = np) -> Any:
    """Returns scores in standard deviations from the mean of their list, 0 at padding.

    Args:
        scores: Scores of lists `[…, items]` float32; -inf is padding.
        xp: `numpy` or `keras.ops`.
    """
    is_there = scores > -math.inf
    n = xp.maximum(xp.sum(xp.where(is_there, 1.0, 0.0), axis=-1, keepdims=True), 1.0)
    mean = xp.sum(xp.where(is_there, scores, 0.0), axis=-1, keepdims=True) / n
    centred = xp.where(is_there, scores - mean, 0.0)
    deviation = xp.sqrt(xp.sum(centred * centred, axis=-1, keepdims=True) / n)
    return xp.where(deviation > 0.0, centred / xp.maximum(deviation, 1e-12), 0.0)


def list_features(rank: Any, score: Any, n_candidates: int, xp: Any = np) -> Any:
    """Returns the input `retriever` `[…, 3]` float32 of a ranker.

    It has 1 - log(rank) / log(n_candidates + 1) and the score, clipped to ±5, both 0 for an item
    outside the list; and 1 for an item in the list, -1 for others. Of an unknown list it is 0.

    Args:
        rank: Rank of each item in the list of its query `[…]` float32, from 1; 0: it isn't in
            the list; `UNKNOWN`: the list is unknown.
        score: Its `normalised` score `[…]` float32; only read for items in the list.
        n_candidates: Length of a full list.
        xp: `numpy` or `keras.ops`.
    """
    is_listed = rank > 0.0
    place = 1.0 - xp.log(xp.maximum(rank, 1.0)) / math.log(n_candidates + 1)
    parts = [
        xp.where(is_listed, place, 0.0),
        xp.where(is_listed, xp.clip(score, -_MOST, _MOST), 0.0),
        xp.where(is_listed, 1.0, xp.where(rank >= 0.0, -xp.ones_like(score), 0.0)),
    ]
    return xp.stack(parts, axis=-1)
