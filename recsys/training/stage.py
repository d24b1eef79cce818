"""Training as a stage: from a data folder to a model folder, in each process of a run.

Keras on JAX, without TensorFlow. Tables are split over the devices by the layout rules of
`recsys.embedding`; towers are replicated. A killed run resumes from its last checkpoint when it
is started again. `recsys.stages.train` starts it.
"""

from __future__ import annotations

import dataclasses
import functools
import json
from pathlib import Path
from typing import Any

from recsys.data.dataset import Data
from recsys.data.store import InteractionStore
from recsys.distributed.coordination import agreed, failing_at_once, in_shares
from recsys.distributed.join import facts_of, join
from recsys.errors import UsageError
from recsys.fingerprint import source_version
from recsys.models import model_class
from recsys.tasks import side_of
from recsys.tasks.config import TrainStage
from recsys.tasks.model_folder import save_model
from recsys.training.model_choice import choose_model
from recsys.training.run_folders import RunFolders
from recsys.training.trainer import Trainer, check_backend
from recsys.training.training_result import TrainingResult
from recsys.training.warm_start import (
    CHANGED,
    TrainingState,
    cold_start,
    drop_state,
    save_state,
    stage_of_model,
    trained_until,
    updates_of,
    warm_start_of,
)


def train(
    stage: TrainStage,
    data: Path,
    out: Path,
    checkpoints: Path | None = None,
    base: Path | None = None,
    candidates: Path | None = None,
    tensorboard: Path | None = None,
) -> dict[str, Any]:
    """Trains a model and writes its folder; called in each process of a run.

    Args:
        stage: The model and the training loop.
        data: Data folder of the InteractionEncoder.
        out: Model folder to write.
        checkpoints: Folder of the checkpoints of all runs, each in its own folder;
            `checkpoints` beside `out` by default.
        base: Model folder to start from, unless the model was trained on events that are
            now held out, is damaged or has no training state (see
            `recsys.training.warm_start`); None: a cold start.
        candidates: Items drawn for rows, which the ranker of a pair learns from; None: none.
        tensorboard: Folder of the TensorBoard logs of all runs; `tensorboard` beside
            `checkpoints` by default.

    Returns:
        The content of `training.json`.

    Raises:
        RecsysError: The data are damaged or too few, a table isn't placed as
            planned, the loss is NaN or infinite, or the run was stopped.
        UsageError: The config describes another model than `base`, and
            `warm_start.changed` is `refuse`.
    """
    dataset = Data(data, candidates=candidates)
    in_shares(dataset.verify)
    earlier = None if base is None else stage_of_model(base)
    checkpoints = checkpoints or RunFolders.root_beside(out)
    stage, choice = choose_model(stage, dataset, earlier, checkpoints)
    tensorboard = tensorboard or checkpoints.parent / "tensorboard"
    fit = functools.partial(_fit, stage, dataset, checkpoints, tensorboard)
    try:
        result = fit(base)
    except UsageError as error:
        # The code creates other variables than before, which the config doesn't show.
        if base is None or error.code != CHANGED or warm_start_of(stage).changed == "refuse":
            raise
        cold = cold_start(base, error.rule)
        result = dataclasses.replace(fit(None), cold=cold)
    return write_model(out, dataclasses.replace(result, choice=choice), dataset)


def _fit(
    stage: TrainStage, data: Data, checkpoints: Path, tensorboard: Path, base: Path | None
) -> TrainingResult:
    trainer = Trainer.of_stage(stage, checkpoints, base=base, tensorboard=tensorboard, verbose=0)
    return trainer.fit(model_class(stage.model).from_config(stage, data), data)


def write_model(out: str | Path, result: TrainingResult, data: Data) -> dict[str, Any]:
    """Writes the model folder of a training, and returns the content of its `training.json`.

    Every process calls it.

    Args:
        out: The folder.
        result: The result of `Trainer.fit`.
        data: The training data.
    """
    out, model, inputs = Path(out), result.model, result.inputs
    drop_state(out)
    save_model(out, model, result.stage, data.folder, inputs)
    save_state(out, model, _state(result, data.store))
    side_of(result.stage.model, "training")(result.stage, data.store, inputs).write(out, model)
    summary = {**result.summary(), "source": source_version()}
    text = json.dumps(summary, indent=1) + "\n"
    agreed(lambda: (out / "training.json").write_text(text))
    return summary


def _state(result: TrainingResult, store: InteractionStore) -> TrainingState:
    """Returns the state of a finished training."""
    until = trained_until(result.events) if store.split.order == "time" else 0
    before = TrainingState(cut=store.cut, trained_until=until, updates=0, steps=0, warm_starts=-1)
    if result.base is not None:
        before = result.base.state
    return TrainingState(
        cut=store.cut,
        trained_until=max(until, before.trained_until),
        updates=updates_of(result.model),
        steps=before.steps + result.progress.step,
        warm_starts=before.warm_starts + 1,
    )


def run(
    stage: TrainStage, data: Path, out: Path, checkpoints: Path | None, base: Path | None
) -> dict[str, Any]:
    """Joins the other processes of the run, if any, and trains; see `train`."""
    check_backend()
    checkpoints = checkpoints or RunFolders.root_beside(out)
    read = {"the data folder": data, "the base model": base}
    with failing_at_once():
        join(lambda: facts_of(stage, read), [checkpoints, out.absolute().parent])
        return train(stage, data, out, checkpoints, base)
