"""A metric of one's own: recall to which rare items count more.

In a config: `plugins: [examples.custom_metric]` and `evaluate: {metrics: [recall, rare_recall]}`.
"""

import numpy as np

import recsys


@recsys.register_metric("rare_recall")
class RareRecall(recsys.Metric):
    """Recall where each positive weighs as many bits as its item's popularity tells."""

    title = "rare recall"
    meaning = "recall that counts rare items more"

    power: float = 1.0
    """Exponent of the weights; 0: plain recall."""

    def per_query(self, lists: recsys.RankedLists, k: int) -> np.ndarray:
        """Returns the values `[n_queries]`."""
        weight = lists.items.information[lists.rows] ** self.power
        hits = lists.sum_by_query(np.where(lists.ranks <= k, weight, 0.0))
        with np.errstate(invalid="ignore"):
            return hits / lists.sum_by_query(weight)
