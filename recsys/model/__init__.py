"""The two-tower model, and the folder that it is kept in."""

from recsys.model.saved import SavedModel, load_model, save_model
from recsys.model.spec import FeatureSpec, ModelSpec
from recsys.model.tables import model_tables
from recsys.model.tower_inputs import TowerInputs
from recsys.model.two_tower import TwoTower

__all__ = [
    "FeatureSpec",
    "ModelSpec",
    "SavedModel",
    "TowerInputs",
    "TwoTower",
    "load_model",
    "model_tables",
    "save_model",
]
