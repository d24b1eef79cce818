"""The evaluation as a stage: folders in, `evaluation.json` out.

`python -m recsys.evaluation.stage` runs it; the component RetrievalEvaluator starts that.
"""

from __future__ import annotations

import argparse
import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from recsys.config import EvaluateStage
from recsys.config.load import load_stage
from recsys.evaluation import api
from recsys.system import events
from recsys.system.process import stage_main

_STEP = "RetrievalEvaluator"


def evaluate(
    stage: EvaluateStage, model: Path, data: Path, out: Path, blessed: Path | None = None
) -> dict[str, Any]:
    """Evaluates a model, decides on it, and writes `evaluation.json`.

    Args:
        stage: The metrics and the thresholds.
        model: Model folder or bundle.
        data: Data folder with the held-out events.
        out: Folder to write `evaluation.json` into.
        blessed: The last blessed model, if there is one; a model folder or a bundle. It is
            left out where no threshold names it.

    Returns:
        What `evaluation.json` holds (see `docs/architecture.md`).

    Raises:
        RecsysError: Nothing is held out, none of it is known, a folder is damaged, or a
            score is no number.
    """
    if not any(rule.over_blessed for rule in stage.bless.all_rules()):
        blessed = None
    result = api.evaluate(model, data, config=stage, blessed=blessed, progress=_emit)
    result.save(out)
    # Lists where there were tuples: the same for who reads the file.
    written: dict[str, Any] = json.loads(json.dumps(result.content))
    return written


def _emit(system: str, done: int, total: int) -> None:
    text = f"{system.replace('_', ' ')}: {done:,} of {total:,} queries"
    events.emit("progress", step=_STEP, done=done, total=total, text=text)


def _parse(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        prog="python -m recsys.evaluation.stage",
        description="Measures a model on the held-out events, and decides on it.",
    )
    parser.add_argument("--config", type=Path, required=True, help="whole config, or its parts")
    parser.add_argument("--model", type=Path, required=True, help="model folder or bundle")
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument("--out", type=Path, required=True, help="folder of evaluation.json")
    parser.add_argument("--blessed", type=Path, help="model folder or bundle to compare with")
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the stage from the command line."""
    options = _parse(arguments)
    stage = load_stage(options.config, EvaluateStage)
    result = evaluate(stage, options.model, options.data, options.out, options.blessed)
    verdict = result["verdict"]
    return {
        "evaluation": str(options.out / "evaluation.json"),
        "metrics": {**result["metrics"], "baselines": result["baselines"]},
        "meaning": result["meaning"],
        **{name: result[name] for name in ("repeats", "repeated_positives", "repeated_share")},
        "blessed": verdict["blessed"],
        "sentence": verdict["sentence"],
        "reasons": verdict["reasons"],
    }


if __name__ == "__main__":
    stage_main(main)
