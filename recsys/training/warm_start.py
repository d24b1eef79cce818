"""Warm starts: whether a training may continue an earlier model, and with which settings."""

from __future__ import annotations

import dataclasses
import datetime as dt
from collections.abc import Iterator
from pathlib import Path

import numpy as np

from recsys import registry
from recsys.config import TrainConfig, TrainStage, WarmStartConfig
from recsys.data.store import InteractionStore
from recsys.data.training_events import training_events
from recsys.errors import RecsysError, UsageError
from recsys.models import ModelInputs, ModelSpec
from recsys.training.distributed import agreed
from recsys.training.earlier_model import EarlierModel, UnusableModelError
from recsys.training.row_transfer import kind_of
from recsys.training.training_log import note_once
from recsys.training.validation import Validation

_SEEDS = 2**31


@dataclasses.dataclass(frozen=True)
class Choice:
    """How a training starts: from an earlier model, or cold.

    Attributes:
        base: The model that it starts from; None: a cold start.
        cold: Why it is a cold start although a model was given, as a sentence.
    """

    base: EarlierModel | None = None
    cold: str | None = None


def choose(
    folder: Path | None, stage: TrainStage, store: InteractionStore, inputs: ModelInputs
) -> Choice:
    """Returns how a training starts; the same in every process.

    A model that was trained on events from the run's cut on has seen what the evaluation
    asks for. It isn't used, nor is one that is damaged or kept no state.

    Args:
        folder: The model folder that was given; None: none was.
        stage: The model and the training loop.
        store: The events.
        inputs: What is known of users and items.

    Raises:
        UsageError: There is no such folder; or the model is another one than the config
            asks for, and `warm_start.changed` is `refuse`.
    """
    if folder is None:
        return Choice()
    reason = agreed(lambda: _reason_against(folder, stage, store, inputs))
    if reason is None:
        return Choice(EarlierModel.open(folder, verify=False))
    return cold_start(folder, reason)


def cold_start(folder: Path, reason: str) -> Choice:
    """Returns a cold start, and reports the reason."""
    sentence = f"Trains from the beginning, not from the model in {folder}: {reason.rstrip('.')}."
    note_once(sentence)
    return Choice(cold=sentence)


def _reason_against(
    folder: Path, stage: TrainStage, store: InteractionStore, inputs: ModelInputs
) -> str | None:
    """Returns why a training can't go on from a folder; None if it can."""
    if not folder.is_dir():
        raise UsageError(
            "R391",
            "--base must name the folder of a trained model.",
            "Name one that recsys train or the pipeline's Trainer wrote.",
            str(folder),
        )
    try:
        base = EarlierModel.open(folder)
    except UnusableModelError as error:
        return str(error)
    if store.split.split != "time":
        return "the data are not split by time, and it may have seen the answers"
    until = base.state.trained_until
    if until > store.cut:
        return (
            f"it was trained on events until {_date(until)}, and what is evaluated now begins"
            f" at {_date(store.cut)}; it has seen the answers"
        )
    changes = differences(base, stage, inputs)
    if changes and config_of(stage).changed == "refuse":
        raise refused(folder, changes)
    if changes:
        return f"{len(changes)} of its traits changed: {'; '.join(changes)}"
    return _reason_of_validation(base, stage, store, inputs)


def _reason_of_validation(
    base: EarlierModel, stage: TrainStage, store: InteractionStore, inputs: ModelInputs
) -> str | None:
    """Returns why the model's quality can't be measured; None if it can."""
    validation, until = stage.train.validation, base.state.trained_until
    if validation is None:
        return None
    events = training_events(store.train, stage.train)
    if not (np.asarray(store.train.timestamp[events.held]) >= until).any():
        return "it was trained on all that validation holds back"
    try:
        Validation(events, inputs, stage.model, validation, until, stage.repeats)
    except RecsysError:
        return "all that validation holds back since its training are items seen before"
    return None


def config_of(stage: TrainStage) -> WarmStartConfig:
    """Returns how a stage goes on from a model; by default, where its config doesn't say."""
    return stage.warm_start or WarmStartConfig()


