"""The items of a batch that queries are compared with, and how probably each is there."""

from __future__ import annotations

import functools

import numpy as np

from recsys.config import TrainConfig
from recsys.data.hard_negatives import HardNegatives
from recsys.data.inclusion import inclusion_log_probability
from recsys.data.item_sampler import ItemSampler


class Candidates:
    """The candidates of a batch: its positives, then the drawn negatives, then the hard ones.

    For the full softmax every item of the catalogue follows the positives instead, some
    of them twice to fill up; an item counts once in the loss, however often it is there.

    Args:
        counts: Training events of each item row `[item rows]` int64.
        is_item: Which of the rows are items `[item rows]` bool.
        train: Numbers of positives and negatives.
        hard: The lists of the hard negatives; None: there are none yet, and as many
            items are drawn evenly, so that all batches of a run have one shape.
        multiple: The number of candidates must be a multiple of this (devices).
    """

    def __init__(
        self,
        counts: np.ndarray,
        is_item: np.ndarray,
        train: TrainConfig,
        hard: HardNegatives | None = None,
        multiple: int = 1,
    ) -> None:
        self._counts, self._is_item = counts, is_item
        self._train, self._multiple = train, multiple
        self._hard = HardNegatives.none_yet(is_item) if hard is None else hard
        self._n_hard = train.hard_negatives.count
        self._sampler = ItemSampler(counts, is_item, train.negative_power)

    def __len__(self) -> int:
        if self._is_full:
            return self._train.batch_size + len(self._catalogue)
        return self._train.batch_size + self._train.uniform_negatives + self._n_hard

    def of_batch(self, positives: np.ndarray, random: np.random.Generator) -> np.ndarray:
        """Returns the candidates' item rows `[candidates]` int32.

        Args:
            positives: Item rows of the batch's events `[batch]`.
            random: Source of randomness of the batch.
        """
        if self._is_full:
            return np.concatenate([positives, self._catalogue])
        drawn = self._sampler.draw(self._train.uniform_negatives, random)
        return np.concatenate([positives, drawn, self._hard.draw(positives, self._n_hard, random)])

    @functools.cached_property
    def log_q(self) -> np.ndarray:
        """Log probability that an item is among a batch's candidates `[item rows]` float32."""
        if self._is_full:
            return np.zeros(len(self._counts), np.float32)
        shares = self._counts / self._counts.sum()
        samplers = [
            (shares, self._train.batch_size),
            (self._sampler.probability, self._train.uniform_negatives),
        ]
        if self._n_hard:
            samplers.append((self._hard.probability(shares), self._n_hard))
        log_q = inclusion_log_probability(*samplers)
        # What is in no batch has no logarithm, and needs none.
        return np.where(np.isfinite(log_q), log_q, 0.0).astype(np.float32)

    @property
    def _is_full(self) -> bool:
        return self._train.loss.negatives == "catalogue"

    @functools.cached_property
    def _catalogue(self) -> np.ndarray:
        """Every item, from the first on again to fill up `[items and more]` int32."""
        items = np.flatnonzero(self._is_item).astype(np.int32)
        return np.resize(items, -(-len(items) // self._multiple) * self._multiple)
