"""What people see of an evaluation: a table and a sentence, on stderr."""

from __future__ import annotations

import os
import sys
from typing import Any

from rich.table import Table
from rich.text import Text

from recsys.cli.terminal import Console
from recsys.evaluation.result import EvaluationResult, Shown
from recsys.report.evaluated import repeats_in_words

_WIDTH = 100  # Where no terminal says its own.
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
    shown = EvaluationResult(evaluation)
    console.print(new_table(shown))
    if evaluation.get("meaning"):
        console.print(Text(evaluation["meaning"]), soft_wrap=True)
    for note in shown.notes()[:-1]:
        console.print(Text(note), soft_wrap=True)
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


def new_table(shown: Shown) -> Table:
    """Returns what a result shows as a table."""
    table = Table(title=Text(shown.title()), title_justify="left", title_style="bold")
    first, *others = shown.headings()
    table.add_column(first, no_wrap=True)
    for heading in others:
        # A number goes on in the next line rather than lose digits.
        table.add_column(Text(heading), justify="right", overflow="fold")
    for row in shown.rows():
        table.add_row(*row)
    return table
