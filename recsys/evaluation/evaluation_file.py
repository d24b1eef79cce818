"""Measures a model and writes `evaluation.json`, in each process of an evaluation.

`recsys.stages.evaluate` starts it. With several processes, tables and candidates are split over all
devices, and process 0 writes the file.
"""

from __future__ import annotations

import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from recsys.distributed.coordination import agreed, failing_at_once, is_primary
from recsys.distributed.join import facts_of, join
from recsys.embedding import device_mesh
from recsys.evaluation import api
from recsys.evaluation.config import EvaluateStage
from recsys.evaluation.second_stage import LEFT_OUT
from recsys.system import events

if TYPE_CHECKING:
    import keras

_REPEATS = ("repeats", "repeated_positives", "repeated_share")


def run(
    stage: EvaluateStage,
    model: Path,
    data: Path,
    out: Path,
    blessed: Path | None,
    blessed_second_stage: str | None = None,
) -> dict[str, Any]:
    """Evaluates in this process and the ones started beside it; returns the summary.

    Arguments and errors are the same as of `evaluate`.
    """
    read = {"the data folder": data, "the model": model, "the last blessed model": blessed}
    with failing_at_once():
        mesh = None
        if join(lambda: facts_of(stage, read), [out]):
            # JAX catches SIGTERM so that a training can save; an evaluation has nothing to save.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            mesh = device_mesh()
        result = evaluate(stage, model, data, out, blessed, mesh, blessed_second_stage)
    verdict = result["verdict"]
    return {
        "evaluation": str(out / "evaluation.json"),
        "metrics": {**result["metrics"], "baselines": result["baselines"]},
        "meaning": result["meaning"],
        **{name: result[name] for name in _REPEATS if name in result},
        **({"second_stage": result["pair"]["sentence"]} if "pair" in result else {}),
        "blessed": verdict["blessed"],
        "sentence": verdict["sentence"],
        "reasons": verdict["reasons"],
        "warning": verdict["warning"],
        **({"process": jax.process_index()} if jax.process_count() > 1 else {}),
    }


def evaluate(
    stage: EvaluateStage,
    model: Path,
    data: Path,
    out: Path,
    blessed: Path | None = None,
    mesh: keras.distribution.DeviceMesh | None = None,
    blessed_second_stage: str | None = None,
) -> dict[str, Any]:
    """Evaluates a model, decides on it, and writes `evaluation.json`.

    Args:
        stage: Config of the evaluation and of the thresholds.
        model: Model folder or bundle.
        data: Data folder with the held-out events.
        out: Folder to write `evaluation.json` into.
        blessed: Model folder or bundle of the last blessed model, if there is one. Ignored if no
            threshold refers to it.
        mesh: As in `api.measured`.
        blessed_second_stage: `left_out` if the last blessed model is a pair that is served without
            its ranker, and so is measured without it.

    Returns:
        The content of `evaluation.json` (see `docs/folders.md`).

    Raises:
        RecsysError: There are no held-out events with known users and items, a folder is damaged,
            or a score is NaN.
    """
    if not any(rule.over_blessed for rule in stage.bless.all_rules()):
        blessed = None
    report = _emit if is_primary() else None
    is_alone = blessed_second_stage == LEFT_OUT
    result = api.measured(model, data, blessed, stage, report, mesh, is_blessed_alone=is_alone)

    def written() -> dict[str, Any]:
        result.save(out)
        # JSON converts tuples to lists, as readers of the file get them.
        content: dict[str, Any] = json.loads(json.dumps(result.content))
        return content

    content: dict[str, Any] = agreed(written)
    return content


def _emit(system: str, done: int, total: int) -> None:
    text = f"{system.replace('_', ' ')}: {done:,} of {total:,}"
    events.emit("progress", done=done, total=total, text=text)
