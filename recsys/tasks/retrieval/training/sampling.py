"""The candidates of a batch, and the probabilities with which they are drawn.

BatchCandidates   the items with which the queries of a batch are compared
ItemSampler       items drawn by a power of their popularity
inclusion_log_probability   log probability that an item is among the candidates
"""

from __future__ import annotations

import dataclasses
import functools

import numpy as np

from recsys.tasks.config import TrainConfig


class ItemSampler:
    """Draws items of the catalogue with known probabilities.

    An item with c training events is drawn with a probability proportional to
    (c + 1)^power: uniform at power 0; an item without events is drawn sometimes at any
    power (powers of counts for negatives: Mikolov et al., NeurIPS 2013, section 2.2). The
    probability of items without events is also multiplied by `cold`.

    Args:
        counts: Number of training events of each item row `[item rows]`.
        is_item: Whether each row is an item `[item rows]` bool; others are never drawn.
        power: The exponent, 0 … 1.
        cold: Factor for items without events [0..1]; 0: they are never drawn.
    """

    def __init__(
        self, counts: np.ndarray, is_item: np.ndarray, power: float, cold: float = 1.0
    ) -> None:
        self._n_rows = len(counts)
        self._items = np.flatnonzero(is_item & ((counts > 0) | (cold > 0))).astype(np.int32)
        is_cold = counts[self._items] == 0
        self._weights = (counts[self._items] + 1.0) ** power * np.where(is_cold, cold, 1.0)
        self._is_even = power == 0 and (cold == 1 or not is_cold.any())

    def draw(
        self, n: int, random: np.random.Generator, of: np.ndarray | slice = slice(None)
    ) -> np.ndarray:
        """Draws `n` item rows with replacement, and returns those selected by `of` `[m]` int32."""
        if self._is_even or not len(self._items):
            return self._items[random.integers(0, len(self._items), n)[of]]
        places = np.searchsorted(self._cumulated, random.random(n)[of], side="right")
        # The last cumulated weight may be slightly below 1.
        return self._items[np.minimum(places, len(self._items) - 1)]

    @functools.cached_property
    def probability(self) -> np.ndarray:
        """Probability of each item row in a single draw `[item rows]` float64."""
        probability = np.zeros(self._n_rows)
        probability[self._items] = self._weights / self._weights.sum()
        return probability

    @functools.cached_property
    def _cumulated(self) -> np.ndarray:
        return np.cumsum(self._weights) / self._weights.sum()


Sampler = tuple[np.ndarray, int]
"""Probability of each item in a single draw `[items]` float64, and the number of draws."""

_LOG_HALF = -np.log(2.0)


def inclusion_log_probability(*samplers: Sampler) -> np.ndarray:
    """Returns the log probability that at least one draw gives an item `[items]` float64.

    With probability p in each of n draws it is `log(1 - (1 - p)^n)`. Several samplers miss an
    item if each of them does: `log(1 - prod_s (1 - p_s)^n_s)`. This is the `log_q` of
    `recsys.losses.SampledSoftmax`, in which an item counts once, however often it was drawn.
    For rare items it is approximately `log(n p)`, the logarithm of the expected count; for
    items in nearly every batch it is nearly 0.

    It is computed from the logarithm of the miss probability (Mächler, "Accurately computing
    log(1 - exp(-|a|))", 2012), so it is accurate in float64 for p = 1e-300 and for p = 1.

    Args:
        *samplers: Pairs of the items' probabilities in a single draw `[items]` float64, each
            in [0, 1], and the number of draws.

    Returns:
        Log probabilities, at most 0: 0 for an item that is always drawn, minus infinity for
        one that is never drawn (it is in no batch, so its value is unused).

    Raises:
        ValueError: There is no sampler, or a probability or number of draws is invalid.
    """
    if not samplers:
        raise ValueError("There must be at least one sampler.")
    log_miss = np.zeros((), np.float64)
    for probability, n_draws in samplers:
        log_miss = log_miss + _log_miss(np.asarray(probability, np.float64), n_draws)
    with np.errstate(divide="ignore"):
        # Each form avoids cancellation in its range.
        return np.where(
            log_miss > _LOG_HALF, np.log(-np.expm1(log_miss)), np.log1p(-np.exp(log_miss))
        )


def _log_miss(probability: np.ndarray, n_draws: int) -> np.ndarray:
    """Returns the log probability that no draw gives an item `[items]`."""
    if not np.all((probability >= 0) & (probability <= 1)):
        worst = probability[~((probability >= 0) & (probability <= 1))].flat[0]
        raise ValueError(f"Probabilities must be between 0 and 1. Received: {worst!r}.")
    if not n_draws >= 0:
        raise ValueError(f"The number of draws must not be negative. Received: {n_draws!r}.")
    if n_draws == 0:  # Also for probability 1.
        return np.zeros_like(probability)
    with np.errstate(divide="ignore"):
        return n_draws * np.log1p(-probability)


