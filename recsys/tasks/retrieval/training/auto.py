"""Chooses the model for a config without `model`, from the shape of its data.

The rules are few, and each was measured on public data; docs/defaults.md has the figures.

    ordered, few per user    a user is the sequence of its items (SASRec) and their features;
                             training learns at every position
    ordered, many per user   a user is its own row and its newest items with their features,
                             pooled by attention; items have a bias; if there are times, the
                             newest events have the highest weight
    no order, or held-out    a user is the mean of its other items, and with many items also
    events aren't newest     its own row; items have a bias and, if users have few items and the
                             catalogue isn't too large, neighbours

If more than one item in a hundred has no event, and items have features, the first and the last
learn to represent items by their features only, and don't push such items down.

Keys of `train` in the config keep their values, and so do the keys of `{type: auto, …}`.

With `minutes`, the rules of neighbouring shapes are candidates beside the rule of the data's shape,
and `recsys.training.model_choice` compares them on held-back events.
"""

from __future__ import annotations

import dataclasses
from contextlib import suppress
from typing import Any, TypeVar

from recsys import registry
from recsys.data.dataset import Data
from recsys.embedding.config import LazyAdamConfig
from recsys.formats import counted
from recsys.models.config import (
    AttentionConfig,
    AutoConfig,
    EaseConfig,
    RetrievalConfig,
    SasRecConfig,
    TransitionsConfig,
    TwoTowerConfig,
)
from recsys.registry import register_model
from recsys.tasks.config import ScheduleConfig, TrainConfig, TrainStage
from recsys.tasks.retrieval.training.presets import PRESETS, Settings
from recsys.tasks.training_side import DataShape

StageT = TypeVar("StageT", bound=TrainStage)


@register_model("auto")
class AutoModel:
    """Placeholder in a config for the model that `for_data` chooses."""


def for_data(config: StageT, data: Data | DataShape, base: TrainStage | None = None) -> StageT:
    """Returns a config with the model for the data, and the training for the model.

    A config that names a model is returned unchanged, unless it is a baseline, which stands for
    settings of the two towers (`recsys.tasks.retrieval.training.presets`). `minutes` has no effect:
    `recsys train` and `recsys run` compare, with `recsys.training.model_choice`.

    Args:
        config: A whole `recsys.Config`, or its part `TrainStage`.
        data: The data, or their shape.
        base: Config of the earlier model of a warm start: its choice is kept, even if the
            shape of the data has changed.
    """
    auto = config.model
    if not isinstance(auto, AutoConfig):
        return config
    shape = data if isinstance(data, DataShape) else DataShape.of(data, config.train.validation)
    if base is None:
        return _with(config, TwoTowerConfig, *next(iter(_settings(auto, shape).values())))
    rules = _settings(AutoConfig(), dataclasses.replace(shape, order="file")).values()
    every = (*rules, *(make(shape) for make in PRESETS.values()))
    train = {key: getattr(base.train, key) for _, of_one in every for key in of_one}
    return _with(config, type(base.model), dict(base.model), train)


def candidates(config: StageT, data: Data | DataShape) -> dict[str, StageT]:
    """Returns the configs to compare by short names; the first has the rule for the data.

    A neighbouring rule is left out if the config's own keys contradict it, or leave no difference.

    Args:
        config: A config with `model: auto`.
        data: See `for_data`.
    """
    shape = data if isinstance(data, DataShape) else DataShape.of(data, config.train.validation)
    rule, *others = _settings(config.model, shape).items()
    chosen = {rule[0]: _with(config, TwoTowerConfig, *rule[1])}
    for name, settings in others:
        with suppress(ValueError):
            stage = _with(config, TwoTowerConfig, *settings)
            if stage not in chosen.values():
                chosen[name] = stage
    return chosen


def _with(
    config: StageT, kind: type[RetrievalConfig], model: dict[str, Any], train: dict[str, Any]
) -> StageT:
    """Returns a config with a model and its training, but with the config's own keys."""
    auto = config.model
    own = {key: getattr(auto, key) for key in auto.own or ()}
    keep = config.train.model_fields_set if auto.keep is None else auto.keep
    now = {key: value for key, value in train.items() if key not in keep}
    return config.model_copy(
        update={
            "model": kind(**{**model, **own}),
            "train": TrainConfig(**{**dict(config.train), **now}),
        }
    )


def outgrown(config: TrainStage, data: Data | DataShape, base: TrainStage) -> str | None:
    """Returns a short description of the choice for the data if it differs from an earlier one.

    Args:
        config: See `for_data`.
        data: See `for_data`.
        base: See `for_data`.

    Returns:
        The description; None if the choice is the same.
    """
    now = for_data(config, data)
    return described(now) if now.model != for_data(config, data, base).model else None


def described(stage: TrainStage) -> str:
    """Returns a short description of a stage's model and training."""
    model, train = stage.model, stage.train
    pooling = (
        registry.name_of("encoder", model.encoder) if isinstance(model, TwoTowerConfig) else ""
    )
    epochs = counted(train.epochs, "epoch", "epochs")
    return (
        f"{registry.name_of('model', model)} {pooling}, {model.dim} floats, histories of"
        f" {model.history} ({model.history_of or 'past'}), {epochs}"
    )


