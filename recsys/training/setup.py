"""From a config and a data folder to a run that is ready to train: built, proven, restored."""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from typing import Any

import keras

from recsys.config import TrainStage
from recsys.data.batches import BatchSource
from recsys.data.held_back import training_events
from recsys.data.store import InteractionStore
from recsys.embedding import TablePlacement, activate, device_mesh, table_layout, verify_placement
from recsys.embedding.layout import tables_of
from recsys.models import (
    ModelInputs,
    ModelSpec,
    RetrievalModel,
    model_class,
    model_tables,
)
from recsys.training.callbacks import EpochTasks
from recsys.training.checkpoint import CheckpointStore, spread_rows
from recsys.training.distributed import is_primary
from recsys.training.earlier_model import EarlierModel
from recsys.training.loop import TrainingRun
from recsys.training.optimizers import exclude_vectors, table_optimizers, tower_optimizer
from recsys.training.preconditions import check_divides, check_events, unknown_share
from recsys.training.prefetch import BatchIterator
from recsys.training.run_folders import RunFolders
from recsys.training.run_state import Progress, saved_variables
from recsys.training.state_transfer import transfer_state
from recsys.training.training_log import TensorBoardWriter, TrainingLog, note, note_once
from recsys.training.validation import trained_inputs
from recsys.training.warm_start import going_on, of_batches


@dataclasses.dataclass
class Prepared:
    """A run that is ready to train.

    Attributes:
        model: The model, at the step that the run goes on from.
        placements: Where its tables lie.
        source: The batches.
        run: The loop.
        folders: Where it writes beside the model.
        inputs: What is known of users and items to a model that was trained on these events.
        base: The earlier model that it goes on from; None: it begins anew.
    """

    model: RetrievalModel
    placements: list[TablePlacement]
    source: BatchSource
    run: TrainingRun
    folders: RunFolders
    inputs: ModelInputs
    base: EarlierModel | None = None

    def train(self) -> None:
        """Trains to the end; see `TrainingRun.run`."""
        progress = self.run.progress
        with ExitStack() as stack:
            scalars = None
            if is_primary():
                scalars = TensorBoardWriter(self.folders.tensorboard, progress.step)
                stack.callback(scalars.close)
            batches = stack.enter_context(BatchIterator(self.source, progress.step))
            log = TrainingLog(
                progress, self.run.total, self.source.batch_size, self.unknown_share, scalars
            )
            self.run.run(batches, log)

    @functools.cached_property
    def unknown_share(self) -> float:
        """Share of the ids of the training positives that have no row [0..1]."""
        return unknown_share(self.source.events, self.inputs)


@contextmanager
def prepare(
    stage: TrainStage,
    store: InteractionStore,
    inputs: ModelInputs,
    folders: RunFolders,
    base: EarlierModel | None = None,
) -> Iterator[Prepared]:
    """Yields a run that goes on from its last checkpoint, if it has one.

    Else it goes on from an earlier model, if it has one.

    Args:
        stage: The model and the training loop.
        store: The events.
        inputs: What is known of users and items.
        folders: Where checkpoints and logs go.
        base: The earlier model; None: there is none.

    Raises:
        RecsysError: The data are too few, a table isn't placed as planned, or no
            checkpoint is whole.
    """
    stage = going_on(stage, base)
    mesh = device_mesh(**(stage.mesh.model_dump() if stage.mesh else {}))
    check_divides(stage.train, mesh.shape[0])
    events = training_events(store.train, stage.train)
    remarks = check_events(events, inputs.catalogue, stage.model.history_of)
    for sentence in remarks.sentences():
        note_once(sentence)
    if store.split.order == "none" and stage.model.needs_order:
        note_once(
            "model.pooling is sequence, and the events have no order: its places say nothing, so"
            " mean or attention learn as much for less."
        )
    source = BatchSource(
        events,
        inputs.catalogue,
        stage.model,
        of_batches(stage.train, base),
        inputs.user_features,
        multiple=mesh.shape[0],
    )
    updates_before = 0 if base is None else base.state.updates
    model, placements = _built(stage, mesh, inputs, len(source), updates_before)
    rows = spread_rows(tables_of(model))
    with ExitStack() as stack:
        if is_primary():
            stack.enter_context(folders.locked())
        keep = stage.train.checkpoint.keep
        last = CheckpointStore(folders.last, folders.identity, keep, rows)
        stack.callback(last.close)
        # Two: an older checkpoint may name the one before as the best.
        best = CheckpointStore(folders.best, folders.identity, 2, rows)
        stack.callback(best.close)
        progress = _restored(model, last, len(source))
        if progress is None:
            progress = _begun(model, base, inputs, stage)
        if is_primary():
            _settle_others(folders, is_new=not progress.step and base is None)
        inputs = trained_inputs(inputs, events)
        since = None if base is None else base.state.trained_until
        border = EpochTasks(model, inputs, source, stage, folders, since)
        run = TrainingRun(model, stage.train, last, best, progress, border, folders.profile)
        yield Prepared(model, placements, source, run, folders, inputs, base)


