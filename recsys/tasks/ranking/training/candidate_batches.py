"""Batches of rows with negatives from a retriever's lists, for the ranker of a pair."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from recsys.data.candidates import Candidates
from recsys.tasks.ranking.training.batches import Drawn
from recsys.tasks.ranking.training.other_batches import SampledNegatives


@dataclasses.dataclass(frozen=True, eq=False)
class CandidateNegatives(SampledNegatives):
    """Rows, with label 1 or 0, each followed by its negatives.

    They are the items that `recsys.data.candidates` has for the row; for other rows, which the
    retriever was trained on, as many items drawn from the catalogue. `log_rate` corrects for the
    draws as in `SampledNegatives`, here of the item and the row.
    """

    @property
    def n_negatives(self) -> int:
        """Number of negatives of a row."""
        return self._candidates.n_negatives

    @property
    def _candidates(self) -> Candidates:
        candidates: Any = self.events.candidates
        return candidates

    def _filled(self, rows: np.ndarray, column: np.ndarray, uniform: np.ndarray) -> Drawn:
        drawn, listed = super()._filled(rows, column, uniform), self._candidates.of(rows, column)
        random: Any = drawn.item_row
        item_row = np.where(listed.is_there, listed.item_row, random)
        return drawn._replace(item_row=item_row, listed=listed)

    def log_rate(self, drawn: Drawn) -> np.ndarray:
        """Returns the logarithm of the expected number of draws of each item `[n]` float32."""
        listed: Any = drawn.listed
        return np.where(listed.is_there, listed.log_rate, super().log_rate(drawn))
