"""`recsys tune`: hyperparameter search on the validation part, within a time budget."""

from __future__ import annotations

import math
import os
import re
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Literal

from rich.progress import Progress
from typer import Option

from recsys.cli.options import ConfigArgument, Data, Json, MaybeCount, Seed, Sets
from recsys.cli.show import emit, value_text
from recsys.cli.terminal import Console, log_of_failure, print_error, progress_bar
from recsys.errors import RecsysError, UsageError
from recsys.formats import duration, figure
from recsys.system import events
from recsys.system.installation import extra_needed
from recsys.system.process import StoppedError, signals_raised

if TYPE_CHECKING:
    from recsys.tuning.tuning_study import TuningStudy

_NAME = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,62}")


def tune(
    data: Data,
    config: ConfigArgument = None,
    minutes: Annotated[float, Option(min=0.01)] = 60.0,
    vary: list[str] | None = None,
    space: Path | None = None,
    study: str = "study",
    trials: MaybeCount = None,
    pruner: Literal["median", "hyperband", "none"] = "median",
    seed: Seed = 0,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Search hyperparameters of model and training within a time budget; write the best config.

    Trials are compared on the validation part; the held-out part is never read. A stopped or
    killed study resumes when the same command is run again. Without --vary and --space, the
    default search space of the two towers is used.

    Args:
        minutes: Time budget of the study, over all calls.
        vary: Range of a key, KEY=RANGE: log:0.001..0.1, 16..256, 64..512/64, mean|attention;
            repeatable.
        space: YAML file that maps keys to ranges.
        study: Name of the study.
        trials: Highest number of trials.
        pruner: Pruner that stops poor trials early.
        seed: Random seed of the sampler.
    """
    from recsys.config.load import load_config
    from recsys.storage.working_folder import written
    from recsys.system.run_lock import run_lock
    from recsys.tuning import FOLDER

    if not _NAME.fullmatch(study):
        rule = "The name of a study must consist of letters, digits, `_`, `.` and `-`."
        raise UsageError("R921", rule, "Name another with --study.", study)
    os.environ.setdefault("KERAS_BACKEND", "jax")  # Keras' own default loads TensorFlow.
    rule = "`recsys tune` requires Optuna, from the extra `tune`."
    with extra_needed("tune", "R922", rule, UsageError):
        from recsys.tuning.search_space import read_space
        from recsys.tuning.tuning_study import TuneOptions, TuningStudy, storage_url
    ranges = read_space(space, vary or [])
    root = load_config(config, sets or []).root_folder
    folder = root / FOLDER / study
    options = TuneOptions(minutes=minutes, trials=trials, pruner=pruner, seed=seed)
    console = Console(stderr=True)
    # Other commands on this machine find the served versions while the study has the folder.
    kept = written(root, f"{FOLDER}/{study}/", "serving/")
    with kept as commit, run_lock(folder), log_of_failure("recsys-tune") as log:

        def report(record: dict[str, Any]) -> None:
            view.show_trial(record)
            if record["state"] != "running":
                commit()

        try:
            with signals_raised():
                tuning = TuningStudy(config, sets or [], data, folder, ranges, options)
                with progress_bar(console) as bar:
                    view = TuneView(console, bar, tuning, minutes)
                    n_trials = len(tuning.records())
                    after = f"Resuming after {n_trials} trials in" if n_trials else "Starting in"
                    console.write_line(f"{after} {tuning.folder}")
                    with events.shown_events(view.show):
                        tuning.run(log, report)
        except StoppedError as stopped:
            print_error(f"Stopped by {stopped.name}; the same command resumes the study.")
            sys.exit(stopped.exit_code)
    best = tuning.best()
    if best is None:
        rule = "No trial reached its first validation within the budget."
        cure = "Raise --minutes and run the same command again to resume."
        raise RecsysError("R923", rule, cure, duration(tuning.seconds))
    summary = {
        "folder": str(folder),
        "config": str(folder / "best.yaml"),
        "storage": storage_url(folder),
        "metric": tuning.metric,
        "best": best,
        "trials": len(tuning.records()),
        "seconds": round(tuning.seconds, 1),
    }
    people = {**summary, "charts": f"optuna-dashboard {summary['storage']}"}
    emit(summary, as_json=as_json, people=people)


class TuneView:
    """Displays a study: a line per finished trial, and progress bars for budget and trial.

    Args:
        console: Console to print to.
        bar: Progress bars.
        tuning: The study.
        minutes: The budget [min].
    """

    def __init__(
        self, console: Console, bar: Progress, tuning: TuningStudy, minutes: float
    ) -> None:
        self._console, self._bar = console, bar
        self._metric, self._best = tuning.metric, tuning.best_ended()
        self._sign = tuning.sign
        done = round(tuning.seconds)
        self._whole = bar.add_task("budget", total=60 * minutes, completed=done, text="")
        self._trial = bar.add_task("trial", total=None, text="")

    def show_trial(self, record: dict[str, Any]) -> None:
        """Shows a trial that begins or has ended, as its record says."""
        number, state = record["number"], record["state"]
        if state == "running":
            self._bar.reset(self._trial, description=f"trial {number}", total=None, text="")
            return
        self._bar.advance(self._whole, record["seconds"])
        value = record["value"]
        rank = -math.inf if value is None else self._sign * value
        mark = "★" if rank > self._best else " "
        self._best = max(self._best, rank)
        measured = "" if value is None else f"{self._metric} {figure(value)} "
        outcome = "" if state == "complete" else f"({record['error'] or state}) "
        self._console.write_line(
            f"{mark} trial {number:>3}  {measured}{outcome}· {duration(record['seconds'])}"
            f" · {value_text('', record['parameters'])}"
        )

    def show(self, event: dict[str, Any]) -> None:
        """Displays the training progress of a trial."""
        if event["kind"] == "progress":
            text = event.get("text") or ""
            done, total = event.get("done"), event.get("total")
            self._bar.update(self._trial, completed=done, total=total, text=text)
