"""Baselines as models: `model: {type: ease | transitions | ials}`.

Each is a two-tower model whose score is the baseline's. `ials` is trained by least squares, and its
users are solved. The others are a term of the score with so large a weight that the towers, which
are short and trained for an epoch, only order items of which the term says nothing; they also say
which items are similar.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

from recsys.embedding.config import LazyAdamConfig
from recsys.losses.squares import LeastSquares
from recsys.models.config import EaseConfig, FoldInConfig, TransitionsConfig
from recsys.registry import register_model
from recsys.tasks.config import ScheduleConfig
from recsys.tasks.training_side import DataShape

Settings = tuple[dict[str, Any], dict[str, Any]]
"""Settings of a model, and of its training."""
_ALONE = 10_000.0
"""Weight of a term beside which the towers, whose scores are about 1, only break ties."""


@register_model("ease")
class EaseModel:
    """Placeholder in a config for the two towers with the settings of `ease`."""


@register_model("transitions")
class TransitionsModel:
    """Placeholder in a config for the two towers with the settings of `transitions`."""


@register_model("ials")
class IalsModel:
    """Placeholder in a config for the two towers with the settings of `ials`."""


def ease(shape: DataShape) -> Settings:
    """Returns the settings of EASE."""
    model, train = _term_alone(shape, EaseConfig(weight=_ALONE))
    return {**model, "history": 500, "history_of": "others"}, train


def transitions(shape: DataShape) -> Settings:
    """Returns the settings of transitions, those of the baseline of this name."""
    term = TransitionsConfig(newest=10, decay=0.7, count=100, weight=_ALONE)
    model, train = _term_alone(shape, term)
    return {**model, "history": 10}, train


def _term_alone(shape: DataShape, term: Any) -> Settings:
    return {
        "dim": 16,
        "feature_dim": 16,
        "user_id": False,
        "item_bias": True,
        "widths": () if shape.has_features else None,
        "terms": (term,),
    }, {"batch_size": _batch(shape), "epochs": 1, "table_optimizer": LazyAdamConfig()}


def ials(shape: DataShape) -> Settings:
    """Returns the settings of implicit ALS, the best of MovieLens-1M over the whole catalogue."""
    has_features = shape.has_features
    return {
        "dim": 192,
        "history": 1024,
        "history_of": "others",
        "pooling": FoldInConfig(),
        "widths": () if has_features else None,
        "history_tower": has_features,
        "similarity": "dot",
        "temperature": 1.0,
        "id_dropout": 0.0,
        "new_user_share": 0.0,
        "init_stddev": 0.03,
    }, {
        "loss": LeastSquares(negative_weight=6.7, regularisation=0.007),
        "batch_size": _batch(shape),
        "uniform_negatives": 1024,
        "epochs": 20,
        "table_optimizer": LazyAdamConfig(),
        "table_learning_rate": 0.003,
        "schedule": ScheduleConfig(kind="linear", end=0.02),
    }


def _batch(shape: DataShape) -> int:
    """Returns a power of two, at most half of the events."""
    return 1 << max(0, min(10, (shape.events // 2).bit_length() - 1))


PRESETS: dict[str, Callable[[DataShape], Settings]] = {
    "ease": ease,
    "transitions": transitions,
    "ials": ials,
}
"""Settings of each baseline by the name of its model."""
