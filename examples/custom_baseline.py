"""A baseline of one's own: popularity that fades, event by event.

In a config: `plugins: [examples.custom_baseline]` and
`evaluate: {baselines: [popularity, {type: fading_popularity, half_life: 10000}]}`.
"""

from typing import ClassVar

import numpy as np
from pydantic import PositiveFloat

import recsys
from recsys.tasks.retrieval.judging.baselines import BaselineData, SameForAll


@recsys.register_baseline("fading_popularity")
class FadingPopularity(recsys.Baseline):
    """Counts an item's events; each counts half as much after some more of the log."""

    title: ClassVar[str] = "fading popularity"

    half_life: PositiveFloat = 10_000.0
    """Later events after which one counts half as much."""

    def fit(self, data: BaselineData) -> SameForAll:
        """Returns the fading counts, the same for all users."""
        rows = data.train.item_row[:]
        order = np.argsort(data.train.timestamp[:], kind="stable")
        age = np.empty(len(rows))
        age[order] = np.arange(len(rows))[::-1]
        counts = np.bincount(rows, 0.5 ** (age / self.half_life), len(data.is_item))
        return SameForAll(np.where(data.is_item, counts, 0.0).astype(np.float32))
