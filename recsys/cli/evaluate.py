"""`recsys evaluate`: a bundle or a model folder, measured as the pipeline measures it."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recsys.cli import stages
from recsys.cli.evaluate_view import show_evaluation
from recsys.config import Config, canonical_json
from recsys.errors import UsageError
from recsys.evaluation.result import EvaluationResult


def evaluate(
    measured: Path | None,
    model: Path | None,
    config_path: Path | None,
    overrides: Sequence[str],
    data: Path,
    out: Path,
    against: Path | None = None,
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

    Returns:
        The result of the stage, with the path of the `report`.

    Raises:
        UsageError: No model is named, or two are.
        RecsysError: The stage failed.
    """
    subject = _one_of(measured, model)
    config = stages.config_of(config_path, overrides)
    result = stages.evaluate(config, data, subject, out, against)
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
    from recsys.report import write_report

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
