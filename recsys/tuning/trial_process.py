"""Trains one trial of a study: `python -m recsys.tuning.trial_process`.

JAX keeps compiled programs and memory until its process ends, and a trial that runs out of memory
must not end the study. Training reads only the training events, never the held-out part.
"""

from __future__ import annotations

import argparse
import os
import signal
import threading
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import optuna

from recsys.config import TrainStage
from recsys.config.load import load_stage
from recsys.data.dataset import open_data
from recsys.errors import RecsysError
from recsys.system.process import StoppedError, signals_raised, stage_main
from recsys.training.model_choice import best_value, train_validated
from recsys.training.trainer import check_backend
from recsys.tuning.tuning_study import SECONDS, open_study, trial_folder, trial_of

_STOPPED = "R375"


class ValidationReporter(keras.callbacks.Callback):
    """Reports validation after each epoch to a study, and stops if the study prunes the trial.

    Args:
        trial: The trial.
        metric: Metric of the validation.
    """

    def __init__(self, trial: optuna.Trial, metric: str) -> None:
        super().__init__()
        self._trial, self._metric = trial, metric
        self._before, self._started = trial.user_attrs.get(SECONDS, 0.0), time.monotonic()

    def on_epoch_end(self, epoch: int, logs: dict[str, float] | None = None) -> None:
        """Reports the validation, if this epoch ended with one."""
        self._trial.set_user_attr(SECONDS, self._before + time.monotonic() - self._started)
        value = (logs or {}).get(f"val_{self._metric}")
        step = epoch + 1
        # An epoch that a killed run already reported is trained again, with the same bits.
        known = self._trial.study.trials[self._trial.number].intermediate_values
        if value is None or step in known:
            return
        self._trial.report(value, step)
        if self._trial.should_prune():
            self.model.stop_training = True


def train_trial(stage: TrainStage, data: Path, folder: Path, number: int) -> dict[str, Any]:
    """Trains a trial, or resumes it.

    Args:
        stage: Model and training, with a validation.
        data: Data folder.
        folder: Folder of the study.
        number: Number of the trial.

    Returns:
        `state` (`complete` or `pruned`), `value` of the best validation, `best_step`, `steps`, and
        `seconds` of the steps.
    """
    validation = stage.train.validation
    if validation is None:
        raise ValueError("A trial needs a validation.")
    reporter = ValidationReporter(trial_of(open_study(folder), number), validation.metric)
    checkpoints = trial_folder(folder, number) / "checkpoints"
    progress = train_validated(stage, open_data(data), checkpoints, reporter)
    return {
        "state": "pruned" if progress.is_stopped else "complete",
        "value": best_value(progress, validation),
        "best_step": progress.best_step,
        "steps": progress.step,
        "seconds": round(progress.seconds, 3),
    }


def _stop_after(seconds: float) -> None:
    """Sends this process SIGTERM after a while, as its parent would; a training saves first."""
    timer = threading.Timer(seconds, os.kill, (os.getpid(), signal.SIGTERM))
    timer.daemon = True
    timer.start()


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the trial from the command line."""
    parser = argparse.ArgumentParser(prog="python -m recsys.tuning.trial_process")
    parser.add_argument("--config", type=Path, required=True)
    parser.add_argument("--data", type=Path, required=True)
    parser.add_argument("--study", type=Path, required=True)
    parser.add_argument("--number", type=int, required=True)
    parser.add_argument("--seconds", type=float, required=True, help="remaining budget")
    options = parser.parse_args(arguments)
    check_backend()
    try:
        with signals_raised():
            _stop_after(options.seconds)
            stage = load_stage(options.config, TrainStage)
            return train_trial(stage, options.data, options.study, options.number)
    except StoppedError:
        return {"state": "interrupted"}
    except RecsysError as error:
        if error.code != _STOPPED:
            raise
        return {"state": "interrupted"}


if __name__ == "__main__":
    stage_main(main)
