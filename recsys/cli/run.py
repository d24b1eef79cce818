"""`recsys run`: runs the pipeline in a process of its own, and shows what came of it."""

from __future__ import annotations

import json
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from recsys.cli.evaluate import print_repeats
from recsys.cli.follow import RunView, follow, new_log
from recsys.cli.pipeline import pipeline_module, require_pipeline
from recsys.cli.terminal import Console, fitted_console, plain_size
from recsys.config import Config
from recsys.config_file import default_config_path, load_config
from recsys.errors import BusyError, RecsysError
from recsys.formats import change, change_span, span
from recsys.report.evaluated import BLESSED, MODEL, Evaluated
from recsys.runs.lock import refuse_if_held
from recsys.runs.past_summaries import read_summary
from recsys.runs.summary import run_summary

_WIDTH = 100  # Where there is no terminal.
_RESULT_KEYS = ("blessed", "bundle", "report", "index", "metrics")


def run(path: Path | None, overrides: Sequence[str], *, as_json: bool) -> None:
    """Runs the pipeline of a config in a child process and shows how it goes.

    Args:
        path: Config file; the one of the shipped data by default.
        overrides: `a.b=value` each.
        as_json: Print one line of JSON on stdout, and the tables on stderr.

    Raises:
        RecsysError: The run failed, with its own error where it gave one.
    """
    started = time.monotonic()
    path = path or default_config_path()
    config = load_config(path, overrides)
    require_pipeline()
    refuse_if_held(Path(config.root))
    log = new_log(Path(config.root))
    words = [pipeline_module("run"), str(path)]
    words += [word for override in overrides for word in ("--set", override)]
    console = Console(stderr=True)
    view = RunView(console)
    try:
        summary = follow(words, log, console, view)
    except RecsysError as error:
        if as_json and not isinstance(error, BusyError):
            seconds = round(time.monotonic() - started, 1)
            print(json.dumps(_failed(config, error, seconds, view.run_id)))
        raise
    seconds = round(time.monotonic() - started, 1)
    show_result(fitted_console(_WIDTH, stderr=as_json), summary, seconds, log)
    if as_json:
        result = {key: summary.get(key) for key in _RESULT_KEYS}
        print(json.dumps({**result, "seconds": seconds, "night": summary.get("night")}))


def _failed(
    config: Config, error: RecsysError, seconds: float, run_id: str | None
) -> dict[str, Any]:
    """Returns what `--json` tells of a run that failed: no figures, and its summary.

    Args:
        config: The config of the run.
        error: Why it failed.
        seconds: How long it took [s].
        run_id: Id of the run; None where it failed before it had one. The clock decides nothing:
            one that was set back makes earlier runs look like later ones.
    """
    root = Path(config.root)
    known_error = {"name": config.name, "state": "failed", "error": str(error)}
    night = run_id and read_summary(root, run_id)
    keys: dict[str, Any] = dict.fromkeys(_RESULT_KEYS)
    return {**keys, "seconds": seconds, "night": night or run_summary(None, known_error, root)}


# --- the tables that it ends with

_SHOWN_ITEMS = 5
_OUTCOMES = {"better": "green", "worse": "red"}
_SHORT_NAMES = {"recent_popularity": "recent", "item_knn": "item-kNN", "ials": "iALS",
                BLESSED: "blessed"}  # fmt: skip


def show_result(console: Console, summary: dict[str, Any], seconds: float, log: Path) -> None:
    """Prints what a run came to: its figures, its recommendations, its files.

    Args:
        console: Where it goes.
        summary: What the run's `finished` event brought.
        seconds: Duration of the run.
        log: The run's log.
    """
    evaluation = _read_evaluation(summary)
    verdict = evaluation.get("verdict") or {}
    console.print()
    if evaluation["metrics"]:
        _print_metrics(console, Evaluated(evaluation, verdict.get("metric")))
        print_repeats(console, evaluation)
        _print_meaning(console, evaluation)
    if summary.get("sharding"):
        console.print(_sharding_table(summary["sharding"]))
    for example in evaluation.get("examples") or []:
        console.print(_recommendations_table(example))
    _print_verdict(console, summary, verdict)
    for name in ("bundle", "report", "index"):
        if summary.get(name):
            _print_line(console, name, summary[name])
    _print_line(console, "log", str(log))
    _print_line(console, "seconds", f"{seconds:.1f}")


def _read_evaluation(summary: dict[str, Any]) -> dict[str, Any]:
    """Returns `evaluation.json`; what the summary tells where it names no file."""
    if not summary.get("evaluation"):
        metrics = {name: value for name, value in summary["metrics"].items() if name != "baselines"}
        return {"metrics": metrics, "baselines": summary["metrics"].get("baselines") or {}}
    evaluation: dict[str, Any] = json.loads(Path(summary["evaluation"]).read_text(encoding="utf-8"))
    return evaluation


