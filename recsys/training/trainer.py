"""`Trainer`: trains any registered retrieval model on a data folder, resumable to the bit."""

from __future__ import annotations

import dataclasses
import gc
import sys
import weakref
from collections.abc import Sequence
from contextlib import ExitStack
from pathlib import Path
from typing import Any, Literal, Self

import keras

from recsys import kernels
from recsys.data.dataset import Data
from recsys.distributed.config import LayoutRules, MeshConfig
from recsys.distributed.coordination import in_shares, is_primary, note_on_primary
from recsys.embedding import TablePlacement, activate, device_mesh, table_layout, verify_placement
from recsys.embedding.layout import place_variables, tables_of
from recsys.errors import UsageError
from recsys.fingerprint import classes_without_source
from recsys.models import LookupModel
from recsys.models.inputs import ModelInputs
from recsys.models.lookups import model_class
from recsys.strict import Repeats
from recsys.tasks import side_of
from recsys.tasks.config import TrainConfig, TrainStage, WarmStartConfig, of_task
from recsys.tasks.model_folder import read_shared_tables
from recsys.tasks.training_side import unknown_share
from recsys.training.checkpoint import CheckpointStore, interleaved_rows
from recsys.training.loop import PrintEpochs, TrainingRun
from recsys.training.optimization import (
    check_updates,
    exclude_vectors,
    saved_variables,
    table_optimizers,
    tower_optimizer,
)
from recsys.training.prefetch import BatchIterator, part_of_process
from recsys.training.run_folders import RunFolders
from recsys.training.state_transfer import transfer_state
from recsys.training.training_result import Progress, TensorBoardWriter, TrainingLog, TrainingResult
from recsys.training.warm_start import batch_settings, choose, continued_stage, warm_start_of

Verbose = Literal["auto", 0, 1, 2]
_built_in: weakref.WeakKeyDictionary[LookupModel, Path] = weakref.WeakKeyDictionary()
"""The run folder of each model that a trainer built."""


