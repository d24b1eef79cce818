"""Batches of positives with drawn negatives, and of whole impressions.

SampledNegatives   positives, each followed by items drawn from the catalogue
WholeImpressions   impressions, for losses that compare the rows of one
"""

from __future__ import annotations

import dataclasses
import functools
from typing import Any

import numpy as np

from recsys.data.shuffle import Permutation
from recsys.errors import UsageError
from recsys.ragged import ranges
from recsys.tasks.ranking.training.batches import Drawn, RowSource


@dataclasses.dataclass(frozen=True, eq=False)
class SampledNegatives(RowSource):
    """Rows of positives, each followed by `train.negatives_per_row` rows with other items.

    They are a group for losses that compare rows. A drawn item has the label 0. With the expected
    number r of draws of the item per positive, `log_rate = log r` corrects the scores for the
    sampling (logQ): a model's probability is then that an event of the user is of the item, among
    all items of the catalogue.
    """

    @property
    def steps_per_epoch(self) -> int:
        """Number of full batches per epoch."""
        return len(self.events) // self._positives_per_batch

    @property
    def n_negatives(self) -> int:
        """Number of negatives of a positive."""
        return self.train.negatives_per_row

    @property
    def _positives_per_batch(self) -> int:
        return -(-self.batch_size // (1 + self.n_negatives))

    def _drawn(self, step: int) -> Drawn:
        places, n = self.part.rows(self.batch_size), 1 + self.n_negatives
        rows = self._rows_at(step, places // n, self._positives_per_batch)
        random = np.random.default_rng([self.train.seed, 5, step])
        drawn = self._filled(rows, places % n, random.random(self.batch_size)[places])
        if not self.train.loss.reads_group:
            return drawn
        return drawn._replace(group=(places // n).astype(np.int32))

    def held_back(self, rows: np.ndarray) -> Drawn:
        """Returns rows of the log `[n]`, each followed by its negatives."""
        k = 1 + self.n_negatives
        column, uniform = np.tile(np.arange(k), len(rows)), np.random.default_rng(0)
        return self._filled(np.repeat(rows, k), column, uniform.random(k * len(rows)))

    def _filled(self, rows: np.ndarray, column: np.ndarray, uniform: np.ndarray) -> Drawn:
        """Returns rows `[n]` with their own items in `column` 0, else with drawn ones."""
        own = self.events.rows.item_row[rows]
        item_row = np.where(column > 0, self.draw(uniform), own).astype(np.int32)
        return Drawn(rows, column > 0, item_row)

    def draw(self, uniform: np.ndarray) -> np.ndarray:
        """Returns item rows for random numbers in [0, 1) `[n]`."""
        drawn = np.searchsorted(self._cumulative, uniform, side="right")
        return np.minimum(drawn, len(self._cumulative) - 1).astype(np.int32)

    def log_rate(self, drawn: Drawn) -> np.ndarray:
        """Returns the logarithm of the expected number of draws of each item `[n]` float32."""
        log_rate: np.ndarray = self.log_rates[drawn.item_row]
        return log_rate

    @functools.cached_property
    def log_rates(self) -> np.ndarray:
        """Logarithm of the expected number of draws of each item row per positive float32.

        0 for rows that are never drawn.
        """
        share = np.diff(self._cumulative, prepend=0.0)
        expected = np.where(share > 0, share, 1.0) * self.n_negatives
        return np.where(share > 0, np.log(expected), 0.0).astype(np.float32)

    @functools.cached_property
    def _cumulative(self) -> np.ndarray:
        counts = np.maximum(self.events.item_counts(self.inputs.catalogue.n_rows), 1.0)
        weights = self.inputs.catalogue.is_item * counts**self.train.negative_power
        return np.cumsum(weights) / weights.sum()


@dataclasses.dataclass(frozen=True, eq=False)
class WholeImpressions(RowSource):
    """Batches of whole impressions, padded with rows of weight 0.

    An epoch takes the impressions in another order, as many in each batch as fit. Rows without an
    impression are left out, and so is what is longer than a batch.
    """

    def __post_init__(self) -> None:
        if self.events.rows.impression is None:
            raise UsageError(
                "R398",
                "A loss that compares the rows of an impression needs impressions.",
                "Name their column by data.interactions.columns.impression and ingest again, or"
                " set train.loss to binary.",
                "no impressions",
            )
        super().__post_init__()

    @property
    def rows_per_epoch(self) -> int:
        """Number of rows that an epoch takes."""
        return int(self._lengths.sum())

    @property
    def steps_per_epoch(self) -> int:
        """Number of batches per epoch, as in the first one."""
        return self._steps

    @functools.cached_property
    def _steps(self) -> int:
        return len(self._borders(0)) - 1

    def _drawn(self, step: int) -> Drawn:
        epoch, position = divmod(step, self.steps_per_epoch)
        first, end = self._borders_of(epoch)[position : position + 2]
        n = len(self._lengths)
        chosen = self._order(epoch)[np.arange(first, end) % n]
        lengths = self._lengths[chosen]
        rows = np.zeros(self.batch_size, np.int64)
        group = np.full(self.batch_size, -1, np.int32)
        places = ranges(self._starts[chosen], lengths)
        rows[: len(places)] = self._members[places]
        rows[len(places) :] = rows[0]
        group[: len(places)] = np.repeat(np.arange(len(chosen), dtype=np.int32), lengths)
        own = self.part.rows(self.batch_size)
        return Drawn(rows[own], group=group[own])

    def _order(self, epoch: int) -> Permutation:
        return Permutation(len(self._lengths), (self.train.seed, 0, epoch))

    @functools.cached_property
    def _borders_of(self) -> Any:
        return functools.lru_cache(maxsize=2)(self._borders)

    def _borders(self, epoch: int) -> list[int]:
        """Returns the first impression of each batch of an epoch, and the end."""
        n = len(self._lengths)
        order = self._order(epoch)[np.arange(n)] if n else np.zeros(0, np.int64)
        ends = np.cumsum(np.tile(self._lengths[order], 2))
        # Later epochs have as many batches as the first, and begin again if there are too few.
        n_batches = self.__dict__.get("_steps")
        borders, taken = [0], 0
        while borders[-1] < n if n_batches is None else len(borders) <= n_batches:
            end = int(np.searchsorted(ends, taken + self.batch_size, side="right"))
            if borders[-1] < n:
                end = min(end, n)
            borders.append(end)
            taken = int(ends[end - 1])
        return borders

    @functools.cached_property
    def _grouped(self) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
        """Rows of impressions, one after another; their starts and lengths."""
        log, events = self.events.rows, self.events
        rows = events.log_indices(np.arange(len(events)))
        of_user: Any = log.impression
        impression = of_user[rows].astype(np.int64)
        rows, impression = rows[impression > 0], impression[impression > 0]
        key = (log.user_index(rows) << 31) + impression
        order = np.argsort(key, kind="stable")
        starts = np.flatnonzero(np.diff(key[order], prepend=-1))
        lengths = np.diff(np.append(starts, len(order)))
        return rows[order], starts, np.minimum(lengths, self.batch_size)

    @property
    def _members(self) -> np.ndarray:
        return self._grouped[0]

    @property
    def _starts(self) -> np.ndarray:
        return self._grouped[1]

    @property
    def _lengths(self) -> np.ndarray:
        return self._grouped[2]
