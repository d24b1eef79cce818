"""Chooses a model by a comparison: `model: {type: auto, minutes: N}`.

    <checkpoints>/choices/<fingerprint>.json  the candidates with their figures, and the chosen one
    <checkpoints>/<fingerprint>/              checkpoints of the candidates until the choice is made

Each candidate is trained without the events that the run's validation holds back, and judged on
these. The fingerprint is of config, data and code, so the same run finds its choice again. The test
part is never read.
"""

from __future__ import annotations

import gc
import json
import time
from collections.abc import Mapping
from contextlib import ExitStack
from pathlib import Path
from typing import Any

import keras

from recsys.data.config import ValidationConfig
from recsys.data.dataset import Data
from recsys.distributed.coordination import agreed, is_primary, note_on_primary
from recsys.errors import RecsysError
from recsys.formats import counted, duration, figure
from recsys.models import model_class
from recsys.system.files import commit_text, read_json, remove, undamaged
from recsys.tasks import side_of
from recsys.tasks.config import TrainStage
from recsys.training.checkpoint import DAMAGED
from recsys.training.run_folders import RunFolders
from recsys.training.trainer import Trainer
from recsys.training.training_result import Progress

_NOT_FINITE = "R322"
_CHECK_EVERY = 16


def choose_model(
    stage: TrainStage, data: Data, earlier: TrainStage | None, checkpoints: Path
) -> tuple[TrainStage, dict[str, Any] | None]:
    """Returns the stage with a model, and the record of the comparison that chose it, if any.

    Every process of a run calls it. A killed comparison continues after the last candidate with a
    figure.

    Args:
        stage: Config of the training.
        data: The data.
        earlier: Config of the model of a warm start, whose choice is kept; None: a cold start.
        checkpoints: Folder of the checkpoints of all runs.

    Raises:
        RecsysError: The run was stopped (R375), or the data are too few to hold some back.
    """
    side = side_of(stage.model, "training")
    candidates = side.candidates(stage, data) if earlier is None else {}
    if len(candidates) < 2:
        return side.chosen(stage, data, earlier), None
    folders = RunFolders.of_run(checkpoints, stage, data.folder)
    file = checkpoints / "choices" / f"{folders.checkpoints.name}.json"
    record: dict[str, Any] = agreed(lambda: _read(file)) or {
        "metric": _validated(stage).metric,
        "minutes": stage.model.minutes,
        "chosen": None,
        "candidates": [],
    }
    if record["chosen"] is None:
        with ExitStack() as stack:
            if is_primary():
                stack.enter_context(folders.locked())
            _compare(candidates, data, folders.checkpoints, file, record)
        agreed(lambda: remove(folders.checkpoints))
    note_on_primary(_sentence(record))
    return candidates[record["chosen"]], record


def _compare(
    candidates: Mapping[str, TrainStage],
    data: Data,
    folder: Path,
    file: Path,
    record: dict[str, Any],
) -> None:
    """Adds the figures of all candidates to a record and its file, and the best one's name."""
    figures = record["candidates"]
    text = f"Compares {len(candidates)} models for at most {record['minutes']:g} minutes"
    note_on_primary(f"{text}, on held-back training events: {'; '.join(candidates)}.")
    for place, (name, stage) in list(enumerate(candidates.items()))[len(figures) :]:
        spent = sum(one["seconds"] for one in figures)
        share = (60 * record["minutes"] - spent) / (len(candidates) - place)
        figures.append({"name": name, **_judged(stage, data, folder / str(place), share)})
        agreed(lambda: _write(file, record))
        note_on_primary(f"{name}: {_in_words(figures[-1], record['metric'])}.")
    measured = [one for one in figures if one["value"] is not None]
    sign = _validated(next(iter(candidates.values()))).sign
    best = max(measured, key=lambda one: sign * one["value"], default=figures[0])
    record["chosen"] = (best if len(measured) > 1 else figures[0])["name"]
    agreed(lambda: _write(file, record))


