"""`python -m recsys.train`: from a data folder to a model folder, on every device.

Keras on JAX, without TensorFlow. Tables are split over the devices by the layout
rules of `recsys.embedding`; towers are replicated. A run that was killed goes on from
its last checkpoint when it is started again.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import keras
import numpy as np

from recsys.config import TrainStage
from recsys.config_file import load_stage
from recsys.data.store import InteractionStore
from recsys.errors import UsageError
from recsys.model import TowerInputs, TwoTower, save_model
from recsys.model.inference import embed_catalogue, embed_queries
from recsys.process import stage_main
from recsys.training import launcher, processes
from recsys.training.folders import Folders
from recsys.training.setup import Prepared, prepare

_PROBES = 1000


def train(
    stage: TrainStage, data: Path, out: Path, checkpoints: Path | None = None
) -> dict[str, Any] | None:
    """Trains a model and writes its folder.

    Args:
        stage: The model and the training loop.
        data: Data folder of the InteractionEncoder.
        out: Model folder to write.
        checkpoints: Folder of the checkpoints of all runs, each in a folder of its own;
            `checkpoints` beside `out` by default.

    Returns:
        What `training.json` holds; None if several processes trained, of which one
        has yet to write the folder: see `recsys.training.processes.go_on_alone`.

    Raises:
        RecsysError: The data are damaged or too few, a table isn't placed as
            planned, the loss is no number, or somebody asked the run to stop.
    """
    store = InteractionStore.open(data / "store", verify=True)
    inputs = TowerInputs.open(data)
    folders = Folders.of_run(checkpoints or Folders.root_beside(out), stage, data)
    with prepare(stage, store, inputs, folders) as prepared:
        prepared.train()
        model = prepared.model
        if jax.process_count() > 1:
            return None
        # Whom validation held back altogether is nobody that the model was trained on.
        inputs = prepared.inputs
        save_model(out, model, stage, data, inputs)
        np.save(out / "candidates.npy", embed_catalogue(model, inputs))
        _write_probe(out, model, store, inputs)
        return _write_summary(out, prepared, stage)


def _write_probe(out: Path, model: TwoTower, store: InteractionStore, inputs: TowerInputs) -> None:
    """Writes queries and their embeddings, which the export must reproduce."""
    log, length = store.train, model.spec.config.history
    events = np.linspace(0, len(log) - 1, min(_PROBES, len(log))).astype(np.int64)
    user_row = np.array(log.user_row[events])
    history = log.histories(events, length)
    # A user without a row and one without a history are queries too, and users of whom
    # features alone are known.
    user_row[:1], history[1:2] = 0, 0
    untrained = _untrained_users(inputs)[: len(events) // 10]
    user_row[len(events) - len(untrained) :] = untrained
    query = embed_queries(model, user_row, history, inputs)
    np.savez(out / "probe.npz", user_row=user_row, history=history, query=query)


def _untrained_users(inputs: TowerInputs) -> np.ndarray:
    """Returns the rows of the users who have an id and no training positive."""
    return np.flatnonzero((inputs.users.row_counts == 0) & inputs.users.has_id())


def _write_summary(out: Path, prepared: Prepared, stage: TrainStage) -> dict[str, Any]:
    progress, folders = prepared.run.progress, prepared.folders
    examples = progress.step * stage.train.batch_size
    summary = {
        **progress.machine,
        "steps": progress.step,
        "examples": examples,
        "seconds": round(progress.seconds, 3),
        "examples_per_s": round(examples / progress.seconds, 1) if progress.seconds else 0.0,
        "input_wait_share": round(progress.wait_share, 4),
        "unknown_id_share": round(prepared.unknown_share, 6),
        "resumed_at": progress.resumed_at,
        "best_step": progress.best_step,
        "validation": progress.looks,
        "checkpoints": str(folders.checkpoints),
        "tensorboard": str(folders.tensorboard),
        "sharding": [dataclasses.asdict(placement) for placement in prepared.placements],
        "curve": progress.curve,
    }
    (out / "training.json").write_text(json.dumps(summary, indent=1) + "\n")
    return summary


def main(arguments: Sequence[str] | None = None) -> dict[str, Any]:
    """Runs the stage from the command line."""
    parser = argparse.ArgumentParser(prog="python -m recsys.train", description=__doc__)
    parser.add_argument("--config", type=Path, required=True, help="whole config, or its parts")
    parser.add_argument("--data", type=Path, required=True, help="data folder")
    parser.add_argument("--out", type=Path, required=True, help="model folder to write")
    parser.add_argument("--checkpoints", type=Path, help="folder of checkpoints, beside --out")
    parser.add_argument("--processes", type=int, default=1, help="processes on this machine")
    options = parser.parse_args(arguments)
    _check_backend()
    words = [f"--{k}={getattr(options, k)}" for k in ("config", "data", "out")]
    checkpoints = options.checkpoints or Folders.root_beside(options.out)
    words.append(f"--checkpoints={checkpoints}")
    stage = load_stage(options.config, TrainStage)
    if options.processes > 1 and processes.COORDINATOR not in os.environ:
        last = Folders.of_run(checkpoints, stage, options.data).last
        return launcher.launch(words, options.processes, last)
    processes.join()
    with processes.failing_at_once():
        summary = train(stage, options.data, options.out, checkpoints)
    if summary is None:
        if processes.is_primary():
            processes.go_on_alone(words)
        return {"process": jax.process_index()}
    hidden = ("curve", "validation")
    return {"model": str(options.out), **{k: v for k, v in summary.items() if k not in hidden}}


def _check_backend() -> None:
    if keras.backend.backend() != "jax":
        raise UsageError(
            "R323",
            "Training must run with Keras on JAX.",
            "Set KERAS_BACKEND=jax.",
            os.environ.get("KERAS_BACKEND"),
        )


if __name__ == "__main__":
    stage_main(main)
