"""Whether a training goes on from the model that it was given, and as what."""

from __future__ import annotations

import dataclasses
import datetime as dt
from pathlib import Path

import numpy as np

from recsys.config import TrainConfig, TrainStage, WarmStartConfig
from recsys.data.held_back import training_events
from recsys.data.store import InteractionStore
from recsys.errors import RecsysError, UsageError
from recsys.model import TowerInputs
from recsys.training.processes import agreed
from recsys.training.told import note_once
from recsys.training.validation import Validation
from recsys.warm_start.base import Base, UnusableBaseError
from recsys.warm_start.fit import differences, refused

_SEEDS = 2**31


@dataclasses.dataclass(frozen=True)
class Choice:
    """What a training begins with.

    Attributes:
        base: The model that it goes on from; None: it begins anew.
        cold: Why it begins anew though it was given a model, as a sentence.
    """

    base: Base | None = None
    cold: str | None = None


def choose(
    folder: Path | None, stage: TrainStage, store: InteractionStore, inputs: TowerInputs
) -> Choice:
    """Returns what a training begins with; the same in every process.

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
        return Choice(Base.open(folder, verify=False))
    return begun_anew(folder, reason)


def begun_anew(folder: Path, reason: str) -> Choice:
    """Returns a training from the beginning, and tells why."""
    sentence = f"Trains from the beginning, not from the model in {folder}: {reason.rstrip('.')}."
    note_once(sentence)
    return Choice(cold=sentence)


def _reason_against(
    folder: Path, stage: TrainStage, store: InteractionStore, inputs: TowerInputs
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
        base = Base.open(folder)
    except UnusableBaseError as error:
        return str(error)
    if store.split.split != "time":
        return "the data are not split by time, and it may have seen the answers"
    until = base.state.trained_until
    if until > store.cut:
        return (
            f"it was trained on events until {_date(until)}, and what is evaluated now begins"
            f" at {_date(store.cut)}; it has seen the answers"
        )
    found = differences(base, stage, inputs)
    if found and config_of(stage).changed == "refuse":
        raise refused(folder, found)
    if found:
        return f"{len(found)} of its traits changed: {'; '.join(found)}"
    return _reason_of_validation(base, stage, store, inputs)


def _reason_of_validation(
    base: Base, stage: TrainStage, store: InteractionStore, inputs: TowerInputs
) -> str | None:
    """Returns why nothing could tell how good the model becomes; None if something can."""
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


def going_on(stage: TrainStage, base: Base | None) -> TrainStage:
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


def of_batches(train: TrainConfig, base: Base | None) -> TrainConfig:
    """Returns what the batches of a training are made by.

    Each night that goes on shuffles and draws otherwise than the one before: the same
    negatives every night would leave out the same items for good.
    """
    if base is None:
        return train
    return train.model_copy(update={"seed": (train.seed + base.state.steps) % _SEEDS})


def _date(seconds: int) -> str:
    return dt.datetime.fromtimestamp(seconds, dt.UTC).strftime("%Y-%m-%d %H:%M:%S UTC")
