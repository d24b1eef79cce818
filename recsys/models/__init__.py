"""Models over sharded tables.

`LookupModel` is the base class, `RetrievalModel` that of retrieval models and `RankingModel` that
of ranking models.
"""

from typing import TYPE_CHECKING

from recsys.system.lean_imports import lazy_contents

if TYPE_CHECKING:
    from recsys.models.encoders import HistoryEncoder as HistoryEncoder
    from recsys.models.inputs import FeatureSpec as FeatureSpec
    from recsys.models.inputs import ModelInputs as ModelInputs
    from recsys.models.inputs import ModelSpec as ModelSpec
    from recsys.models.lookups import LookupModel as LookupModel
    from recsys.models.lookups import model_class as model_class
    from recsys.models.ranking_model import RankingModel as RankingModel
    from recsys.models.retrieval_model import RetrievalModel as RetrievalModel
    from recsys.models.terms import Term as Term
    from recsys.models.two_tower import TwoTower as TwoTower

_NAMES = {
    "recsys.models.encoders": "HistoryEncoder",
    "recsys.models.inputs": "FeatureSpec ModelInputs ModelSpec",
    "recsys.models.lookups": "LookupModel model_class",
    "recsys.models.ranking_model": "RankingModel",
    "recsys.models.retrieval_model": "RetrievalModel",
    "recsys.models.terms": "Term",
    "recsys.models.two_tower": "TwoTower",
}
__all__, __getattr__, __dir__ = lazy_contents(__name__, _NAMES)