def _built(
    stage: TrainStage,
    mesh: keras.distribution.DeviceMesh,
    inputs: ModelInputs,
    steps: int,
    updates_before: int,
) -> tuple[RetrievalModel, list[TablePlacement]]:
    """Returns the model, compiled, with its tables where they were planned to be."""
    spec = ModelSpec.for_data(
        stage.model, inputs.users.n_rows, inputs.catalogue, inputs.user_features
    )
    updates = steps // stage.train.accumulate
    tables = model_tables(spec, *table_optimizers(stage.train, updates, updates_before))
    layout = table_layout(list(tables.values()), mesh=mesh, rules=stage.layout)
    activate(layout)
    train = stage.train
    model = model_class(spec)(
        spec, tables, train.seed, train.loss, compute_dtype=train.compute_dtype
    )
    model.build()
    placements = verify_placement(model, layout)
    optimizer = tower_optimizer(train, updates, updates_before)
    exclude_vectors(optimizer, model)
    model.compile(optimizer=optimizer, jit_compile=True)
    optimizer.build(model.trainable_variables)
    return model, placements


def _begun(
    model: RetrievalModel, base: EarlierModel | None, inputs: ModelInputs, stage: TrainStage
) -> Progress:
    """Returns the beginning of a run, with the model as `base` was, if there is one."""
    progress = Progress()
    if base is not None:
        progress.warm_start = {
            "base": str(base.folder),
            "fingerprint": base.fingerprint,
            "cut": base.state.cut,
            "trained_until": base.state.trained_until,
            "steps_before": base.state.steps,
            "warm_starts": base.state.warm_starts + 1,
            "epochs": stage.train.epochs,
            "carried": transfer_state(base, model, inputs, stage),
        }
        note_once(f"Goes on from the model in {base.folder}: {_in_words(progress.warm_start)}.")
    return progress


def _in_words(told: dict[str, Any]) -> str:
    """Returns what was taken over, for people."""
    tables = [
        f"{name} {one['kept']:,} kept, {one['new'] + one['reset']:,} new"
        f" ({one['neighbours']:,} from neighbours), {one['dropped']:,} dropped"
        for name, one in told["carried"].items()
    ]
    return "; ".join(tables)


def _restored(model: RetrievalModel, last: CheckpointStore, steps: int) -> Progress | None:
    """Returns where the run of `steps` steps stands, with the model as it was there.

    None if it has no checkpoint.
    """
    restored = last.restore(saved_variables(model))
    if restored is None:
        return None
    for sentence in restored.damaged:
        note_once(sentence)
    progress = Progress.from_json(restored.state)
    if progress.step < steps:
        progress.resumed_at.append(progress.step)
    note_once(f"Goes on from step {progress.step:,}, saved by an earlier run of the same training.")
    return progress


def _settle_others(folders: RunFolders, is_new: bool) -> None:
    """Says why a run begins anew beside those of another one, and removes what is too old."""
    other = folders.newest_other() if is_new else None
    if other is not None:
        path, parts = other
        note(
            f"Trains from the beginning: {' and '.join(parts)} changed since the checkpoints"
            f" in {path} were written."
        )
    for path in folders.remove_others():
        note(f"Removed the checkpoints of an older run: {path}")
