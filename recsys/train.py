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

from recsys.config import TrainStage, parse_mesh
from recsys.config_file import load_stage
from recsys.data.store import InteractionStore
from recsys.errors import UsageError
from recsys.models import ModelInputs, RetrievalModel, save_model
from recsys.models.inference import embed_catalogue, embed_queries
from recsys.process import stage_main
from recsys.source_version import source_version
from recsys.training import distributed, launcher
from recsys.training.earlier_model import (
    TrainingState,
    drop_state,
    fingerprint,
    save_state,
    trained_until,
    updates_of,
)
from recsys.training.run_folders import RunFolders
from recsys.training.setup import Prepared, prepare
from recsys.training.warm_start import CHANGED, Choice, begun_anew, choose, config_of

_PROBES = 1000


def train(
    stage: TrainStage,
    data: Path,
    out: Path,
    checkpoints: Path | None = None,
    base: Path | None = None,
) -> dict[str, Any] | None:
    """Trains a model and writes its folder.

    Args:
        stage: The model and the training loop.
        data: Data folder of the InteractionEncoder.
        out: Model folder to write.
        checkpoints: Folder of the checkpoints of all runs, each in a folder of its own;
            `checkpoints` beside `out` by default.
        base: Model folder that it goes on from, unless that has seen what is evaluated,
            is damaged or kept no state (see `recsys.training.warm_start`); None: it begins
            anew.

    Returns:
        What `training.json` holds; None if several processes trained, of which one
        has yet to write the folder: see `recsys.training.distributed.finish_alone`.

    Raises:
        RecsysError: The data are damaged or too few, a table isn't placed as
            planned, the loss is no number, or somebody asked the run to stop.
        UsageError: The config asks for another model than `base` is, and
            `warm_start.changed` is `refuse`.
    """
    store = InteractionStore.open(data / "store", verify=True)
    stage = _with_histories(stage, store)
    inputs = ModelInputs.open(data)
    choice = choose(base, stage, store, inputs)
    run = _Run(stage, data, out, checkpoints or RunFolders.root_beside(out), store, inputs)
    try:
        return run.train(choice)
    except UsageError as error:
        # The code makes other variables than it did, which no config shows.
        is_other = choice.base is not None and error.code == CHANGED
        if base is None or not is_other or config_of(stage).changed == "refuse":
            raise
        return run.train(begun_anew(base, error.rule))


def _with_histories(stage: TrainStage, store: InteractionStore) -> TrainStage:
    """Returns the stage with `model.history_of` as the order of the events asks for.

    Raises:
        UsageError: The past is asked for, and the events have no order.
    """
    has_order = store.split.order != "none"
    if stage.model.history_of == "past" and not has_order:
        raise UsageError(
            "R336",
            "model.history_of: past needs events that have an order.",
            "Leave model.history_of out, or set it to others.",
            store.split.text,
        )
    history_of = stage.model.history_of or ("past" if has_order else "others")
    model = stage.model.model_copy(update={"history_of": history_of})
    return stage.model_copy(update={"model": model})


@dataclasses.dataclass(frozen=True)
class _Run:
    """What a training reads, and where it writes."""

    stage: TrainStage
    data: Path
    out: Path
    checkpoints: Path
    store: InteractionStore
    inputs: ModelInputs

    def train(self, choice: Choice) -> dict[str, Any] | None:
        """Trains from what was chosen on, and writes the model folder; see `train`."""
        base, out, stage = choice.base, self.out, self.stage
        of_base = None if base is None else base.fingerprint
        folders = RunFolders.of_run(self.checkpoints, stage, self.data, of_base)
        with prepare(stage, self.store, self.inputs, folders, base) as prepared:
            prepared.train()
            model = prepared.model
            if jax.process_count() > 1:
                return None
            # Whom validation held back altogether is nobody that the model was trained on.
            inputs = prepared.inputs
            drop_state(out)
            save_model(out, model, stage, self.data, inputs)
            save_state(out, model, _state(prepared, self.store))
            np.save(out / "candidates.npy", embed_catalogue(model, inputs))
            _write_probe(out, model, self.store, inputs)
            return _write_summary(out, prepared, stage, choice.cold)


def _state(prepared: Prepared, store: InteractionStore) -> TrainingState:
    """Returns how far a training is that has ended."""
    has_times = store.split.order == "time"
    until = trained_until(prepared.source.events) if has_times else 0
    before = TrainingState(cut=store.cut, trained_until=until, updates=0, steps=0, warm_starts=-1)
    if prepared.base is not None:
        before = prepared.base.state
    return TrainingState(
        cut=store.cut,
        trained_until=max(until, before.trained_until),
        updates=updates_of(prepared.model),
        steps=before.steps + prepared.run.progress.step,
        warm_starts=before.warm_starts + 1,
    )


def _write_probe(
    out: Path, model: RetrievalModel, store: InteractionStore, inputs: ModelInputs
) -> None:
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


def _untrained_users(inputs: ModelInputs) -> np.ndarray:
    """Returns the rows of the users who have an id and no training positive."""
    return np.flatnonzero((inputs.users.row_counts == 0) & inputs.users.has_id())


def _write_summary(
    out: Path, prepared: Prepared, stage: TrainStage, cold: str | None
) -> dict[str, Any]:
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
        "warm_start": progress.warm_start,
        "cold": cold,
        "checkpoints": str(folders.checkpoints),
        "tensorboard": str(folders.tensorboard),
        "sharding": [dataclasses.asdict(placement) for placement in prepared.placements],
        "curve": progress.curve,
        "source": source_version(),
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
    parser.add_argument("--base", type=Path, help="model folder to go on from")
    parser.add_argument("--mesh", type=parse_mesh, help="devices as a grid: data=4,model=2")
    parser.add_argument("--processes", type=int, default=1, help="processes on this machine")
    options = parser.parse_args(arguments)
    _check_backend()
    words = [f"--{k}={getattr(options, k)}" for k in ("config", "data", "out")]
    checkpoints = options.checkpoints or RunFolders.root_beside(options.out)
    words.append(f"--checkpoints={checkpoints}")
    base: Path | None = options.base
    if base is not None:
        words.append(f"--base={base}")
    stage = load_stage(options.config, TrainStage)
    if options.mesh is not None:
        words.append(f"--mesh=data={options.mesh.data},model={options.mesh.model}")
        stage = stage.model_copy(update={"mesh": options.mesh})
    if options.processes > 1 and distributed.COORDINATOR not in os.environ:
        # With a base that can't be used the run begins anew, and saves where such a run does.
        bases = {None, None if base is None else fingerprint(base)}
        last = [RunFolders.of_run(checkpoints, stage, options.data, one).last for one in bases]
        return launcher.launch(words, options.processes, last)
    distributed.join()
    with distributed.failing_at_once():
        summary = train(stage, options.data, options.out, checkpoints, base)
    if summary is None:
        if distributed.is_primary():
            distributed.finish_alone(words)
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
