"""`recsys compare`: two models on the same queries, and which of them is better."""

from __future__ import annotations

import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recsys.cli import stages
from recsys.cli.evaluate import WIDTH, new_table, print_repeats
from recsys.cli.terminal import fitted_console
from recsys.config import EvaluateStage, stage_of
from recsys.config.load import load_config
from recsys.evaluation.api import comparison_stage
from recsys.evaluation.result import Comparison, EvaluationResult


def compare(
    a: Path,
    b: Path,
    config_path: Path | None,
    overrides: Sequence[str],
    data: Path,
    out: Path | None = None,
) -> dict[str, Any]:
    """Measures two models on the same queries and says, by metric, which is better.

    Both are resampled with the same users (the paired bootstrap), so that what makes
    all models good or bad on a user is no part of the interval.

    Args:
        a: Model folder or bundle.
        b: Model folder or bundle; the differences are those of `b` over `a`.
        config_path: Config file; the one of the shipped data by default.
        overrides: `a.b=value` each.
        data: Data folder of an InteractionEncoder.
        out: Folder to write `comparison.json` into; None: nothing is written.

    Returns:
        `a`, `b`, `data`; `query`, `queries`, `users`, `confidence`; the deciding `metric`
        and a `sentence` on it; `metrics`: by name `a`, `b`, `difference`,
        `difference_interval`, `relative`, `interval`, `better` (`a`, `b` or null) and
        `text`.
    """
    config = load_config(config_path, overrides)
    two = comparison_stage(stage_of(config, EvaluateStage))
    config = config.model_copy(update={"evaluate": two.evaluate, "bless": two.bless})
    with tempfile.TemporaryDirectory(prefix="recsys-") as scratch:
        stages.evaluate(config, data, b, Path(scratch), blessed=a)
        evaluation = EvaluationResult.load(scratch).content
    comparison = Comparison(evaluation, config.bless.metric)
    comparison.content = {"a": str(a), "b": str(b), "data": str(data), **comparison.content}
    _show(comparison, evaluation)
    if out is not None:
        comparison.save(out)
    return comparison.content


def _show(comparison: Comparison, evaluation: dict[str, Any]) -> None:
    console = fitted_console(WIDTH, stderr=True)
    for name in ("a", "b"):
        console.write_line(f"{name.upper()}  {comparison.content[name]}")
    console.print(new_table(comparison))
    print_repeats(console, evaluation)
    style = "bold" if comparison.better else ""
    console.write_line(comparison.sentence, style)
