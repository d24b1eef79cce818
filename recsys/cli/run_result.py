"""The tables that `recsys run` ends with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.table import Table
from rich.text import Text

from recsys.cli.evaluate_view import print_repeats
from recsys.cli.terminal import Console
from recsys.formats import change, change_span, size, span
from recsys.report.evaluated import BLESSED, MODEL, Evaluated

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
        _print_metrics(console, Evaluated(evaluation, _deciding(verdict)))
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
        metrics = {name: one for name, one in summary["metrics"].items() if name != "baselines"}
        return {"metrics": metrics, "baselines": summary["metrics"].get("baselines") or {}}
    evaluation: dict[str, Any] = json.loads(Path(summary["evaluation"]).read_text(encoding="utf-8"))
    return evaluation


def _deciding(verdict: dict[str, Any]) -> str | None:
    return verdict.get("metric")


def _print_meaning(console: Console, evaluation: dict[str, Any]) -> None:
    """Prints what the split makes of the figures, where they aren't those of a served model."""
    if (evaluation.get("split") or {}).get("split", "time") != "time":
        console.print(Text(str(evaluation.get("meaning") or "")), soft_wrap=True)


def _print_metrics(console: Console, found: Evaluated) -> None:
    console.print(_metrics_table(found))
    if found.others:
        ends = found.interval(found.deciding)
        value = _four_decimals(found.figure(MODEL, found.deciding))
        shown = "" if ends is None else f", {found.interval_name()} {span(ends)}"
        console.print(Text(f"{found.deciding} is {value}{shown}", "bold"), soft_wrap=True)
        console.print(_differences_table(found))


def _metrics_table(found: Evaluated) -> Table:
    """Returns the metrics of everything that was measured, at the cut-off that decides."""
    table = _table(_title(found), "metric")
    for key in found.subjects:
        table.add_column(_name(key), justify="right", no_wrap=True)
    k = found.deciding.partition("@")[2]
    for name in found.metrics:
        if not found.is_beyond(name) and (not k or name.partition("@")[2] in ("", k)):
            table.add_row(
                name, *(_four_decimals(found.figure(one, name)) for one in found.subjects)
            )
    return table


def _title(found: Evaluated) -> str:
    sampled = found.part.get("sampled_negatives")
    if sampled:
        return f"Metrics, among {sampled:,} random items: they decide nothing"
    return "Metrics, over the whole catalogue"


def _differences_table(found: Evaluated) -> Table:
    """Returns how far the model's deciding metric lies from that of each other subject."""
    table = _table("", "against")
    for heading in ("difference", found.interval_name()):
        table.add_column(Text(heading), justify="right")
    for key in found.others:
        apart = found.difference(key, found.deciding)
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
            _size(part["bytes_per_device"]),
            _size(part["slot_bytes_per_device"]),
        )
    return table


def _size(n_bytes: int) -> str:
    # Plain spaces, so that what is printed can be searched.
    return size(n_bytes).replace("\N{NO-BREAK SPACE}", " ")


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
