"""Measures a model and writes `evaluation.json`, in each process of an evaluation.

`recsys.evaluation.stage` starts it. In several processes tables and candidates are split over the
devices of all of them, and the first one writes the file.
"""

from __future__ import annotations

import dataclasses
import json
import signal
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from recsys.config import EvaluateStage
from recsys.distributed.agreement import facts_of
from recsys.distributed.ending import failing_at_once
from recsys.distributed.host_collectives import is_primary
from recsys.distributed.join import join
from recsys.embedding import device_mesh
from recsys.evaluation import api
from recsys.evaluation.evaluator import Evaluator
from recsys.evaluation.result import EvaluationResult
from recsys.evaluation.sharded_systems import RequestedRows, done_by_first, open_sharded
from recsys.evaluation.significance import BLESSED, MODEL
from recsys.evaluation.systems import open_evaluation_data
from recsys.system import events

if TYPE_CHECKING:
    import keras

_STEP = "RetrievalEvaluator"


def run(
    stage: EvaluateStage, model: Path, data: Path, out: Path, blessed: Path | None
) -> dict[str, Any]:
    """Evaluates in this process, and those that were started beside it; returns the summary.

    Arguments and errors are those of `evaluate`.
    """
    read = {"the data folder": data, "the model": model, "the last blessed model": blessed}
    with failing_at_once():
        mesh = None
        if join(lambda: facts_of(stage, read), [out]):
            # JAX catches it so that a training can save; an evaluation has nothing to save.
            signal.signal(signal.SIGTERM, signal.SIG_DFL)
            mesh = device_mesh()
        result = evaluate(stage, model, data, out, blessed, mesh)
    verdict = result["verdict"]
    return {
        "evaluation": str(out / "evaluation.json"),
        "metrics": {**result["metrics"], "baselines": result["baselines"]},
        "meaning": result["meaning"],
        **{name: result[name] for name in ("repeats", "repeated_positives", "repeated_share")},
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
) -> dict[str, Any]:
    """Evaluates a model, decides on it, and writes `evaluation.json`.

    Args:
        stage: The metrics and the thresholds.
        model: Model folder or bundle.
        data: Data folder with the held-out events.
        out: Folder to write `evaluation.json` into.
        blessed: The last blessed model, if there is one; a model folder or a bundle. It is
            left out where no threshold names it.
        mesh: One axis of devices, over which tables and candidates are split; where they are
            those of several processes each of them calls this. None: this process alone.

    Returns:
        What `evaluation.json` holds (see `docs/architecture.md`).

    Raises:
        RecsysError: Nothing is held out, none of it is known, a folder is damaged, or a
            score is no number.
    """
    if not any(rule.over_blessed for rule in stage.bless.all_rules()):
        blessed = None
    if mesh is None:
        return _written(
            api.evaluate(model, data, config=stage, blessed=blessed, progress=_emit), out
        )
    opened = open_evaluation_data(data)
    systems = {MODEL: open_sharded(model, opened, "the model", mesh)}
    if blessed is not None:
        systems[BLESSED] = open_sharded(blessed, opened, "the last blessed model", mesh)
    evaluator = Evaluator(stage, opened, _emit if is_primary() else None)
    measured = evaluator.measure(systems)

    def concluded(rows: RequestedRows) -> dict[str, Any]:
        alone = dataclasses.replace(evaluator, progress=rows.signing(_emit))
        return _written(EvaluationResult(alone.conclude(measured.with_embeddings(rows))), out)

    directions: Any = systems[MODEL].directions
    return done_by_first(concluded, directions)


def _written(result: EvaluationResult, out: Path) -> dict[str, Any]:
    """Writes a result; returns it with lists where there were tuples, as who reads it has it."""
    result.save(out)
    written: dict[str, Any] = json.loads(json.dumps(result.content))
    return written


def _emit(system: str, done: int, total: int) -> None:
    text = f"{system.replace('_', ' ')}: {done:,} of {total:,} queries"
    events.emit("progress", step=_STEP, done=done, total=total, text=text)