@dataclasses.dataclass(frozen=True, eq=False)
class BatchCandidates:
    """The candidates of a batch: its positives, then the drawn negatives.

    For the full softmax, every item of the catalogue follows the positives instead, padded by
    repeating some. An item counts once in the loss, however often it occurs. With several
    `train.negative_groups`, candidates are ordered by group, and within a group as above: the
    positives of a part of the batch, then its own drawn negatives.
    If `train.cold_negatives` is 0, items without events are never negatives.

    Attributes:
        counts: Number of training events of each item row `[item rows]` int64.
        is_item: Whether each row is an item `[item rows]` bool.
        train: Numbers of positives and negatives.
        multiple: Number of devices, which must divide the number of candidates.
    """

    counts: np.ndarray
    is_item: np.ndarray
    train: TrainConfig
    multiple: int = 1

    def __len__(self) -> int:
        n = len(self._catalogue) if self.is_full else self.train.uniform_negatives
        return self.train.batch_size + n

    def examples_of(self, rows: np.ndarray) -> np.ndarray:
        """Returns the examples whose items are among the candidates `rows` `[k]` int64, ascending.

        Args:
            rows: Indices of some of the candidates `[m]`, ascending.
        """
        return self._kinds(rows)[0]

    def of_batch(
        self, positives: np.ndarray, random: np.random.Generator, rows: np.ndarray
    ) -> np.ndarray:
        """Returns the item rows of some of the candidates `[m]` int32.

        Args:
            positives: Item rows of the batch's events `[batch]`; only those of
                `examples_of(rows)` are used.
            random: Random generator of the batch.
            rows: Indices of the candidates `[m]`, ascending.
        """
        own, drawn = self._kinds(rows)
        if self.is_full:
            return np.concatenate([positives[own], self._catalogue[drawn]])
        negatives = self._sampler.draw(self.train.uniform_negatives, random, drawn)
        items = np.concatenate([positives[own], negatives])
        if self.train.negative_groups == 1:
            return items
        by_group = np.empty_like(items)
        by_group[np.argsort(self._by_kind[rows])] = items
        return by_group

    def _kinds(self, rows: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        """Returns indices of positives and of negatives for the candidates `rows`."""
        if self.train.negative_groups > 1:
            rows = np.sort(self._by_kind[rows])
        first = np.searchsorted(rows, self.train.batch_size)
        return rows[:first], rows[first:] - self.train.batch_size

    @functools.cached_property
    def _by_kind(self) -> np.ndarray:
        """Index of each candidate in an order with all positives first."""
        n, groups = self.train.batch_size, self.train.negative_groups
        kinds = np.split(np.arange(len(self)), [n])
        parts = [kind.reshape(groups, len(kind) // groups) for kind in kinds]
        return np.concatenate(parts, axis=1).ravel()

    def log_q(self, positives: Sampler) -> np.ndarray:
        """Returns the logQ correction of each item row's scores `[item rows]` float32.

        It is the log probability that the item is among the candidates of a query's group,
        times `train.log_q_correction`. An item without events has the weight
        `train.cold_negatives`.

        Args:
            positives: Sampler of the positives of a whole batch.
        """
        if self.is_full:
            return self._log_of_counting_less.astype(np.float32)
        samplers = positives, (self._sampler.probability, self.train.uniform_negatives)
        groups = self.train.negative_groups
        log_q = inclusion_log_probability(*((share, n // groups) for share, n in samplers))
        # An item that is in no batch has an infinite value, which is unused.
        log_q = np.where(np.isfinite(log_q), log_q, 0.0)
        log_q = log_q * self.train.log_q_correction + self._log_of_counting_less
        return log_q.astype(np.float32)

    @property
    def _log_of_counting_less(self) -> np.ndarray:
        """Correction that lowers the weight of items without events `[item rows]`."""
        share = self.train.cold_negatives
        return np.where(self.counts > 0, 0.0, -np.log(share) if share else 0.0)

    @property
    def event_shares(self) -> np.ndarray:
        """Share of each item row in the training events `[item rows]` float64."""
        return self.counts / self.counts.sum()

    @functools.cached_property
    def _sampler(self) -> ItemSampler:
        train = self.train
        return ItemSampler(self.counts, self.is_item, train.negative_power, train.cold_negatives)

    @property
    def is_full(self) -> bool:
        """Whether the negatives are the whole catalogue."""
        return self.train.loss.negatives == "catalogue"

    @functools.cached_property
    def _catalogue(self) -> np.ndarray:
        """All possible negatives, padded by repeating the first ones `[n]` int32."""
        is_negative = self.is_item & ((self.counts > 0) | (self.train.cold_negatives > 0))
        items = np.flatnonzero(is_negative).astype(np.int32)
        return np.resize(items, -(-len(items) // self.multiple) * self.multiple)
