"""`recsys compare`: evaluates two models on the same queries and decides which is better."""

from __future__ import annotations

import json
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

from typer import Argument, Option

from recsys.cli import stages
from recsys.cli.evaluate import WIDTH, evaluation_config, new_table, print_repeats
from recsys.cli.options import AlwaysJson, Data, EvaluationConfig, Sets
from recsys.cli.terminal import fitted_console

if TYPE_CHECKING:
    from recsys.evaluation.result import Comparison


def compare(
    a: Annotated[Path, Argument(metavar="A", help="Bundle or model folder.")],
    b: Annotated[Path, Argument(metavar="B", help="Bundle or model folder to compare with A.")],
    data: Data,
    config: EvaluationConfig = None,
    sets: Sets = None,
    out: Annotated[Path | None, Option(help="Folder to write comparison.json into.")] = None,
    as_json: AlwaysJson = False,
) -> None:
    """Evaluate two models on the same queries and report which is better, with its confidence.

    Prints the result as JSON on stdout and as a table on stderr.
    """
    from recsys.config import EvaluateStage, stage_of
    from recsys.evaluation.result import Comparison, EvaluationResult

    loaded, _ = evaluation_config(config, sets or [], b)
    stage = stage_of(loaded, EvaluateStage).of_two_models()
    with tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
        stages.evaluate(stage, data=data, model=b, out=Path(scratch), blessed=a)
        evaluation = EvaluationResult.load(scratch).content
    comparison = Comparison(evaluation, stage.bless.metric)
    comparison.content = {"a": str(a), "b": str(b), "data": str(data), **comparison.content}
    _show(comparison, evaluation)
    if out is not None:
        comparison.save(out)
    print(json.dumps(comparison.content))


def _show(comparison: Comparison, evaluation: dict[str, Any]) -> None:
    console = fitted_console(WIDTH, stderr=True)
    for name in ("a", "b"):
        console.write_line(f"{name.upper()}  {comparison.content[name]}")
    console.print(new_table(comparison))
    print_repeats(console, evaluation)
    style = "bold" if comparison.better else ""
    console.write_line(comparison.sentence, style)