def _settings(auto: AutoConfig, shape: DataShape) -> dict[str, Settings]:
    """Returns the settings of the rule for a shape, then those of its neighbours, by name.

    A baseline has no neighbours.
    """
    name = registry.name_of("model", auto)
    if name in PRESETS:
        return {name: PRESETS[name](shape)}
    sets = {"mean": _sets(shape, is_long=False), "mean with user rows": _sets(shape, is_long=True)}
    if shape.order == "none":
        rule = "mean with user rows" if shape.events_per_user > _MANY else "mean"
        model, train = sets["mean"]
        settings = {**sets, "mean without neighbours": ({**model, "item_neighbours": 0}, train)}
        baselines = ("ease", "ials") if shape.items <= _MOST_WITH_EASE else ("ials",)
    else:
        rule = "sequence" if shape.events_per_user <= _FEW else "attention"
        settings = {"sequence": _short_sequences(shape), "attention": _long_sequences(shape)}
        for name, (model, train) in sets.items():
            with_transitions = {**model, "terms": (TransitionsConfig(),)}
            settings[f"{name} and transitions"] = with_transitions, train
        baselines = ("transitions",)
    if not shape.has_new_items:
        settings |= {baseline: PRESETS[baseline](shape) for baseline in baselines}
    return {rule: settings.pop(rule), **settings}


def _short_sequences(shape: DataShape) -> Settings:
    """Returns settings of model and training for ordered events, few per user."""
    return {
        "dim": 128,
        "feature_dim": 256,
        "user_id": False,
        "history": min(50, max(1, shape.events // _EVENTS_PER_POSITION)) if shape.events else 50,
        "pooling": SasRecConfig(dropout=0.5),
        "history_tower": True,
        "terms": (TransitionsConfig(),),
        "widths": (),
        "item_id_dropout": 0.3 if shape.has_new_items else None,
        "temperature": 0.1,
    }, {
        "batch_size": _batch(shape, 512),
        "uniform_negatives": 512,
        "cold_negatives": 0.0 if shape.has_new_items else 1.0,
        "known_positives": 20,
        "epochs": _epochs(shape, 10),
        "table_optimizer": LazyAdamConfig(),
        "table_learning_rate": 0.002,
        "tower_learning_rate": 0.001,
        "schedule": ScheduleConfig(kind="cosine", warmup_steps=30, end=0.02),
    }


def _long_sequences(shape: DataShape) -> Settings:
    """Returns settings of model and training for ordered events, many per user."""
    return {
        "pooling": AttentionConfig(),
        "history_tower": True,
        "terms": (TransitionsConfig(),),
        "widths": (64,),
        "item_bias": True,
        "new_user_share": 0.2,
    }, {
        "batch_size": _batch(shape, 512),
        "uniform_negatives": 512,
        "half_life": 0.3 if shape.order == "time" else None,
        "epochs": _epochs(shape, 12),
        "table_learning_rate": 0.07,
        "tower_learning_rate": 0.0015,
    }


def _sets(shape: DataShape, *, is_long: bool) -> Settings:
    """Returns settings of model and training that ignore an order, for few or many per user."""
    has_neighbours = not is_long and shape.items <= _MOST_WITH_NEIGHBOURS
    has_ease = shape.items <= _MOST_WITH_EASE
    return {
        "dim": 256,
        "user_id": is_long,
        "history": 200 if is_long else 100,
        "history_of": "others",
        "history_dropout": 0.5 if is_long else 0.0,
        "item_bias": True,
        "item_neighbours": 16 if has_neighbours else 0,
        "terms": (EaseConfig(),) if has_ease else (),
        "widths": () if shape.has_features else None,
        "id_dropout": 0.1 if shape.has_features else 0.0,
        "item_id_dropout": (0.3 if is_long else 0.5) if shape.has_new_items else None,
        "temperature": 0.1,
        "init_stddev": 0.0625,
        "user_init_stddev": 0.005,
    }, {
        "batch_size": _batch(shape, 1024),
        "uniform_negatives": 512,
        "cold_negatives": 0.0 if shape.has_new_items else 1.0,
        "known_positives": 1000 if is_long else 100,
        "user_balance": 0.5 if is_long else 0.0,
        "epochs": _epochs(shape, 12 if is_long else 6),
        "table_optimizer": LazyAdamConfig(),
        "table_learning_rate": 0.01,
        "user_learning_rate": 0.0005,
        "schedule": ScheduleConfig(kind="linear", end=0.02),
    }


_FEW, _MANY = 20, 80
"""Mean number of events per user: up to the first are few, from the second on many."""
_MOST_WITH_NEIGHBOURS = 1_000_000
"""Maximum number of items for neighbours: each device holds the neighbours of all items, 8 bytes
each."""
_MOST_WITH_EASE = 20_000
"""Maximum number of items for EASE, whose vectors triple the width of a model's."""
_EVENTS_PER_POSITION = 4
"""Minimum number of events per position of a history: a batch has at least one history."""
_ENOUGH = 12_000_000
"""Number of examples in a training, unless two epochs have more."""


def _batch(shape: DataShape, most: int) -> int:
    """Returns the batch size, a power of two, which is smaller for small data.

    With very few events it is at most half of them, as validation may hold some back.
    """
    half = 1 << max(0, (shape.events // 2).bit_length() - 1) if shape.events else most
    return min(most, half, max(32, 1 << (shape.events // 64).bit_length()))


def _epochs(shape: DataShape, most: int) -> int:
    """Returns the number of epochs: fewer for large data, but at least two."""
    return max(2, min(most, _ENOUGH // max(shape.events, 1)))
