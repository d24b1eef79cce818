"""Hard negatives: the items that the model itself finds close to an item.

A list is drawn from the last index, as ANCE does (Xiong et al., ICLR 2021),
once an epoch. The closest items are often liked as well, so the first few are left out,
and those whose similarity to the positive is above a share of the highest one there can
be, 1 (positive-aware mining: Moreira et al., "NV-Retriever", 2024).
"""

from __future__ import annotations

import numpy as np

from recsys.config import HardNegativesConfig
from recsys.data.hard_negatives import HardNegatives

_BLOCK_SCORES = 1 << 24
"""Similarities held at a time; 64 MiB of float32."""
_GROUP = 32


def mine(vectors: np.ndarray, is_item: np.ndarray, config: HardNegativesConfig) -> HardNegatives:
    """Returns for each item the items from place `skip` + 1 to `skip` + `pool` by cosine.

    Exact, by blocks: memory grows with the catalogue, not with its square.

    Args:
        vectors: Item vectors of the last index `[item rows, dim]`.
        is_item: Which rows are items `[item rows]` bool; others are in no list.
        config: Size of the lists, and what is left out of them.
    """
    items = np.flatnonzero(is_item).astype(np.int32)
    directions = _directions(vectors[items])
    skip = min(config.skip, len(items) - 1)
    pool = min(config.pool, len(items) - 1 - skip)
    if pool <= 0:
        return HardNegatives.none_yet(is_item)
    rows = np.zeros((len(vectors), pool), np.int32)
    lengths = np.zeros(len(vectors), np.int32)
    size = max(1, _BLOCK_SCORES // len(items))
    for start in range(0, len(items), size):
        of = np.arange(start, min(start + size, len(items)))
        scores = directions[of] @ directions.T
        scores[np.arange(len(of)), of] = -np.inf
        places, similarity = _best(scores, skip + pool)
        n_close = np.maximum((similarity > config.guard).sum(axis=1), skip)
        _fill(rows, lengths, items[of], items[places], n_close)
    return HardNegatives(rows, lengths, items)


def _fill(
    rows: np.ndarray, lengths: np.ndarray, of: np.ndarray, nearest: np.ndarray, n_close: np.ndarray
) -> None:
    """Writes the lists of the items `of` `[b]`: `nearest` without its first `n_close`."""
    n = np.minimum(nearest.shape[1] - n_close, rows.shape[1])
    place = np.arange(rows.shape[1])
    shifted = np.minimum(place + n_close[:, None], nearest.shape[1] - 1)
    found = np.take_along_axis(nearest, shifted, axis=1)
    rows[of], lengths[of] = np.where(place < n[:, None], found, 0), n


def _directions(vectors: np.ndarray) -> np.ndarray:
    """Returns unit vectors `[n, dim]` float32; a zero vector stays zero."""
    norms = np.linalg.norm(vectors.astype(np.float32), axis=1, keepdims=True)
    return (vectors / np.where(norms > 0, norms, 1.0)).astype(np.float32)


def _best(scores: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    """Returns the places and values of the `k` highest scores of each row, the best first.

    The k highest are in the k groups with the highest maxima, and maxima are found
    several times faster than a part of all scores is sorted.

    Args:
        scores: Scores `[b, n]`.
        k: How many, `n` at the most.
    """
    n_groups = scores.shape[1] // _GROUP
    if n_groups < 4 * k:
        return _sorted_best(scores, np.broadcast_to(np.arange(scores.shape[1]), scores.shape), k)
    grouped = scores[:, : n_groups * _GROUP].reshape(len(scores), _GROUP, n_groups)
    groups = np.argpartition(grouped.max(axis=1), n_groups - k, axis=1)[:, n_groups - k :]
    # Group g has the places g, g + n_groups, …; what is left over is looked at as it is.
    inside = (groups[:, :, None] + np.arange(_GROUP) * n_groups).reshape(len(scores), -1)
    rest = np.arange(n_groups * _GROUP, scores.shape[1])
    places = np.concatenate([inside, np.broadcast_to(rest, (len(scores), len(rest)))], axis=1)
    return _sorted_best(np.take_along_axis(scores, places, axis=1), places, k)


def _sorted_best(scores: np.ndarray, places: np.ndarray, k: int) -> tuple[np.ndarray, np.ndarray]:
    chosen = np.argpartition(scores, scores.shape[1] - k, axis=1)[:, scores.shape[1] - k :]
    values = np.take_along_axis(scores, chosen, axis=1)
    places = np.take_along_axis(places, chosen, axis=1)
    # Of equals, the smaller row first, whatever order the partition left them in.
    order = np.lexsort((places, -values), axis=1)
    return np.take_along_axis(places, order, axis=1), np.take_along_axis(values, order, axis=1)
