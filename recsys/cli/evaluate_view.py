"""What people see of an evaluation: a table and a sentence, on stderr."""

from __future__ import annotations

import os
import sys
from collections.abc import Sequence
from typing import Any

from rich.table import Table
from rich.text import Text

from recsys.cli.terminal import Console
from recsys.formats import count, counted, span
from recsys.report.evaluated import repeats_in_words

_WIDTH = 100  # Where no terminal says its own.
_SHOWN = ("recall@", "ndcg@", "mrr")
_NAMES = {
    "popularity": "popularity",
    "recent_popularity": "recent",
    "item_knn": "item-kNN",
    "ials": "iALS",
}
_NOT_AGAINST = (
    "Nothing was compared with the model of --against, because bless.over_blessed is 0:"
    " recsys compare does it in any case."
)


def show_evaluation(
    evaluation: dict[str, Any], result: dict[str, Any], *, is_against: bool = False
) -> None:
    """Prints what was measured, the verdict and the files.

    Args:
        evaluation: What `evaluation.json` holds.
        result: What the command prints on stdout.
        is_against: Whether a model to compare with was named.
    """
    console = talk()
    console.print(_table(evaluation))
    if evaluation.get("meaning"):
        console.print(Text(evaluation["meaning"]), soft_wrap=True)
    for name, why in evaluation["baselines_left_out"].items():
        console.print(Text(f"{_NAMES.get(name, name)} was not measured: {why}"), soft_wrap=True)
    print_repeats(console, evaluation)
    if is_against and evaluation["blessed_model"] is None:
        console.print(Text(_NOT_AGAINST), soft_wrap=True)
    style = "bold green" if result["blessed"] else "bold yellow"
    console.print(Text(evaluation["verdict"]["sentence"], style), soft_wrap=True)
    for reason in result["reasons"]:
        console.print(Text(f"  {reason}"), soft_wrap=True)
    for name in ("evaluation", "report"):
        console.print(Text(f"{name:<10} {result[name]}"), soft_wrap=True)


def print_repeats(console: Console, evaluation: dict[str, Any]) -> None:
    """Prints what became of held-out events that repeat an item, if any does."""
    text = repeats_in_words(evaluation)
    if text:
        # Plain spaces, so that what is printed can be searched.
        console.print(Text(text.replace("\N{NO-BREAK SPACE}", " ")), soft_wrap=True)


def talk() -> Console:
    """Returns where people read: stderr, as wide as a terminal is."""
    width = None if sys.stderr.isatty() or "COLUMNS" in os.environ else _WIDTH
    return Console(stderr=True, width=width)


def new_table(title: str, headings: Sequence[str]) -> Table:
    """Returns a table of metrics and figures."""
    table = Table(title=Text(title), title_justify="left", title_style="bold")
    table.add_column("metric", no_wrap=True)
    for heading in headings:
        # A number goes on in the next line rather than lose digits.
        table.add_column(Text(heading), justify="right", overflow="fold")
    return table


def four_decimals(value: float | None) -> str:
    """Returns a metric as `0.1234`; a dash where it could not be computed."""
    return "–" if value is None else f"{value:.4f}"


def measured_on(evaluation: dict[str, Any]) -> str:
    """Returns on what an evaluation was made: queries, users and items."""
    sampled = evaluation.get("sampled_negatives")
    among = f"{count(sampled)} random items" if sampled else f"{count(evaluation['candidates'])}"
    queries = counted(evaluation["queries"], "query", "queries")
    users = counted(evaluation["users"], "user", "users")
    return f"{queries} of {users}, ranks among {among}" + ("" if sampled else " items")


def _table(evaluation: dict[str, Any]) -> Table:
    others = {_NAMES.get(n, n): figures for n, figures in evaluation["baselines"].items()}
    if evaluation["blessed_model"] is not None:
        others["last blessed"] = evaluation["blessed_model"]
    confidence = f"{100 * evaluation['confidence']:.3g} % interval"
    table = new_table(measured_on(evaluation), ["model", confidence, *others])
    for name, value in evaluation["metrics"].items():
        if name.startswith(_SHOWN):
            found = span(evaluation["intervals"].get(name))
            theirs = [four_decimals(figures.get(name)) for figures in others.values()]
            table.add_row(name, four_decimals(value), found, *theirs)
    return table
