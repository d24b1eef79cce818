"""Batches of rows with negatives from a retriever's lists, for the ranker of a pair."""

from __future__ import annotations

import dataclasses
from typing import Any

import numpy as np

from recsys.data.candidates import Candidates
from recsys.models.calibration import logistic
from recsys.tasks.ranking.rows import known
from recsys.tasks.ranking.training.batches import Drawn
from recsys.tasks.ranking.training.other_batches import SampledNegatives
from recsys.tasks.ranking.training.training_rows import TrainingRows

_MOST_ROWS = 100_000


@dataclasses.dataclass(frozen=True, eq=False)
class CandidateNegatives(SampledNegatives):
    """Rows without those of label 0, each followed by its negatives.

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


def list_prior(events: TrainingRows) -> np.ndarray:
    """Returns what a retriever alone says of the first label: log odds, as coefficients `[4]`.

    They are factors of the entries of `retriever`, and a constant, of a logistic regression on the
    rows with lists and their negatives. A ranker that starts from them orders as its retriever.
    """
    candidates: Any = events.candidates
    chosen = np.flatnonzero(~np.isin(candidates.rows, events.held))
    chosen = chosen[:: 1 + len(chosen) // _MOST_ROWS]
    label = np.zeros(candidates.item_row[chosen].shape)
    own = np.asarray(events.rows.labels[events.first_label])
    label[:, 0] = known(own[candidates.rows[chosen]])
    of_lists = candidates.retriever[chosen].reshape(label.size, -1)
    columns = np.concatenate([of_lists, np.ones((label.size, 1))], axis=1)
    log_rate = candidates.log_rate[chosen].ravel() + events.log_rate
    # Newton's method starts near the solution, where the slopes don't vanish.
    level = log_rate.mean() - np.log(1 + label.size / max(np.nansum(label), 1.0))
    found = logistic(columns, label.ravel(), level - log_rate)
    return found + level * (np.arange(len(found)) == len(found) - 1)
