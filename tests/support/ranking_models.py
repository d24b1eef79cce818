"""Small ranking models with random weights, and rows for them."""

import numpy as np
from tower_models import random_values

from recsys.config import LabelConfig
from recsys.models.inputs import FeatureSpec, ModelSpec
from recsys.models.lookups import model_class
from recsys.registry import Choice

DIM, WIDTH, HISTORY, USERS, ITEMS = 6, 4, 5, 11, 13
GENRES = FeatureSpec(name="genres", rows=7, width=3, dim=WIDTH)
YEAR = FeatureSpec(name="year", rows=0, width=1, dim=1, floats=1)
AGE = FeatureSpec(name="age", side="user", rows=5, width=1, dim=WIDTH)
DEVICE = FeatureSpec(
    name="device", side="event", rows=4, width=1, dim=WIDTH, is_context=True, is_attribute=True
)
RATED = FeatureSpec(name="rated", side="event", rows=4, width=1, dim=WIDTH, is_attribute=True)
RATE = FeatureSpec(name="rate", side="row", rows=9, width=1, dim=WIDTH)
COUNT = FeatureSpec(name="count", side="row", rows=0, width=1, dim=2, floats=2)
FEATURES = (GENRES, YEAR, AGE, DEVICE, RATED, RATE, COUNT)
LABELS = {
    "click": LabelConfig(column="clicked", at_least=1),
    "watch": LabelConfig(column="seconds"),
    "buy": LabelConfig(column="bought", at_least=1, given="click"),
}
MODELS = {
    "dlrm": {"type": "dlrm", "bottom_widths": (5,), "stage_one": True},
    "dcn_v2": {"type": "dcn_v2", "crosses": 2},
    "stacked": {
        "type": "dcn_v2",
        "structure": "stacked",
        "rank": 3,
        "heads": "mmoe",
        "stage_one": True,
    },
    "target": {"type": "dcn_v2", "pooling": "target", "history_features": False},
    "no history": {"type": "dlrm", "history": 0, "user_id": False, "heads": "ple"},
    "final_mlp": {"type": "final_mlp", "gate_widths": (5,), "fusion_heads": 2, "stage_one": True},
    "final_mlp of experts": {"type": "final_mlp", "heads": "mmoe", "tower_widths": (3,)},
    "din": {"type": "din", "heads": "ple", "tower_widths": (3,), "stage_one": True},
    "candidate_transformer": {"type": "candidate_transformer", "block_dim": 8, "stage_one": True},
}


def spec_of(features=FEATURES, labels=LABELS, users=USERS, items=ITEMS, **options):
    small = {"dim": DIM, "feature_dim": WIDTH, "history": HISTORY, "widths": (8, 6)}
    config = Choice("model").read({**small, "expert_widths": (4,), **options})
    return ModelSpec(
        config=config, user_rows=users, item_rows=items, features=features, labels=labels
    )


def build(spec, optimizer=None, is_random=True, **options):
    """Returns a built model of a spec, with random weights."""
    cls = model_class(spec.config)
    tables = cls.make_tables(spec, optimizer)
    model = cls(spec, tables=tables, seed=7, **options)
    model.build()
    for number, variable in enumerate(model.weights if is_random else ()):
        if not variable.path.endswith(("/steps", "/amounts")):
            variable.assign(random_values(variable, number))
    return model


def rows(model, n=8, seed=0):
    """Returns inputs of rows; some features and events are missing."""
    draw = np.random.default_rng(seed)
    lookups, tables = model.lookups, model.table_configs
    x = {}
    for one in model.inputs_of_sides:
        shape = (n, *one.shape)
        if one.dtype == "float32":
            x[one.name] = draw.normal(size=shape).astype(np.float32)
        else:
            size = tables[lookups[one.name][0]].vocabulary_size
            x[one.name] = draw.integers(0, size, shape).astype(np.int32)
    if "history" in x:
        x["history"][draw.random(x["history"].shape) < 0.4] = 0
        x["history"][0] = 0
    return x


def with_labels(model, x, seed=0):
    """Returns rows with labels, a third of them unknown."""
    draw = np.random.default_rng(seed)
    n, more = len(x["id_row"]), {}
    for name in model.label_names:
        label = model.spec.labels[name]
        values = draw.normal(3, 2, n) if label.is_amount else draw.integers(0, 2, n)
        more[f"label.{name}"] = np.where(draw.random(n) < 0.3, np.nan, values).astype(np.float32)
    return {**x, **more}
