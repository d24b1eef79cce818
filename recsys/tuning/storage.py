"""The study of Optuna in a folder: SQLite, which survives a kill at any moment."""

from __future__ import annotations

from pathlib import Path
from typing import Literal

import optuna

Pruner = Literal["median", "hyperband", "none"]
SECONDS = "seconds"
"""Attribute of a trial: time of its processes so far [s]."""
PRUNER = "pruner"
"""Attribute of a study: the pruner's name."""

_NAME, _FILE = "study", "study.db"
_WAIT_S = 60.0
_STARTUP_TRIALS = 5
_SEEDS = 2**32


def storage_url(folder: Path) -> str:
    """Returns the URL of a study's database, for `optuna-dashboard`."""
    return f"sqlite:///{folder / _FILE}"


def open_study(folder: Path, pruner: Pruner | None = None) -> optuna.Study:
    """Returns the study of a folder, created if missing.

    Args:
        folder: The folder.
        pruner: Pruner of a new study; an existing one keeps its own.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(
        storage_url(folder), engine_kwargs={"connect_args": {"timeout": _WAIT_S}}
    )
    study = optuna.create_study(
        study_name=_NAME, storage=storage, direction="maximize", load_if_exists=True
    )
    if PRUNER not in study.user_attrs:
        study.set_user_attr(PRUNER, pruner or "median")
    study.pruner = _pruner(study.user_attrs[PRUNER])
    return study


def reset_study(study: optuna.Study, folder: Path, pruner: Pruner) -> optuna.Study:
    """Returns an empty study in place of `study`."""
    optuna.delete_study(study_name=_NAME, storage=study._storage)
    return open_study(folder, pruner)


def trial_folder(folder: Path, number: int) -> Path:
    """Returns the folder of a trial of the study in `folder`."""
    return folder / "trials" / f"{number:04d}"


def trial_of(study: optuna.Study, number: int) -> optuna.Trial:
    """Returns a trial that an earlier process created with `ask`."""
    return optuna.Trial(study, study.trials[number]._trial_id)


def seed_sampler(study: optuna.Study, seed: int, number: int) -> None:
    """Seeds the sampler for a trial: any process with the same earlier trials draws the same.

    Tree-structured Parzen estimators (Bergstra et al., NeurIPS 2011).

    Args:
        study: The study.
        seed: Seed of the study.
        number: Number of the trial.
    """
    of_trial = (seed * 1_000_003 + number) % _SEEDS
    study.sampler = optuna.samplers.TPESampler(seed=of_trial, n_startup_trials=_STARTUP_TRIALS)


def _pruner(name: Pruner) -> optuna.pruners.BasePruner:
    if name == "median":
        return optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=2)
    if name == "hyperband":
        return optuna.pruners.HyperbandPruner()
    return optuna.pruners.NopPruner()
