"""`recsys evaluate` and `compare`: one model against its thresholds, or two against each other."""

from __future__ import annotations

import json
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from rich.table import Table
from typer import Argument, Option

from recsys.cli import stages
from recsys.cli.options import (
    Coordinator,
    Data,
    EvaluationConfig,
    JsonForPrograms,
    NumProcesses,
    Out,
    PluginFolder,
    Processes,
    ProcessId,
    Sets,
    Wait,
)
from recsys.cli.terminal import Console, fitted_console, titled_table
from recsys.errors import UsageError

if TYPE_CHECKING:
    from recsys.config import EvaluateStage
    from recsys.evaluation.result import Comparison, Shown


def evaluate(
    data: Data,
    out: Out,
    measured: Annotated[
        Path | None, Argument(metavar="MODEL", help="Bundle or model folder.")
    ] = None,
    model: Annotated[Path | None, Option(help="MODEL as an option.")] = None,
    config: EvaluationConfig = None,
    sets: Sets = None,
    plugin_folder: PluginFolder = None,
    against: Annotated[
        Path | None, Option(metavar="MODEL", help="Last blessed model, to compare with.")
    ] = None,
    processes: Processes = 1,
    coordinator: Coordinator = None,
    num_processes: NumProcesses = None,
    process_id: ProcessId = None,
    wait: Wait = None,
    as_json: JsonForPrograms = False,
) -> None:
    """Evaluate a bundle or a model folder over the whole catalogue, as the pipeline does.

    Writes evaluation.json and report.html into --out. Prints a table on stderr, and the result
    as JSON on stdout if that is no terminal. With several processes, each holds a part of the
    tables and of the catalogue, and the first one writes and prints.
    """
    named = [path for path in (measured, model) if path is not None]
    if len(named) != 1:
        raise UsageError(
            "R905",
            "An evaluation needs exactly one model.",
            "Name a bundle or a model folder: recsys evaluate MODEL --data DIR --out DIR.",
            [str(path) for path in named],
        )
    loaded, origin = _evaluation_config(config, sets or [], named[0], plugin_folder)
    result = stages.evaluate(
        loaded,
        data=data,
        model=named[0],
        out=out,
        blessed=against,
        processes=None if processes == 1 else processes,
        coordinator=coordinator,
        num_processes=num_processes,
        process_id=process_id,
        wait=wait,
    )
    if not result.pop("process", 0):
        result["report"] = str(_report(loaded, data, named[0], out))
        _show(out, result, origin, is_against=against is not None)
    if as_json or not sys.stdout.isatty():
        print(json.dumps(result))


def compare(
    a: Annotated[Path, Argument(metavar="A", help="Bundle or model folder.")],
    b: Annotated[Path, Argument(metavar="B", help="Bundle or model folder to compare with A.")],
    data: Data,
    config: EvaluationConfig = None,
    sets: Sets = None,
    plugin_folder: PluginFolder = None,
    out: Annotated[Path | None, Option(help="Folder to write comparison.json into.")] = None,
    as_json: JsonForPrograms = False,
) -> None:
    """Evaluate two models on the same queries and report which is better, with its confidence.

    Prints a table on stderr, and the result as JSON on stdout if that is no terminal.
    """
    from recsys.config import EvaluateStage, stage_of
    from recsys.evaluation.result import Comparison, EvaluationResult

    loaded, _ = _evaluation_config(config, sets or [], b, plugin_folder)
    stage = stage_of(loaded, EvaluateStage).of_two_models()
    with tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
        stages.evaluate(stage, data=data, model=b, out=Path(scratch), blessed=a)
        evaluation = EvaluationResult.load(scratch).content
    comparison = Comparison(evaluation, stage.bless.metric)
    comparison.content = {"a": str(a), "b": str(b), "data": str(data), **comparison.content}
    _show_comparison(comparison, evaluation)
    if out is not None:
        comparison.save(out)
    if as_json or not sys.stdout.isatty():
        print(json.dumps(comparison.content))