def _print_meaning(console: Console, evaluation: dict[str, Any]) -> None:
    """Prints what the split makes of the figures, where they aren't those of a served model."""
    if (evaluation.get("split") or {}).get("split", "time") != "time":
        console.print(Text(str(evaluation.get("meaning") or "")), soft_wrap=True)


def _print_metrics(console: Console, evaluated: Evaluated) -> None:
    console.print(_metrics_table(evaluated))
    if evaluated.others:
        ends = evaluated.interval(evaluated.deciding)
        value = _four_decimals(evaluated.figure(MODEL, evaluated.deciding))
        shown = "" if ends is None else f", {evaluated.interval_name()} {span(ends)}"
        console.print(Text(f"{evaluated.deciding} is {value}{shown}", "bold"), soft_wrap=True)
        console.print(_differences_table(evaluated))


def _metrics_table(evaluated: Evaluated) -> Table:
    """Returns the metrics of everything that was measured, at the cut-off that decides."""
    table = _table(_title(evaluated), "metric")
    for key in evaluated.systems:
        table.add_column(_name(key), justify="right", no_wrap=True)
    k = evaluated.deciding.partition("@")[2]
    for name in evaluated.metrics:
        if not evaluated.is_beyond(name) and (not k or name.partition("@")[2] in ("", k)):
            table.add_row(
                name,
                *(_four_decimals(evaluated.figure(system, name)) for system in evaluated.systems),
            )
    return table


def _title(evaluated: Evaluated) -> str:
    sampled = evaluated.part.get("sampled_negatives")
    if sampled:
        return f"Metrics, among {sampled:,} random items: they decide nothing"
    return "Metrics, over the whole catalogue"


def _differences_table(evaluated: Evaluated) -> Table:
    """Returns how far the model's deciding metric lies from that of each other system."""
    table = _table("", "against")
    for heading in ("difference", evaluated.interval_name()):
        table.add_column(Text(heading), justify="right")
    for key in evaluated.others:
        apart = evaluated.difference(key, evaluated.deciding)
        style = _OUTCOMES.get(apart.outcome, "")
        figures = (change(apart.relative), change_span(apart.interval))
        table.add_row(_name(key), *(Text(text, style) for text in figures))
    return table


def _name(key: str) -> Text:
    return Text(_SHORT_NAMES.get(key, key))


def _four_decimals(value: Any) -> str:
    return f"{value:.4f}" if isinstance(value, int | float) else "–"


def _sharding_table(sharding: list[dict[str, Any]]) -> Table:
    table = _table("Embedding tables", "table")
    for heading in ("rows", "padded", "dim", "split by", "shards", "a device", "its slots"):
        table.add_column(heading, justify="right")
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
    title = f"User {example['user_id']}  (★: held out, unseen by the model)"
    table = _table(title, "did before, newest first")
    table.add_column("is recommended")
    for column in table.columns:
        column.no_wrap, column.ratio = True, 1
    history = [item["title"] for item in example["history"][:_SHOWN_ITEMS]]
    recommended = [
        f"{'★' if item['held_out'] else ' '} {item['title']}"
        for item in example["recommended"][:_SHOWN_ITEMS]
    ]
    for row in range(max(len(history), len(recommended))):
        # Text, because a title such as "[REC]" is no markup.
        table.add_row(
            *(Text(side[row] if row < len(side) else "") for side in (history, recommended))
        )
    return table


def _table(title: str, first: str) -> Table:
    table = Table(title=Text(title) if title else None, title_justify="left", title_style="bold")
    table.add_column(first)
    return table


def _print_verdict(console: Console, summary: dict[str, Any], verdict: dict[str, Any]) -> None:
    if summary["blessed"] and summary["bundle"]:
        console.print(Text("The model is blessed and pushed.", "bold green"))
    elif summary["blessed"]:
        console.print(Text("The model is blessed, but not pushed.", "bold yellow"))
        console.print(Text(str(summary.get("not_pushed") or "")), soft_wrap=True)
    else:
        console.print(
            Text("The model is refused: nothing is pushed, the served one stays.", "bold yellow")
        )
    if verdict.get("sentence"):
        console.print(Text(str(verdict["sentence"]), "bold"), soft_wrap=True)
    for reason in verdict.get("reasons") or []:
        console.print(Text(f"  {reason}"), soft_wrap=True)


def _print_line(console: Console, name: str, value: str) -> None:
    console.print(Text(f"{name:<8} {value}"), soft_wrap=True)
