"""A pair of small models: a retriever, and a ranker in its folder."""

import json

from row_worlds import ingested, shown
from training_runs import train_here

from recsys.pair.config import PairStage, ranker_stage
from recsys.pair.folder import RANKER, write_pair

FEATURES = [
    {"name": "device", "column": "device", "kind": "category"},
    {"name": "item_rate", "kind": "mean", "label": "click", "by": "item", "as": "dense"},
    {"name": "user_rows", "kind": "count", "by": "user", "as": "dense"},
]
TRAIN = {"batch_size": 64, "epochs": 2, "table_learning_rate": 0.05}
RETRIEVER = {
    "model": {"type": "two_tower", "dim": 8, "history": 4, "widths": [8]},
    "train": {**TRAIN, "uniform_negatives": 16},
}
RANKER_CONFIG = {
    "model": {"type": "dcn_v2", "dim": 4, "feature_dim": 4, "history": 3, "widths": [8]},
    "labels": {"click": 1.0, "buy": 2.0},
    "candidates": 12,
    "score": "click * buy ^ 0.5",
    "train": {**TRAIN, "validation": {}, "calibration": "temperature"},
}


def impressions():
    """Returns rows of impressions of 60 users and 40 items."""
    return shown(n_users=60, n_items=40, n=8)


def make_data(folder, rows=None):
    """Ingests impressions; returns the opened data folder."""
    rows = impressions() if rows is None else rows
    return ingested(folder, rows, features=FEATURES)


def pair_stage(plugins=(), **ranker):
    """Returns the config of a pair."""
    whole = {**RETRIEVER, "plugins": plugins, "ranker": {**RANKER_CONFIG, **ranker}}
    return PairStage.model_validate(whole, strict=False)


def make_pair(folder, data):
    """Trains both models on a data folder, and joins them in `folder`."""
    stage = pair_stage()
    train_here(RETRIEVER, data, folder)
    own = json.loads(ranker_stage(stage).model_dump_json())
    train_here(own, data, folder / RANKER)
    write_pair(folder / RANKER, stage.ranker)