class Trainer:
    """Trains a retrieval model, with checkpoints, validation and callbacks.

    The same call with the same folder resumes a killed run, which ends with the same bits as an
    uninterrupted one. A finished run is not trained again: its model is restored.

    Args:
        config: The training loop, `train` of a config.
        checkpoints: Folder of the checkpoints of all runs. Each run has its own folder in
            it, named by the fingerprint of config, data, code and model.
        callbacks: Keras callbacks. They see the epochs of the run: `on_epoch_begin`,
            `on_epoch_end` with the mean `loss` and the validation's metrics as `val_…`,
            `on_train_batch_end`, and may set `model.stop_training`. A callback with hooks for
            batches makes the loop wait for every step. The state of callbacks is not saved
            in checkpoints.
        base: Folder of an earlier model to start from (a warm start).
        warm_start: Settings of the warm start; None: the defaults.
        repeats: Whether validation ranks the items that a user has seen.
        mesh: Arrangement of the devices; None: one axis.
        layout: Layout rules for dense weights and activations, by path.
        tensorboard: Folder of the TensorBoard logs of all runs; None: no logs.
        verbose: 0: silent, 1: a progress bar, 2: a line per epoch; `auto`: 1 in a terminal
            or a notebook, else 2.

    Example:
        ```python
        data = recsys.open_data("data/")
        config = recsys.for_data(config, data)
        model = recsys.TwoTower.from_config(config, data.spec)
        result = recsys.Trainer(config.train, checkpoints="ckpt/").fit(model, data)
        result.history["loss"]
        ```
    """

    def __init__(
        self,
        config: TrainConfig,
        checkpoints: str | Path,
        *,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        base: str | Path | None = None,
        warm_start: WarmStartConfig | None = None,
        repeats: Repeats = "exclude",
        mesh: MeshConfig | None = None,
        layout: LayoutRules | None = None,
        tensorboard: str | Path | None = None,
        verbose: Verbose = "auto",
    ) -> None:
        stage = TrainStage(
            warm_start=warm_start,
            repeats=repeats,
            mesh=mesh,
            layout=dict(layout or {}),
        )
        # `fit` checks it against its model.
        self.stage = stage.model_copy(update={"train": config})
        self.callbacks = tuple(callbacks)
        self.checkpoints = Path(checkpoints).absolute()
        self.base = None if base is None else Path(base)
        self.tensorboard = None if tensorboard is None else Path(tensorboard)
        if verbose == "auto":  # A bar can be drawn in a terminal or a notebook.
            verbose = 1 if sys.stdout.isatty() or "ipykernel" in sys.modules else 2
        self.verbose = verbose

    @classmethod
    def of_stage(cls, stage: TrainStage, checkpoints: Path, **options: Any) -> Self:
        """Returns the trainer for a stage's config; pass the stage's model to `fit`."""
        trainer = cls(stage.train, checkpoints, **options)
        trainer.stage = stage
        return trainer

    def fit(self, model: LookupModel, data: Data) -> TrainingResult:
        """Trains a model, or resumes where an earlier call with the same folder stopped.

        Args:
            model: A model for these data that isn't built yet: `fit` puts its tables on the
                devices and sets their optimizers. It may be built only by an earlier `fit`
                of the same run.
            data: The data.

        Raises:
            RecsysError: The data are too few, a table isn't placed as planned, the loss is
                NaN, all checkpoints are damaged, or the run was stopped (R375).
            UsageError: The model doesn't fit the data, is built or not registered (R382), or
                differs from `base` (R390).
        """
        check_backend()
        fit = _Fit(self, model, data)
        result = self._fit_twice(fit, model, data) if fit.is_first else fit.run(model)
        # Bypasses Keras, which tracks layers in attributes; `recsys.export` reads it.
        object.__setattr__(model, "training_result", result)
        return result

    def _fit_twice(self, first: _Fit, model: LookupModel, data: Data) -> TrainingResult:
        """Finds weights and the number of epochs, then trains `model` on all events with them."""
        stage = self._stage(model, data)
        other = type(model).from_config(stage, data, seed=model.seed)
        self._stage(other, data)
        validated = first.run(other)
        epochs = validated.best_epochs
        note_on_primary(f"Trains anew on all events, also those held back; epochs: {epochs}.")
        side = side_of(stage.model, "training")(stage, data.store, validated.inputs)
        side.take_over(model, other)
        validated, spec = dataclasses.replace(validated, model=model), other.spec
        del other  # Its tables would be in memory beside those of the next training.
        gc.collect()
        base = validated.base
        again = Trainer.of_stage(
            _of_epochs(stage, epochs),
            validated.checkpoints / "refit",
            callbacks=self.callbacks,
            base=None if base is None else base.folder,
            tensorboard=self.tensorboard,
            verbose=self.verbose,
        )
        trained = _Fit(again, model, data).run(model)
        model.spec = spec  # Without what `take_over` may have fixed.
        return dataclasses.replace(
            trained,
            stage=validated.stage,
            progress=validated.progress,
            refit=trained.progress,
            folders=validated.folders,
            cold=validated.cold,
        )

    def _stage(self, model: LookupModel, data: Data) -> TrainStage:
        """Returns the configs of the run; passes the settings that the model needs to it."""
        registered = model_class(model.spec.config)
        if f"{registered.__module__}:{registered.__qualname__}" != (
            f"{type(model).__module__}:{type(model).__qualname__}"
        ):
            raise _unsuitable(
                "be of the class that its config names, which reads it again later",
                "Register the class with @recsys.register_model, with a Config of its own.",
                type(model).__qualname__,
            )
        try:
            train = of_task(self.stage.train, model.spec.config.task)
        except ValueError as error:
            cure = "Set train.loss, or leave it out."
            raise _unsuitable("be trained by a loss of its task", cure, str(error)) from error
        side = side_of(model.spec.config, "training")
        config = side.resolved(model.spec.config, train, data)
        spec = model.spec.model_copy(update={"config": config})
        if spec != ModelInputs.of_data(data).spec(config):
            raise _unsuitable(
                "be made for the data that it trains on",
                "Make it by from_config(config, data.spec).",
                f"{spec.user_rows} user rows, {spec.item_rows} item rows",
            )
        model.spec = spec
        model.train_by(train)
        return self.stage.model_copy(update={"model": config, "train": train})


