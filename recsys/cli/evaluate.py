"""`recsys evaluate`: a bundle or a model folder, measured as the pipeline measures it."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.table import Table

from recsys.cli import stages
from recsys.cli.terminal import Console, fitted_console, titled_table
from recsys.config import Config, canonical_json
from recsys.config.load import load_config
from recsys.errors import UsageError
from recsys.evaluation.result import EvaluationResult, Shown, plain
from recsys.report.evaluated import repeats_in_words


def evaluate(
    measured: Path | None,
    model: Path | None,
    config_path: Path | None,
    overrides: Sequence[str],
    data: Path,
    out: Path,
    against: Path | None = None,
    placed: Mapping[str, object] | None = None,
) -> dict[str, Any]:
    """Measures a model, writes a report, and shows both on stderr.

    Args:
        measured: Model folder or bundle, as it is named first.
        model: The same as an option; one of the two.
        config_path: Config file; the one of the shipped data by default.
        overrides: `a.b=value` each.
        data: Data folder of an InteractionEncoder.
        out: Folder to write `evaluation.json` and `report.html` into.
        against: Model folder or bundle that stands for the last blessed model.
        placed: The options that say which of several processes this is, by name.

    Returns:
        The result of the stage, with the path of the `report`; of several processes the first
        one writes and shows it.

    Raises:
        UsageError: No model is named, or two are.
        RecsysError: The stage failed.
    """
    subject = _one_of(measured, model)
    config = load_config(config_path, overrides)
    result = stages.evaluate(config, data, subject, out, against, placed)
    if result.pop("process", 0):
        return result
    report = _report(config, data, subject, out)
    result = {**result, "report": str(report)}
    show_evaluation(EvaluationResult.load(out).content, result, is_against=against is not None)
    return result


def _one_of(measured: Path | None, model: Path | None) -> Path:
    named = [path for path in (measured, model) if path is not None]
    if len(named) != 1:
        raise UsageError(
            "R905",
            "An evaluation must be of one model.",
            "Name a bundle or a model folder: recsys evaluate MODEL --data DIR --out DIR.",
            [str(path) for path in named],
        )
    return named[0]


def _report(config: Config, data: Path, subject: Path, out: Path) -> Path:
    """Writes the report into `out`; what only a run of the pipeline knows is left out."""
    from recsys.report.run_report import write_report

    return write_report(
        out,
        config=json.loads(canonical_json(config)),
        dead_letters={},
        data=data,
        model=subject,
        evaluation=out,
        bundle=subject if (subject / "manifest.json").is_file() else None,
        pushed=None,
    )


# --- a table and a sentence, on stderr

WIDTH = 100
"""Characters of a line where there is no terminal."""
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
    console = fitted_console(WIDTH, stderr=True)
    shown = EvaluationResult(evaluation)
    console.print(new_table(shown))
    if evaluation.get("meaning"):
        console.write_line(evaluation["meaning"])
    for note in shown.notes()[:-1]:
        console.write_line(note)
    print_repeats(console, evaluation)
    if is_against and evaluation["blessed_model"] is None:
        console.write_line(_NOT_AGAINST)
    style = "bold green" if result["blessed"] else "bold yellow"
    console.write_line(evaluation["verdict"]["sentence"], style)
    for reason in result["reasons"]:
        console.write_line(f"  {reason}")
    for name in ("evaluation", "report"):
        console.write_line(f"{name:<10} {result[name]}")


def print_repeats(console: Console, evaluation: dict[str, Any]) -> None:
    """Prints what became of held-out events that repeat an item, if any does."""
    text = repeats_in_words(evaluation)
    if text:
        console.write_line(plain(text))


def new_table(shown: Shown) -> Table:
    """Returns what a result shows as a table."""
    first, *others = shown.headings()
    table = titled_table(shown.title(), first, *others, numbers=others)
    table.columns[0].no_wrap = True
    for row in shown.rows():
        table.add_row(*row)
    return table
