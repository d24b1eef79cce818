"""The study of Optuna that a folder holds: SQLite, which a kill at any moment leaves whole."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import optuna

Pruner = Literal["median", "hyperband", "none"]
SECONDS = "seconds"
"""Attribute of a trial: the time that its processes took so far [s]."""

_NAME, STUDY = "study", "study.db"
_PRUNER = "pruner"
_WAIT_S = 60.0
_STARTUP_TRIALS = 5
_SEEDS = 2**32


def create_study(folder: Path, pruner: Pruner) -> optuna.Study:
    """Returns the study of a folder, created if missing.

    Args:
        folder: The folder.
        pruner: What ends a trial that does worse than others: the median of their looks, or
            Hyperband.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.create_study(
        study_name=_NAME, storage=_storage(folder), direction="maximize", load_if_exists=True
    )
    study.set_user_attr(_PRUNER, pruner)
    return study


def open_study(folder: Path) -> optuna.Study:
    """Returns the study that `create_study` made, with its pruner."""
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    study = optuna.load_study(study_name=_NAME, storage=_storage(folder))
    study.pruner = _pruner(study.user_attrs[_PRUNER])
    return study


def trial_folder(folder: Path, number: int) -> Path:
    """Returns the folder of a trial of the study in `folder`."""
    return folder / "trials" / f"{number:04d}"


def trial_of(study: optuna.Study, number: int) -> optuna.Trial:
    """Returns a trial of a study, as `ask` returned it in a process that is gone."""
    return optuna.Trial(study, study.trials[number]._trial_id)


def seed_sampler(study: optuna.Study, seed: int, number: int, place: int = 0) -> None:
    """Makes a study draw a value as any process with the same earlier trials would.

    Tree-structured Parzen estimators (Bergstra et al., NeurIPS 2011).

    Args:
        study: The study.
        seed: Seed of the study.
        number: Number of the trial.
        place: Index of the range; each has a seed of its own, so that a trial that was killed
            between two draws gets the same values.
    """
    of_value = (seed * 1_000_003 + number * 1_009 + place) % _SEEDS
    study.sampler = optuna.samplers.TPESampler(seed=of_value, n_startup_trials=_STARTUP_TRIALS)


def _pruner(name: Pruner) -> optuna.pruners.BasePruner:
    if name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=2)
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner()
    return optuna.pruners.NopPruner()


def _storage(folder: Path) -> optuna.storages.RDBStorage:
    wait = {"connect_args": {"timeout": _WAIT_S}}
    return optuna.storages.RDBStorage(f"sqlite:///{folder / STUDY}", engine_kwargs=wait)