def _evaluation_config(
    config: Path | None, sets: list[str], model: Path, plugin_folder: Path | None
) -> tuple[EvaluateStage, str]:
    """Returns the config of an evaluation, and what to call its thresholds.

    Without a config the defaults apply, as in `recsys.evaluate`, and not those of the shipped
    config, whose thresholds are about other data.

    Args:
        config: The file of --config; None: `recsys.yaml` in the current folder, if there is one.
        sets: Overrides.
        model: The model, whose training decides on `repeats` without a config.
        plugin_folder: Folder of plugins, from which the processes of the stage import too.
    """
    from recsys.bundles.bundle import repeats_of_folder
    from recsys.config import EvaluateStage
    from recsys.config.load import DEFAULT_NAME, default_stage, load_config

    if plugin_folder is not None:
        sys.path.insert(0, str(plugin_folder))
    if config is None and Path(DEFAULT_NAME).exists():
        config = Path(DEFAULT_NAME)
    if config is not None:
        return load_config(config, sets), f"those of {config}"
    known = {"repeats": repeats_of_folder(model)}
    defaults = "the defaults and --set" if sets else "the defaults"
    return default_stage(EvaluateStage, known, sets), f"{defaults}, as no --config is given"


def _report(config: EvaluateStage, data: Path, subject: Path, out: Path) -> Path:
    """Writes the report into `out`, without the parts that only a pipeline run has."""
    from recsys.config import canonical_json
    from recsys.report.run_report import write_report

    return write_report(
        out,
        config={"name": str(subject), **json.loads(canonical_json(config))},
        dead_letters={},
        data=data,
        model=subject,
        evaluation=out,
        bundle=subject if (subject / "manifest.json").is_file() else None,
        pushed=None,
    )


# --- a table and a sentence, on stderr

_WIDTH = 100
"""Line width if there is no terminal [characters]."""
_NOT_AGAINST = (
    "The model of --against was not compared, because bless.over_blessed is 0; use recsys compare."
)


def _show(folder: Path, result: dict[str, Any], origin: str, *, is_against: bool) -> None:
    """Prints the metrics, the verdict and the output files.

    Args:
        folder: Folder with `evaluation.json`.
        result: Result that the command prints on stdout.
        origin: What the thresholds are those of.
        is_against: Whether --against was given.
    """
    from recsys.evaluation.result import EvaluationResult

    console = fitted_console(_WIDTH, stderr=True)
    shown = EvaluationResult.load(folder)
    evaluation = shown.content
    console.print(_new_table(shown))
    if evaluation.get("meaning"):
        console.write_line(evaluation["meaning"])
    for note in shown.notes()[:-1]:
        console.write_line(note)
    print_repeats(console, evaluation)
    if is_against and evaluation["blessed_model"] is None:
        console.write_line(_NOT_AGAINST)
    console.write_line(f"Thresholds: {origin}.")
    if warning := evaluation["verdict"].get("warning"):
        console.write_line(warning, "bold red")
    style = "bold green" if result["blessed"] else "bold yellow"
    console.write_line(shown.sentence, style)
    for reason in result["reasons"]:
        console.write_line(f"  {reason}")
    for name in ("evaluation", "report"):
        console.write_line(f"{name:<10} {result[name]}")


def _show_comparison(comparison: Comparison, evaluation: dict[str, Any]) -> None:
    console = fitted_console(_WIDTH, stderr=True)
    for name in ("a", "b"):
        console.write_line(f"{name.upper()}  {comparison.content[name]}")
    console.print(_new_table(comparison))
    print_repeats(console, evaluation)
    style = "bold" if comparison.better else ""
    console.write_line(comparison.sentence, style)


def print_repeats(console: Console, evaluation: dict[str, Any]) -> None:
    """Prints how held-out events that repeat an item were treated, if there are any."""
    from recsys.report.evaluated import repeats_in_words

    if text := repeats_in_words(evaluation):
        console.write_line(text.replace("\N{NO-BREAK SPACE}", " "))


def _new_table(shown: Shown) -> Table:
    """Returns a table of a result."""
    first, *others = shown.headings()
    table = titled_table(shown.title(), first, *others, numbers=others)
    table.columns[0].no_wrap = True
    for row in shown.rows():
        table.add_row(*row)
    return table
