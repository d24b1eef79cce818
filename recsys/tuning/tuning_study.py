"""A study: trials of a config's settings, one after the other, until the budget is spent.

    <root>/tuning/<name>/study.db       Optuna's study in SQLite, which its dashboard shows
    <root>/tuning/<name>/trials/0007/   checkpoints of the running trial
    <root>/tuning/<name>/trials.json    the trials, for `recsys runs`
    <root>/tuning/<name>/best.yaml      the best config so far

A study that was killed resumes its running trial from the last checkpoint.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import IO, Any, Literal

import optuna
import yaml
from optuna.trial import FrozenTrial, TrialState

from recsys import registry
from recsys.config import Config, TrainStage, canonical_json
from recsys.config.load import load_config
from recsys.data.dataset import open_data
from recsys.data.store import MANIFEST
from recsys.errors import RecsysError, UsageError
from recsys.registry.choice import stage_of
from recsys.system.files import commit_text
from recsys.system.process import run_stage_with_config
from recsys.tasks import side_of
from recsys.tuning import write_record
from recsys.tuning.search_space import (
    base_parameters,
    decode,
    default_space,
    parse_space,
    suggest,
)

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


def open_study(folder: Path, pruner: Pruner | None = None, sign: int = 1) -> optuna.Study:
    """Returns the study of a folder, created if missing.

    Args:
        folder: The folder.
        pruner: Pruner of a new study; an existing one keeps its own.
        sign: 1 if a new study maximises its metric, -1 if it minimises it.
    """
    optuna.logging.set_verbosity(optuna.logging.WARNING)
    storage = optuna.storages.RDBStorage(
        storage_url(folder), engine_kwargs={"connect_args": {"timeout": _WAIT_S}}
    )
    direction = "maximize" if sign > 0 else "minimize"
    study = optuna.create_study(
        study_name=_NAME, storage=storage, direction=direction, load_if_exists=True
    )
    if PRUNER not in study.user_attrs:
        study.set_user_attr(PRUNER, pruner or "median")
    study.pruner = {
        "median": optuna.pruners.MedianPruner(n_startup_trials=_STARTUP_TRIALS, n_warmup_steps=2),
        "hyperband": optuna.pruners.HyperbandPruner(),
        "none": optuna.pruners.NopPruner(),
    }[study.user_attrs[PRUNER]]
    return study


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


_IDENTITY = "identity"
_ERROR = "error"
_FIRST_FEW = 3
_STATES = {TrialState.COMPLETE: "complete", TrialState.PRUNED: "pruned", TrialState.FAIL: "failed"}


@dataclasses.dataclass(frozen=True)
class TuneOptions:
    """Options of a study.

    Attributes:
        minutes: Time budget of all trials, over all calls [min].
        trials: Maximum number of trials; None: as many as fit.
        pruner: Pruner that stops poor trials early.
        seed: Seed of the sampler.
    """

    minutes: float
    trials: int | None = None
    pruner: Pruner = "median"
    seed: int = 0


class TuningStudy:
    """A new or resumed study in a folder.

    Args:
        path: Config file; None: the default one.
        overrides: Overrides as `a.b=value`.
        data: Data folder.
        folder: Folder of the study.
        written: Ranges from `read_space`; empty: the default ranges.
        options: Options of the study.

    Raises:
        ConfigError: A range is wrong.
        RecsysError: There are no data.
        UsageError: The folder holds another study.
    """

    def __init__(
        self,
        path: Path | None,
        overrides: Sequence[str],
        data: Path,
        folder: Path,
        written: Mapping[str, Any],
        options: TuneOptions,
    ) -> None:
        self._path, self._overrides = path, list(overrides)
        config = load_config(path, overrides)
        opened = open_data(data)  # Before the folder is bound to this config.
        chosen = side_of(config.model, "training").chosen(config, opened, None)
        if chosen is not config:  # Ranges vary the chosen model.
            config = chosen
            self._overrides += [
                f"model={json.dumps(registry.Choice('model').write(config.model))}",
                f"train={config.train.model_dump_json()}",
            ]
        if config.train.validation is None:
            self._overrides.append("train.validation={}")
        self.config = self._load({})
        self._space = parse_space(written or default_space(self.config), self._load)
        self._data, self.folder, self._options = data.absolute(), folder, options
        validation = self.config.train.validation
        self.metric = "" if validation is None else validation.metric
        self.sign = 1 if validation is None else validation.sign
        folder.mkdir(parents=True, exist_ok=True)
        self._study = open_study(folder, options.pruner, self.sign)
        self._check_identity(dict(written or default_space(self.config)))
        self._clear_ended()

    def run(self, log: IO[bytes] | None, report: Callable[[dict[str, Any]], object]) -> None:
        """Runs trials until the budget is spent.

        Args:
            log: File for the output of the trials' processes.
            report: Called with the record of each trial when it begins and when it ends.

        Raises:
            RecsysError: The config itself can't be trained.
            StoppedError: A signal stopped this process, after the trial saved its state.
        """
        while (left := 60 * self._options.minutes - self.seconds) > 0:
            trial = self._next()
            if trial is None:
                break
            self._save()
            report(self.record(trial.number))
            if not self._run_trial(trial, left, log):
                break
            self._clear_ended()
            self._save()
            report(self.record(trial.number))
        self._save()

    @property
    def seconds(self) -> float:
        """Time of the trials so far [s]."""
        return float(sum(trial.user_attrs.get(SECONDS, 0.0) for trial in self._study.trials))

    def records(self) -> list[dict[str, Any]]:
        """Returns the record of each trial, as JSON."""
        trials = self._study.get_trials(states=[*_STATES, TrialState.RUNNING])
        return [self._described(trial) for trial in trials]

    def record(self, number: int) -> dict[str, Any]:
        """Returns the record of a trial, as JSON."""
        return self._described(self._study.trials[number])

    def best(self) -> dict[str, Any] | None:
        """Returns the record of the best finished trial, else of the best; None without trials."""
        records = [record for record in self.records() if record["value"] is not None]
        ended = [record for record in records if record["state"] == "complete"]
        return max(ended or records, key=self._rank, default=None)

    def best_ended(self) -> float:
        """Returns the best value of the finished trials times `sign`, -inf if there are none."""
        records = (record for record in self.records() if record["state"] != "running")
        values = (self._rank(record) for record in records if record["value"] is not None)
        return max(values, default=float("-inf"))

    def _rank(self, record: dict[str, Any]) -> float:
        return float(self.sign * record["value"])

    # --- trials

    def _next(self) -> optuna.Trial | None:
        """Returns an interrupted trial, else a new one; None if there are enough."""
        trials = self._study.trials
        if running := self._study.get_trials(states=[TrialState.RUNNING]):
            return self._suggested(trial_of(self._study, running[0].number))
        if self._options.trials is not None and len(self.records()) >= self._options.trials:
            return None
        if not trials:
            # The config itself comes first, so that all others are compared with it.
            self._study.enqueue_trial(base_parameters(self.config, self._space, self._load))
        return self._suggested(self._study.ask())

    def _suggested(self, trial: optuna.Trial) -> optuna.Trial:
        seed_sampler(self._study, self._options.seed, trial.number)
        for key, distribution in self._space.items():
            suggest(trial, key, distribution)
        return trial

    def _run_trial(self, trial: optuna.Trial, left: float, log: IO[bytes] | None) -> bool:
        """Trains a trial; returns whether it finished within the budget."""
        started, before = time.monotonic(), float(trial.user_attrs.get(SECONDS, 0.0))
        words = ["--data", str(self._data), "--study", str(self.folder)]
        words += ["--number", str(trial.number), "--seconds", str(left)]
        try:
            stage = stage_of(self._load(self._parameters(trial.number)), TrainStage)
            module = "recsys.tuning.trial_process"
            result = run_stage_with_config(module, canonical_json(stage), words, "jax", log)
        except RecsysError as error:
            result = {"state": "failed", "error": error}
        finally:
            trial.set_user_attr(SECONDS, before + time.monotonic() - started)
        if result["state"] == "failed":
            self._failed(trial, result["error"])
            return True
        if result["state"] == "interrupted":
            return False
        trial.set_user_attr("best_step", result["best_step"])
        is_complete = result["state"] == "complete"
        state = TrialState.COMPLETE if is_complete else TrialState.PRUNED
        self._study.tell(trial.number, result["value"] if is_complete else None, state=state)
        return True

    def _failed(self, trial: optuna.Trial, error: RecsysError) -> None:
        """Records why a trial failed.

        Raises:
            RecsysError: The config itself failed, or all of the first few trials.
        """
        trial.set_user_attr(_ERROR, str(error))
        self._study.tell(trial.number, state=TrialState.FAIL)
        states = [other.state for other in self._study.trials]
        if set(states) == {TrialState.FAIL} and (len(states) == 1 or len(states) >= _FIRST_FEW):
            self._save()
            raise error

    def _load(self, values: Mapping[str, Any]) -> Config:
        """Returns the config with some keys set."""
        changes = [f"{key}={json.dumps(value)}" for key, value in values.items()]
        return load_config(self._path, [*self._overrides, *changes])

    def _parameters(self, number: int) -> dict[str, Any]:
        """Returns the config values of a trial, by key."""
        params = self._study.trials[number].params
        return {key: decode(value, self._space[key]) for key, value in params.items()}

    # --- files

    def _described(self, trial: FrozenTrial) -> dict[str, Any]:
        looks = sorted(trial.intermediate_values.items())
        values = [value for _, value in looks]
        return {
            "number": trial.number,
            "state": _STATES.get(trial.state, "running"),
            "value": max(values, key=lambda value: self.sign * value, default=trial.value),
            "parameters": self._parameters(trial.number),
            "seconds": round(float(trial.user_attrs.get(SECONDS, 0.0)), 1),
            "looks": [{"epoch": epoch, "value": value} for epoch, value in looks],
            "best_step": trial.user_attrs.get("best_step"),
            "error": trial.user_attrs.get(_ERROR),
        }

    def _save(self) -> None:
        best = self.best()
        record = {
            "name": self.folder.name,
            "metric": self.metric,
            "data": str(self._data),
            "minutes": self._options.minutes,
            "seconds": round(self.seconds, 1),
            "best": None if best is None else best["number"],
            "trials": self.records(),
        }
        write_record(self.folder, record)
        if best is not None:
            head = f"# {self.metric} {best['value']:.4f} on validation, trial {best['number']}.\n"
            config = self._load(best["parameters"])
            plain = config.model_dump(mode="json", exclude_defaults=True)
            content = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
            commit_text(head + content, self.folder / "best.yaml")

    def _clear_ended(self) -> None:
        """Removes the checkpoints of finished trials, which are as large as the tables."""
        for trial in self._study.get_trials(states=list(_STATES)):
            shutil.rmtree(trial_folder(self.folder, trial.number), ignore_errors=True)

    def _check_identity(self, space: dict[str, Any]) -> None:
        """Checks that the folder has this study; a study whose trials all failed starts anew.

        Raises:
            UsageError: It holds another one.
        """
        manifest = self._data / "store" / MANIFEST
        digest = hashlib.sha256(manifest.read_bytes()).hexdigest() if manifest.is_file() else ""
        stage = canonical_json(stage_of(self.config, TrainStage))
        parts = {
            "config": hashlib.sha256(stage.encode()).hexdigest(),
            "ranges": space,
            "data": digest,
            "pruner": self._options.pruner,
            "seed": self._options.seed,
        }
        before = self._study.user_attrs.get(_IDENTITY, parts)
        changed = [name for name, part in parts.items() if before.get(name) != part]
        if changed and {trial.state for trial in self._study.trials} <= {TrialState.FAIL}:
            optuna.delete_study(study_name=_NAME, storage=self._study._storage)
            self._study = open_study(self.folder, self._options.pruner)
        elif changed:
            raise UsageError(
                "R921",
                f"The study in {str(self.folder)!r} must be resumed with its initial settings;"
                f" changed: {', '.join(changed)}.",
                "Change that back, or name a new study with --study.",
            )
        self._study.set_user_attr(_IDENTITY, parts)