def _judged(stage: TrainStage, data: Data, checkpoints: Path, seconds: float) -> dict[str, Any]:
    """Returns the figure of a candidate that is trained for some seconds, at most."""
    started, progress = time.monotonic(), Progress()
    try:
        if seconds > 0:
            progress = train_validated(stage, data, checkpoints, TimeLimit(seconds))
    except RecsysError as error:
        if error.code != _NOT_FINITE:
            raise
        note_on_primary(str(error))
    gc.collect()  # Its tables would be in memory beside those of the next training.
    value = best_value(progress, _validated(stage))
    return {
        "value": value,
        "epochs": len(progress.validations),
        "of_epochs": stage.train.epochs,
        "seconds": agreed(lambda: round(time.monotonic() - started, 1)),
    }


def train_validated(
    stage: TrainStage, data: Data, checkpoints: Path, callback: keras.callbacks.Callback
) -> Progress:
    """Trains a model without the events that validation holds back; returns the progress.

    Args:
        stage: Config of the training; a default validation is used if it has none.
        data: The data.
        checkpoints: Folder of the checkpoints.
        callback: Callback that may end the training.
    """
    once = _validated(stage).model_copy(update={"refit": False})
    train = stage.train.model_copy(update={"validation": once})
    stage = stage.model_copy(update={"train": train})
    model = model_class(stage.model).from_config(stage, data)
    trainer = Trainer.of_stage(stage, checkpoints, callbacks=[callback], verbose=0)
    return trainer.fit(model, data).progress


def best_value(progress: Progress, validation: ValidationConfig) -> float | None:
    """Returns the best value of the metric that validation monitors; None without a validation."""
    values = (look[validation.metric] for look in progress.validations)
    return max(values, key=lambda value: validation.sign * value, default=None)


class TimeLimit(keras.callbacks.Callback):
    """Ends a training after some time: after the last epoch that fits, or within the first one.

    Args:
        seconds: The time [s].
    """

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds, self._begun = seconds, time.monotonic()
        self._end = self._begun + seconds
        self._has_epoch = False

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Ends an epoch without a validation if there is no time left for it."""
        if not self._has_epoch and batch % _CHECK_EVERY == 0:
            self._end_unless_left(0.0)

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        """Ends the training if another epoch of this length would be too long."""
        now = time.monotonic()
        self._has_epoch = True
        self._end_unless_left(now - self._begun)
        self._begun = now

    def _end_unless_left(self, seconds: float) -> None:
        if agreed(lambda: time.monotonic() + seconds > self._end):
            self.model.stop_training = True


def _validated(stage: TrainStage) -> ValidationConfig:
    return stage.train.validation or ValidationConfig()


def _read(file: Path) -> dict[str, Any] | None:
    def damage(text: str) -> RecsysError:
        rule = f"The comparison of models in {str(file)!r} must be readable."
        return RecsysError(DAMAGED, rule, "Remove the file; the next run compares anew.", text)

    if not file.exists():
        return None
    with undamaged(damage):
        return read_json(file)


def _write(file: Path, record: dict[str, Any]) -> None:
    file.parent.mkdir(parents=True, exist_ok=True)
    commit_text(json.dumps(record, indent=1, allow_nan=False) + "\n", file)


def _in_words(one: Mapping[str, Any], metric: str) -> str:
    """Returns figure, epochs and time of a candidate, as text."""
    epochs = f"{one['epochs']} of {counted(one['of_epochs'], 'epoch', 'epochs')}"
    value = "no figure" if one["value"] is None else f"{metric} {figure(one['value'])}"
    return f"{value}, {epochs} in {duration(one['seconds'])}"


def _sentence(record: Mapping[str, Any]) -> str:
    """Returns the choice with its figures, as a sentence."""
    measured = {x["name"]: x["value"] for x in record["candidates"] if x["value"] is not None}
    rule, chosen = record["candidates"][0]["name"], record["chosen"]
    figures = ", ".join(f"{name} {figure(value)}" for name, value in measured.items())
    if len(measured) < 2:
        return (
            f"{record['minutes']:g} minutes are too few to compare models, so the shape of the"
            f" data decides: {rule}. Raise model.minutes."
        )
    beside = "" if chosen == rule else f", and not {rule}, as by the shape of the data"
    return f"The comparison chose the model {chosen}{beside}. {record['metric']}: {figures}."
