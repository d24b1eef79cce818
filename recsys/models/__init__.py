"""Retrieval models, and the folder of a trained model.

`RetrievalModel` is the base class; `TwoTower` is the built-in model.
"""

from typing import TYPE_CHECKING

from recsys.contents import lazy_contents

if TYPE_CHECKING:
    from recsys.models.encoders import HistoryEncoder
    from recsys.models.inputs import ModelInputs
    from recsys.models.retrieval_model import RetrievalModel, model_class
    from recsys.models.saved import TrainedModel, load_model, save_model
    from recsys.models.spec import FeatureSpec, ModelSpec
    from recsys.models.two_tower import TwoTower

__all__ = [
    "FeatureSpec",
    "HistoryEncoder",
    "ModelInputs",
    "ModelSpec",
    "RetrievalModel",
    "TrainedModel",
    "TwoTower",
    "load_model",
    "model_class",
    "save_model",
]
__getattr__, __dir__ = lazy_contents(__name__, __file__)
