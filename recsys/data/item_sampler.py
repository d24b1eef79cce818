"""Items drawn from the catalogue, by a power of their popularity."""

from __future__ import annotations

import functools

import numpy as np


class ItemSampler:
    """Draws items of the catalogue, with probabilities that are known exactly.

    An item with c training events is drawn with a probability proportional to
    (c + 1)^power: evenly at power 0, and an item without events now and then at any
    power (powers of counts for negatives: Mikolov et al., NeurIPS 2013, section 2.2).

    Args:
        counts: Training events of each item row `[item rows]`.
        is_item: Which of the rows are items `[item rows]` bool; others are never drawn.
        power: The power, 0 … 1.
    """

    def __init__(self, counts: np.ndarray, is_item: np.ndarray, power: float) -> None:
        self._n_rows, self._power = len(counts), power
        self._items = np.flatnonzero(is_item).astype(np.int32)
        self._weights = (counts[self._items] + 1.0) ** power

    def draw(self, n: int, random: np.random.Generator) -> np.ndarray:
        """Returns `n` item rows `[n]` int32, drawn with replacement."""
        if self._power == 0 or not len(self._items):
            return self._items[random.integers(0, len(self._items), n)]
        found = np.searchsorted(self._cumulated, random.random(n), side="right")
        # The last border is 1 but for rounding.
        return self._items[np.minimum(found, len(self._items) - 1)]

    @functools.cached_property
    def probability(self) -> np.ndarray:
        """Probability of each item row in one draw `[item rows]` float64."""
        probability = np.zeros(self._n_rows)
        probability[self._items] = self._weights / self._weights.sum()
        return probability

    @functools.cached_property
    def _cumulated(self) -> np.ndarray:
        return np.cumsum(self._weights) / self._weights.sum()
