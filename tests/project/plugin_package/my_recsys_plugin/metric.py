"""A metric that counts a find only among the first places of a list."""

from typing import ClassVar

import numpy as np
from pydantic import PositiveInt

from recsys import register_metric
from recsys.metrics import Metric, RankedLists


@register_metric("found_early")
class FoundEarly(Metric):
    """Whether any positive is in the first places."""

    title: ClassVar[str] = "found early"
    meaning: ClassVar[str] = "queries with a find in the first places of the list"

    places: PositiveInt = 3
    """How many places."""

    def per_query(self, lists: RankedLists, k: int) -> np.ndarray:
        return (lists.sum_by_query(lists.ranks <= min(k, self.places)) > 0).astype(float)
