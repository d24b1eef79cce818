"""`recsys run`: runs the pipeline in a subprocess and shows its progress and result."""

from __future__ import annotations

import itertools
import json
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from rich.table import Table
from rich.text import Text

from recsys.cli.evaluate import print_repeats
from recsys.cli.follow import RunView, follow, new_log
from recsys.cli.options import ConfigArgument, Json, Sets
from recsys.cli.stages import pipeline_module, require_pipeline
from recsys.cli.terminal import Console, fitted_console, plain_size, titled_table
from recsys.errors import BusyError, RecsysError
from recsys.formats import change, change_span, span

if TYPE_CHECKING:
    from recsys.report.evaluated import Evaluated

_WIDTH = 100  # Without a terminal.
_RESULT_KEYS = ("blessed", "bundle", "report", "index", "metrics", "night")


def run(config: ConfigArgument = None, sets: Sets = None, as_json: Json = False) -> None:
    """Run the whole pipeline: ingest, train, evaluate, export, push, report.

    Exit codes: 0: the run finished, even if the model was refused; 1: a step failed;
    2: the config or the command is invalid; 75: another run uses the same root.
    """
    from recsys.config.load import default_config_path, load_config
    from recsys.runs.lock import refuse_if_held

    started = time.monotonic()
    path, overrides = config or default_config_path(), sets or []
    loaded = load_config(path, overrides)
    root = loaded.root_folder
    require_pipeline()
    refuse_if_held(root)
    log = new_log(root)
    words = [pipeline_module("run"), str(path)]
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
    show_result(fitted_console(_WIDTH, stderr=as_json), summary, seconds, log)
    if as_json:
        print(json.dumps({**{key: summary.get(key) for key in result}, "seconds": seconds}))


def _summary(root: Path, run_id: str | None, name: str, error: RecsysError) -> dict[str, Any]:
    """Returns the summary of a failed run, from its record if it has one."""
    from recsys.report.run_artifacts import MissingError
    from recsys.runs.summary import read_summary, run_summary

    try:
        # By id, since the clock may have been set back.
        return read_summary(root, run_id or "")
    except (MissingError, OSError):
        return run_summary(None, {"name": name, "state": "failed", "error": str(error)}, root)


# --- the result

_SHOWN_ITEMS = 5
_OUTCOMES = {"better": "green", "worse": "red"}
_SHORT_NAMES = {"recent_popularity": "recent", "item_knn": "item-kNN", "ials": "iALS",
                "blessed_model": "blessed"}  # fmt: skip


def show_result(console: Console, summary: dict[str, Any], seconds: float, log: Path) -> None:
    """Prints the metrics, recommendations and output files of a run.

    Args:
        console: Console to print to.
        summary: Summary of the run's `finished` event.
        seconds: Duration of the run [s].
        log: Log file of the run.
    """
    from recsys.report.evaluated import Evaluated

    evaluation = _read_evaluation(summary)
    verdict = evaluation.get("verdict") or {}
    console.print()
    if evaluation["metrics"]:
        evaluated = Evaluated(evaluation, verdict.get("metric"))
        console.print(_metrics_table(evaluated))
        if evaluated.others:
            _print_differences(console, evaluated)
        print_repeats(console, evaluation)
        if (evaluation.get("split") or {}).get("split", "time") != "time":
            # With such a split the metrics are not those of a served model.
            console.write_line(str(evaluation.get("meaning") or ""))
    if summary.get("sharding"):
        console.print(_sharding_table(summary["sharding"]))
    for example in evaluation.get("examples") or []:
        console.print(_recommendations_table(example))
    _print_verdict(console, summary, verdict)
    files = {name: summary.get(name) for name in ("bundle", "report", "index")}
    for name, value in {**files, "log": str(log), "seconds": f"{seconds:.1f}"}.items():
        if value:
            console.write_line(f"{name:<8} {value}")