def continued_stage(stage: TrainStage, base: EarlierModel | None) -> TrainStage:
    """Returns the stage of a training that goes on from `base`; as it is without one.

    It makes `warm_start.epochs` passes. All that counts passes or steps goes by them: the
    schedule of the learning rates begins anew and ends with the run, for a rate that went
    down with the earlier run would teach nothing of the new day; and hard negatives are
    looked for from the first step on, for the model is past `after_epochs`.
    """
    if base is None:
        return stage
    hard = stage.train.hard_negatives.model_copy(update={"after_epochs": 0})
    changes = {"epochs": config_of(stage).epochs, "hard_negatives": hard}
    return stage.model_copy(update={"train": stage.train.model_copy(update=changes)})


def batch_settings(train: TrainConfig, base: EarlierModel | None) -> TrainConfig:
    """Returns what the batches of a training are made by.

    Each night that goes on shuffles and draws otherwise than the one before: the same
    negatives every night would leave out the same items for good.
    """
    if base is None:
        return train
    return train.model_copy(update={"seed": (train.seed + base.state.steps) % _SEEDS})


def _date(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")


CHANGED = "R390"
"""Code of the error that the model is another one than the earlier one."""


def differences(base: EarlierModel, stage: TrainStage, inputs: ModelInputs) -> list[str]:
    """Returns what keeps a training from going on from `base`, each as `what: then → now`.

    Args:
        base: The earlier model.
        stage: The model and the training loop now.
        inputs: What is known of users and items now.
    """
    before = base.read_inputs()
    return [
        *_of_config(base.spec, stage),
        *_of_optimizers(base.stage, stage),
        *_of_hash_rows(before, inputs),
        *_of_features(before, inputs),
    ]


def refused(folder: Path, changes: list[str]) -> UsageError:
    """Returns what to say of a model that differs by `found`."""
    return UsageError(
        CHANGED,
        f"The model in {str(folder)!r} can only be gone on from by one like it;"
        f" {len(changes)} of its traits changed: {'; '.join(changes)}.",
        "Change that back; or train from the beginning, with warm_start.changed=cold, or once"
        " with warm_start=null.",
    )


def _of_config(spec: ModelSpec, stage: TrainStage) -> Iterator[str]:
    if type(spec.config) is not type(stage.model):
        names = [registry.name_of("model", config) for config in (spec.config, stage.model)]
        yield f"model.type: {names[0]} → {names[1]}"
        return
    before, now = spec.config.architecture(), stage.model.architecture()
    for name in now:
        if before.get(name) != now[name]:
            yield f"model.{name}: {before.get(name)} → {now[name]}"


def _of_optimizers(before: TrainStage, now: TrainStage) -> Iterator[str]:
    tables = [
        registry.name_of("row_optimizer", stage.train.table_optimizer) for stage in (before, now)
    ]
    towers = [stage.train.tower_optimizer for stage in (before, now)]
    for name, (then, today) in (("table_optimizer", tables), ("tower_optimizer", towers)):
        if then != today:
            yield f"train.{name}: {then} → {today}"


def _of_hash_rows(before: ModelInputs, now: ModelInputs) -> Iterator[str]:
    for side in ("users", "items"):
        then, today = (getattr(known, side).config.hash_buckets for known in (before, now))
        if then != today:
            yield f"data.vocabulary.{side}.hash_buckets: {then} → {today}"


def _of_features(before: ModelInputs, now: ModelInputs) -> Iterator[str]:
    pairs = (
        ("items", before.catalogue.features, now.catalogue.features),
        ("users", before.user_features, now.user_features),
    )
    for side, then, today in pairs:
        names = [
            ", ".join(feature.name for feature in features) or "none" for features in (then, today)
        ]
        if names[0] != names[1]:
            yield f"features of {side}: {names[0]} → {names[1]}"
            continue
        for old, new in zip(then, today, strict=True):
            kinds = kind_of(old), kind_of(new)
            if kinds[0] != kinds[1]:
                yield f"tokens of {new.name}: {kinds[0]} → {kinds[1]}"
            elif kinds[0] == "hashed" and old.rows != new.rows:
                yield f"hash rows of {new.name}: {old.rows - 1} → {new.rows - 1}"
