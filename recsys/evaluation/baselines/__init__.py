"""What a model is compared with: recommenders that are fitted in seconds.

Each learns from the training events, and knows of a query's user what the model knows:
all that the user did before it.

    popularity          what was taken most
    recent_popularity   what was taken most lately
    item_knn            what was taken by those who took the same
    ials                matrix factorisation by implicit ALS
"""

from __future__ import annotations

from collections.abc import Callable

from recsys.config import BaselineName
from recsys.evaluation.baselines.evidence import Baseline, BaselineData, LeftOutError
from recsys.evaluation.baselines.ials import Ials
from recsys.evaluation.baselines.item_knn import ItemKnn
from recsys.evaluation.baselines.popularity import popularity, recent_popularity

__all__ = ["Baseline", "BaselineData", "LeftOutError", "fit"]

_MAKERS: dict[BaselineName, Callable[[BaselineData], Baseline]] = {
    "popularity": popularity,
    "recent_popularity": recent_popularity,
    "item_knn": ItemKnn,
    "ials": Ials,
}


def fit(name: BaselineName, data: BaselineData) -> Baseline:
    """Fits a baseline.

    Args:
        name: Which one.
        data: What it learns from.

    Raises:
        LeftOutError: It can't be had of these data; the text says why.
    """
    return _MAKERS[name](data)
