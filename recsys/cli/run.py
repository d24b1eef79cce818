"""`recsys run` and `simulate-nights`: the pipeline in a subprocess, and its result."""

from __future__ import annotations

import itertools
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any, Literal

from typer import Option

from recsys.cli.options import ConfigArgument, Json, MaybeCount, Out, Sets
from recsys.cli.processes import RUNNER, RunView, follow, new_log, require_pipeline
from recsys.cli.show import emit
from recsys.cli.stages import figures_for_people, verdict_for_people
from recsys.cli.terminal import Console
from recsys.errors import BusyError, RecsysError

_RESULT_KEYS = ("blessed", "bundle", "report", "index", "metrics", "night")


def run(config: ConfigArgument = None, sets: Sets = None, as_json: Json = False) -> None:
    """Run the whole pipeline: ingest, train, evaluate, export, push, report.

    Exit codes: 0: the run finished, even if the model was refused; 1: a step failed;
    2: the config or the command is invalid; 75: another run uses the same root.
    """
    from recsys.config.load import default_config_path, load_config
    from recsys.storage.working_folder import check_home
    from recsys.system.run_lock import refuse_if_held

    started = time.monotonic()
    path, overrides = config or default_config_path(), sets or []
    loaded = load_config(path, overrides)
    root = loaded.root_folder
    require_pipeline()
    refuse_if_held(root)
    check_home(root)
    log = new_log(root)
    words = [RUNNER, str(path)]
    words += [word for override in overrides for word in ("--set", override)]
    view = RunView(Console(stderr=True))
    result: dict[str, Any] = dict.fromkeys(_RESULT_KEYS)
    try:
        summary = follow(words, log, view)
    except RecsysError as error:
        if as_json and not isinstance(error, BusyError):
            result["night"] = _summary(root, view.run_id, loaded.name, error)
            print(json.dumps({**result, "seconds": round(time.monotonic() - started, 1)}))
        raise
    seconds = round(time.monotonic() - started, 1)
    people = {**for_people(summary), "log": str(log), "seconds": seconds}
    result = {**{key: summary.get(key) for key in _RESULT_KEYS}, "seconds": seconds}
    emit(result, as_json=as_json, people=people, beside=True)


def _summary(root: Path, run_id: str | None, name: str, error: RecsysError) -> dict[str, Any]:
    """Returns the summary of a failed run, from its record if it has one."""
    from recsys.report.runs import MissingError
    from recsys.runs.summary import read_summary, run_summary

    try:
        # By id, since the clock may have been set back.
        return read_summary(root, run_id or "")
    except (MissingError, OSError):
        return run_summary(None, {"name": name, "state": "failed", "error": str(error)}, root)


# --- output for people

_SHOWN_ITEMS = 5


def for_people(summary: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the metrics, recommendations, verdict and output files of a run.

    Args:
        summary: Summary of the run's `finished` event.
    """
    from recsys.evaluation.result import EvaluationResult

    evaluated = EvaluationResult.load(Path(summary["evaluation"]).parent)
    examples = evaluated.content.get("examples") or []
    pushed = "pushed" if summary["bundle"] else f"not pushed: {summary['not_pushed']}"
    return {
        **figures_for_people(evaluated),
        "embedding tables": summary["sharding"],
        **{f"user {example['user_id']}": _example(example) for example in examples},
        **{name: summary[name] for name in ("bundle", "report", "index")},
        **verdict_for_people(evaluated.content["verdict"]),
        "model": pushed if summary["blessed"] else "not pushed; the served model stays",
    }


def _example(example: Mapping[str, Any]) -> list[dict[str, str]]:
    """Returns the newest items of a user's history beside the recommended items."""
    titles = [item["title"] for item in example["history"][:_SHOWN_ITEMS]]
    best = example["recommended"][:_SHOWN_ITEMS]
    marks = ["★" if item["held_out"] else "" for item in best]
    recommended = [item["title"] for item in best]
    rows = itertools.zip_longest(titles, marks, recommended, fillvalue="")
    names = ("history, newest first", "held out", "recommended")
    return [dict(zip(names, row, strict=True)) for row in rows]


# --- nights


def simulate_nights(
    out: Out,
    config: ConfigArgument = None,
    by: Literal["day", "week", "month"] = "month",
    nights: Annotated[int | None, Option(min=2)] = None,
    window: MaybeCount = None,
    sets: Sets = None,
    as_json: Json = False,
) -> None:
    """Backtest: replay past data night by night.

    An interrupted simulation resumes when the same command is run again.

    Args:
        by: Period of data per night.
        nights: Number of nights. Default: half the periods.
        window: Number of newest spans to read. Default: all.
    """
    require_pipeline()
    from recsys.config.load import load_config
    from recsys.runs.backtest import NIGHTS, Simulation

    def run_pipeline(file: Path) -> dict[str, Any]:
        log = new_log(simulation.config.root_folder)
        return follow([RUNNER, str(file)], log, RunView(Console(quiet=True)))

    loaded, report = load_config(config, sets or []), Console(stderr=True).write_line
    simulation = Simulation(loaded, out.resolve(), by, nights, window, run_pipeline, report)
    simulation.run()
    finished, page = simulation.nights, str(simulation.page)
    done = {"nights": finished, "page": page, "nights_file": str(out.resolve() / NIGHTS)}
    shown = ("span", "state", "value", "interval", "steps", "seconds")
    rows = [{name: night.get(name) for name in shown} for night in finished]
    people = {f"{simulation.config.bless.metric} by night": rows, **done, "nights": len(rows)}
    emit(done, as_json=as_json, people=people, beside=True)
