"""The tables that `recsys run` ends with."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table
from rich.text import Text

from recsys.formats import size

_SHOWN_ITEMS = 5


def show_result(console: Console, summary: dict[str, Any], seconds: float, log: Path) -> None:
    """Prints what a run came to: its figures, its recommendations, its files.

    Args:
        console: Where it goes.
        summary: What the run's `finished` event brought.
        seconds: Duration of the run.
        log: The run's log.
    """
    evaluation = _read_evaluation(summary.get("evaluation"))
    console.print()
    console.print(_metrics_table(summary["metrics"]))
    if summary.get("sharding"):
        console.print(_sharding_table(summary["sharding"]))
    for example in evaluation.get("examples", []):
        console.print(_recommendations_table(example))
    _print_verdict(console, summary, evaluation.get("verdict", {}).get("reasons", []))
    for name in ("bundle", "report"):
        if summary.get(name):
            _print_line(console, name, summary[name])
    _print_line(console, "log", str(log))
    _print_line(console, "seconds", f"{seconds:.1f}")


def _read_evaluation(path: str | None) -> dict[str, Any]:
    if not path:
        return {}
    evaluation: dict[str, Any] = json.loads(Path(path).read_text(encoding="utf-8"))
    return evaluation


def _metrics_table(metrics: dict[str, Any]) -> Table:
    popularity = metrics.get("baselines", {}).get("popularity", {})
    table = _table("Metrics, over the whole catalogue", "metric")
    for heading in ("model", "popularity", "ratio"):
        table.add_column(heading, justify="right")
    for name, value in metrics.items():
        if name == "baselines":
            continue
        other = popularity.get(name)
        table.add_row(
            name,
            f"{value:.4f}",
            "–" if other is None else f"{other:.4f}",
            f"{value / other:.2f}" if other else "–",
        )
    return table


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
    title = f"User {example['user_id']}  (★: chosen later, unseen by the model)"
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
    table = Table(title=Text(title), title_justify="left", title_style="bold")
    table.add_column(first)
    return table


def _print_verdict(console: Console, summary: dict[str, Any], reasons: list[str]) -> None:
    if summary["blessed"]:
        console.print(Text("The model is blessed and pushed.", "bold green"))
    else:
        console.print(
            Text("The model is refused: nothing is pushed, the served one stays.", "bold yellow")
        )
    for reason in reasons:
        console.print(Text(f"  {reason}"), soft_wrap=True)


def _print_line(console: Console, name: str, value: str) -> None:
    console.print(Text(f"{name:<8} {value}"), soft_wrap=True)