def _read_evaluation(summary: dict[str, Any]) -> dict[str, Any]:
    """Returns `evaluation.json`, or the metrics of the summary if it names no file."""
    if not summary.get("evaluation"):
        metrics = {name: value for name, value in summary["metrics"].items() if name != "baselines"}
        return {"metrics": metrics, "baselines": summary["metrics"].get("baselines") or {}}
    evaluation: dict[str, Any] = json.loads(Path(summary["evaluation"]).read_text(encoding="utf-8"))
    return evaluation


def _metrics_table(evaluated: Evaluated) -> Table:
    """Returns a table of the metrics of all systems, at the deciding cut-off."""
    sampled = evaluated.part.get("sampled_negatives")
    title = "Metrics, over the whole catalogue"
    if sampled:
        title = f"Metrics, against {sampled:,} random items; they do not bless a model"
    names = [_name(key) for key in evaluated.systems]
    table = titled_table(title, "metric", *names, numbers=names)
    k = evaluated.deciding.partition("@")[2]
    for name in evaluated.metrics:
        if not evaluated.is_beyond(name) and (not k or name.partition("@")[2] in ("", k)):
            figures = (evaluated.figure(system, name) for system in evaluated.systems)
            table.add_row(name, *map(_four_decimals, figures))
    return table


def _print_differences(console: Console, evaluated: Evaluated) -> None:
    """Prints the deciding metric and its difference from each other system."""
    ends = evaluated.interval(evaluated.deciding)
    value = _four_decimals(evaluated.figure("model", evaluated.deciding))
    shown = "" if ends is None else f", {evaluated.interval_name()} {span(ends)}"
    console.write_line(f"{evaluated.deciding} is {value}{shown}", "bold")
    headings = ("difference", evaluated.interval_name())
    table = titled_table("", "against", *headings, numbers=headings)
    for key in evaluated.others:
        apart = evaluated.difference(key, evaluated.deciding)
        style = _OUTCOMES.get(apart.outcome, "")
        figures = (change(apart.relative), change_span(apart.interval))
        table.add_row(Text(_name(key)), *(Text(text, style) for text in figures))
    console.print(table)


def _name(key: str) -> str:
    return _SHORT_NAMES.get(key, key)


def _four_decimals(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "–"


def _sharding_table(sharding: list[dict[str, Any]]) -> Table:
    numbers = ("rows", "padded", "dim", "sharded by", "shards", "per device", "slots")
    table = titled_table("Embedding tables", "table", *numbers, numbers=numbers)
    for part in sharding:
        table.add_row(
            Text(part["table"]),
            f"{part['rows']:,}",
            f"{part['padded_rows']:,}",
            str(part["dim"]),
            {"replicated": "–"}.get(part["placement"], part["placement"]),
            str(part["shards"]),
            plain_size(part["bytes_per_device"]),
            plain_size(part["slot_bytes_per_device"]),
        )
    return table


def _recommendations_table(example: dict[str, Any]) -> Table:
    table = titled_table(f"User {example['user_id']}  (★: held out, unseen by the model)")
    for heading in ("history, newest first", "recommended"):
        table.add_column(heading, no_wrap=True)
    history = [item["title"] for item in example["history"][:_SHOWN_ITEMS]]
    recommended = [
        f"{'★' if item['held_out'] else ' '} {item['title']}"
        for item in example["recommended"][:_SHOWN_ITEMS]
    ]
    for titles in itertools.zip_longest(history, recommended, fillvalue=""):
        table.add_row(*map(Text, titles))  # Text, because a title may look like markup: "[REC]".
    return table


def _print_verdict(console: Console, summary: dict[str, Any], verdict: dict[str, Any]) -> None:
    if summary["blessed"] and summary["bundle"]:
        console.write_line("The model is blessed and pushed.", "bold green")
    elif summary["blessed"]:
        console.write_line("The model is blessed, but not pushed.", "bold yellow")
        console.write_line(str(summary.get("not_pushed") or ""))
    else:
        sentence = "The model is refused and not pushed; the served model stays."
        console.write_line(sentence, "bold yellow")
    if verdict.get("warning"):
        console.write_line(str(verdict["warning"]), "bold red")
    if verdict.get("sentence"):
        console.write_line(str(verdict["sentence"]), "bold")
    for reason in verdict.get("reasons") or []:
        console.write_line(f"  {reason}")