def _of_epochs(stage: TrainStage, epochs: int) -> TrainStage:
    """Returns the stage of a training on all events, cold or warm, for a number of epochs."""
    train = stage.train.model_copy(update={"validation": None, "epochs": epochs})
    warm = warm_start_of(stage).model_copy(update={"epochs": epochs})
    return stage.model_copy(update={"train": train, "warm_start": warm})


def _unsuitable(rule: str, cure: str, received: str) -> UsageError:
    return UsageError("R382", f"The model to train must {rule}.", cure, received)


class _Fit:
    """One training of a run, which may have two.

    Args:
        trainer: Its settings.
        model: The model, or one with the same config.
        data: The data.
    """

    def __init__(self, trainer: Trainer, model: LookupModel, data: Data) -> None:
        in_shares(data.verify)
        stage = trainer._stage(model, data)
        self._candidates = data.store.candidates
        if model.shared_tables and self._candidates is None:
            cure = "Leave model.shared_tables out; ranker.share_tables sets it."
            shared = ", ".join(sorted(model.shared_tables))
            raise _unsuitable("have its own tables if it is not a pair's ranker", cure, shared)
        inputs = ModelInputs.of_data(data)
        side = side_of(stage.model, "training")(stage, data.store, inputs)
        base, self._cold = choose(trainer.base, stage, data.store, side)
        self._trainer, self._base, self._own_stage = trainer, base, stage
        self._folders = RunFolders.of_run(
            trainer.checkpoints,
            stage,
            data.folder,
            None if base is None else base.fingerprint,
            trainer.tensorboard,
            None if self._candidates is None else self._candidates.digest,
        )
        self._side, self._stage = side, continued_stage(stage, base)
        train = self._stage.train
        self._mesh = device_mesh(**(stage.mesh.model_dump() if stage.mesh else {}))
        n_parts = self._mesh.shape[0]
        self._events = side.events(train)
        self.is_first = side.trains_again(self._events, train)
        if error := side.uneven(train, n_parts):
            raise error
        remarks = side.check(self._events, train, n_parts)
        self._inputs = side.trained_inputs(self._events)
        self._unknown_share = unknown_share(self._events, self._inputs)
        part = part_of_process(self._mesh)
        self._source = side.source(self._events, batch_settings(train, base), n_parts, part)
        remarks += check_updates(train, len(self._source))
        if unknown := classes_without_source(stage):
            remarks.append(
                f"This training can't be resumed: the source of {', '.join(unknown)} isn't known."
                " Define it in a module, or in a notebook's cell with methods of its own."
            )
        for sentence in (*remarks, kernels.warning()):
            if sentence:
                note_on_primary(sentence)

    def run(self, model: LookupModel) -> TrainingResult:
        """Trains an unbuilt model, or resumes its training."""
        folders, base, self._model = self._folders, self._base, model
        with ExitStack() as stack:
            if is_primary():
                stack.enter_context(folders.locked())
            placements = self._build()
            rows = interleaved_rows(tables_of(self._model))
            keep = self._stage.train.checkpoint.keep
            last = CheckpointStore(folders.last, folders.identity, keep, rows)
            stack.callback(last.close)
            # Two: an older checkpoint may name the previous one as the best.
            best = CheckpointStore(folders.best, folders.identity, 2, rows)
            stack.callback(best.close)
            progress = self._restore(last) or self._new_progress()
            if is_primary():
                if not progress.step and base is None:
                    folders.note_what_changed()
                folders.remove_others()
            self._train(last, best, progress)
        return TrainingResult(
            model=model,
            stage=self._own_stage,
            inputs=self._inputs,
            events=self._events,
            progress=progress,
            placements=placements,
            unknown_id_share=self._unknown_share,
            folders=folders,
            base=base,
            cold=self._cold,
        )

    def _train(self, last: CheckpointStore, best: CheckpointStore, progress: Progress) -> None:
        base, folders, trainer = self._base, self._folders, self._trainer
        since = None if base is None else base.state.trained_until
        work = self._side.epoch_work(
            self._model,
            self._inputs,
            self._source,
            self._stage,
            since,
        )
        printers = [PrintEpochs()] if trainer.verbose == 2 and is_primary() else []
        callbacks = (*trainer.callbacks, *printers)
        run = TrainingRun(work, last, best, progress, folders.profile, callbacks)
        with ExitStack() as stack:
            writer = None
            if folders.tensorboard is not None and is_primary():
                writer = TensorBoardWriter(folders.tensorboard, progress.step)
                stack.callback(writer.close)
            batches = stack.enter_context(BatchIterator(self._source, progress.step))
            log = TrainingLog(
                progress,
                run.total,
                self._source.batch_size,
                self._unknown_share,
                writer,
                is_bar_shown=trainer.verbose == 1,
            )
            run.run(batches, log)

    def _build(self) -> list[TablePlacement]:
        """Builds and compiles the model, and checks the placement of its tables."""
        model, train, base = self._model, self._stage.train, self._base
        updates = len(self._source) // train.accumulate
        start = 0 if base is None else base.state.updates
        if not model.built:
            model.table_configs = model.make_tables(
                model.spec, *table_optimizers(train, updates, start)
            )
        tables = list(model.table_configs.values())
        rules = self._stage.layout
        layout = table_layout(tables, None, self._mesh, rules, train.node_devices)
        if model.built:
            activate(layout)
            # It may be built by an earlier call for the same run.
            checkpoints, last = self._folders.checkpoints, self._folders.last
            if _built_in.get(model) != checkpoints or not any(last.glob("*")):
                raise _unsuitable(
                    "not be built: the trainer places its tables on the devices",
                    "Make a new one by from_config, and pass it to fit as it is; to start from a"
                    " trained model, pass its folder as base.",
                    f"a built {type(model).__name__}",
                )
            return verify_placement(model, layout)
        place_variables(model, layout)
        model.build()
        placements = verify_placement(model, layout)
        if self._candidates is not None:
            read_shared_tables(model, self._candidates.model)
        optimizer = tower_optimizer(train, updates, start)
        exclude_vectors(optimizer, model)
        model.compile(optimizer=optimizer, jit_compile=True)
        optimizer.build(model.trainable_variables)
        _built_in[model] = self._folders.checkpoints
        return placements

    def _restore(self, last: CheckpointStore) -> Progress | None:
        """Restores the model from the last checkpoint and returns its progress, or None."""
        restored = last.restore(saved_variables(self._model))
        if restored is None:
            return None
        for sentence in restored.damaged:
            note_on_primary(sentence)
        progress = Progress(**restored.state)
        if progress.step < len(self._source):
            progress.resumed_at.append(progress.step)
        note_on_primary(
            f"Goes on from step {progress.step:,}, saved by an earlier run of the same training."
        )
        return progress

    def _new_progress(self) -> Progress:
        """Returns the progress of a new run, with the state of the earlier model, if any."""
        progress, base = Progress(), self._base
        if base is not None:
            tables = transfer_state(base, self._model, self._side.inputs, self._stage)
            progress.warm_start = {
                "base": str(base.folder),
                "fingerprint": base.fingerprint,
                "cut": base.state.cut,
                "trained_until": base.state.trained_until,
                "steps_before": base.state.steps,
                "warm_starts": base.state.warm_starts + 1,
                "epochs": self._stage.train.epochs,
                "carried": tables,
            }
            text = "; ".join(
                f"{name} {n['kept']:,} kept, {n['new'] + n['reset']:,} new"
                f" ({n['neighbours']:,} from neighbours), {n['dropped']:,} dropped"
                for name, n in tables.items()
            )
            note_on_primary(f"Goes on from the model in {base.folder}: {text}.")
        self._side.adapt(self._model, self._events)
        return progress


def check_backend() -> None:
    """Checks that Keras runs on JAX.

    Raises:
        UsageError: It doesn't.
    """
    if keras.backend.backend() != "jax":
        raise UsageError(
            "R323",
            "Training must run with Keras on JAX.",
            "Set KERAS_BACKEND=jax, or import recsys.Trainer before Keras.",
            keras.backend.backend(),
        )
