"""The evaluation as a stage: folders in, `evaluation.json` out.

`python -m recsys.evaluation.stage` runs it; the component RetrievalEvaluator starts that. Started
as several processes, it splits tables and candidates over the devices of all of them, and the
first one writes the file.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import signal
from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax

from recsys.config import EvaluateStage
from recsys.config.load import load_stage
from recsys.embedding import device_mesh
from recsys.evaluation import api
from recsys.evaluation.evaluator import Evaluator
from recsys.evaluation.result import EvaluationResult
from recsys.evaluation.sharded_systems import RequestedRows, done_by_first
from recsys.evaluation.significance import BLESSED, MODEL
from recsys.evaluation.systems import open_evaluation_data, open_system
from recsys.system import events
from recsys.system.process import stage_main
from recsys.training import distributed
from recsys.training.cluster import Cluster, add_process_options, cluster_of
from recsys.training.hosts import run_on_hosts
from recsys.training.launcher import launch
from recsys.training.preflight import facts_of

if TYPE_CHECKING:
    import keras

_MODULE = "recsys.evaluation.stage"
_STEP = "RetrievalEvaluator"


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
    systems = {MODEL: open_system(model, opened, "the model", mesh)}
    if blessed is not None:
        systems[BLESSED] = open_system(blessed, opened, "the last blessed model", mesh)
    evaluator = Evaluator(stage, opened, _emit if distributed.is_primary() else None)
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
    add_process_options(parser)
    return parser.parse_args(arguments)


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the stage from the command line."""
    options = _parse(arguments)
    stage = load_stage(options.config, EvaluateStage)
    if not distributed.is_joined():
        cluster = cluster_of(options)
        if cluster is not None or options.processes > 1:
            return _in_processes(options, stage, cluster)
    distributed.join()
    mesh = None
    if distributed.is_joined():
        # JAX's service catches it so that a training can save; an evaluation has nothing to save.
        signal.signal(signal.SIGTERM, signal.SIG_DFL)
        mesh = device_mesh()
    with distributed.failing_at_once():
        result = evaluate(stage, options.model, options.data, options.out, options.blessed, mesh)
    verdict = result["verdict"]
    return {
        "evaluation": str(options.out / "evaluation.json"),
        "metrics": {**result["metrics"], "baselines": result["baselines"]},
        "meaning": result["meaning"],
        **{name: result[name] for name in ("repeats", "repeated_positives", "repeated_share")},
        "blessed": verdict["blessed"],
        "sentence": verdict["sentence"],
        "reasons": verdict["reasons"],
        "warning": verdict["warning"],
        **({"process": jax.process_index()} if jax.process_count() > 1 else {}),
    }


def _in_processes(
    options: argparse.Namespace, stage: EvaluateStage, cluster: Cluster | None
) -> dict[str, Any]:
    """Runs the stage in several processes of this machine, or in one of several that meet."""
    names = ("config", "model", "data", "out", "blessed")
    folders = {name: getattr(options, name) for name in names}
    words = [f"--{name}={path}" for name, path in folders.items() if path is not None]
    if cluster is None:
        return launch(_MODULE, words, options.processes)
    read = {
        "the data folder": options.data,
        "the model": options.model,
        "the last blessed model": options.blessed,
    }
    facts = facts_of(_MODULE, stage, read)
    return run_on_hosts(_MODULE, words, cluster, options.out, facts)


if __name__ == "__main__":
    stage_main(main)
