"""The training loop: steps, points of the loss curve, validation, checkpoints, resume.

A step depends only on the variables and its number, so a killed run that resumes from its last
checkpoint ends with the same bits.
"""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import keras

from recsys.data.config import ValidationConfig
from recsys.distributed.coordination import (
    StepWatch,
    StopRequest,
    agreed,
    ending_after,
    meet,
    note_on_primary,
)
from recsys.errors import RecsysError
from recsys.system.process import release_freed
from recsys.tasks.training_side import EpochWork
from recsys.training.checkpoint import DAMAGED, CheckpointStore
from recsys.training.optimization import all_finite, averaged, finalize, saved_variables, weights_of
from recsys.training.prefetch import BatchIterator
from recsys.training.training_result import Progress, TrainingLog, metrics_text, non_finite_error

_CURVE_POINTS = 200
_PROFILE_AFTER = 100


class TrainingRun(keras.callbacks.Callback):
    """The training loop of a compiled and restored model, as a Keras callback.

    Args:
        work: The compiled model, its batches, and the work between two epochs.
        last: Store of the newest checkpoints.
        best: Store of the best model by validation.
        progress: The progress of the run.
        profile: Folder for the trace of JAX's profiler.
        callbacks: Keras callbacks of the user.
    """

    def __init__(
        self,
        work: EpochWork,
        last: CheckpointStore,
        best: CheckpointStore,
        progress: Progress,
        profile: Path,
        callbacks: Sequence[keras.callbacks.Callback] = (),
    ) -> None:
        super().__init__()
        model, config = work.model, work.stage.train
        self.set_model(model)
        self._config, self._progress, self._work = config, progress, work
        self._last, self._best, self._profile_folder = last, best, profile
        self._steps_per_epoch, self.total = work.source.steps_per_epoch, len(work.source)
        epochs = self.total // self._steps_per_epoch
        # Keras' `fit` sees a run as one epoch, so that it can be resumed at any step; the
        # user's callbacks see the real epochs. No step is waited for if none hooks batches.
        self._callbacks = keras.callbacks.CallbackList(
            list(callbacks), model=model, epochs=epochs, steps=self._steps_per_epoch, verbose=0
        )
        self._has_begin = any(_has_hook(callback, "begin") for callback in callbacks)
        self._has_end = any(_has_hook(callback, "end") for callback in callbacks)
        self._epoch_logs: dict[str, float] = {}
        self._stop = StopRequest()
        self._watch = StepWatch(is_reading=lambda: self._batches.is_waiting)
        self._is_interrupted = self._wants_stop = self._is_save_due = False
        self._traced_to = 0
        self._has_validated = False
        self._point_every = max(1, self.total // _CURVE_POINTS)
        # Checkpoints are saved only after updates: accumulated gradients aren't saved.
        accumulate = config.accumulate
        self._save_every = -(-config.checkpoint.every_steps // accumulate) * accumulate

    def run(self, batches: BatchIterator, log: TrainingLog) -> None:
        """Trains until the last step, early stopping, or a callback stops it.

        Args:
            batches: The batches from the current step on.
            log: Records the metrics.

        Raises:
            RecsysError: The run was stopped (R375), or its numbers are not finite.
        """
        self._batches, self._log = batches, log
        if not self._is_over():
            self._fit()
        if self._progress.best_step is not None:
            self._restore_best(self._progress.best_step)
        else:
            finalize(self.model)
        self._work.settle()

    def _fit(self) -> None:
        progress = self._progress
        progress.machine = {
            "devices": jax.device_count(),
            "processes": jax.process_count(),
            "platform": jax.devices()[0].platform,
        }
        meet()  # Each process compiles and restores at its own speed.
        with self._stop.listening(), self._watch.watching():
            self.model.fit(
                self._batches,
                steps_per_epoch=self.total - progress.step,
                callbacks=_Unblocked([self], add_history=True, model=self.model),
                shuffle=False,
                verbose=0,
            )
            self._last.wait()
            self._best.wait()
        if self._is_interrupted:
            raise RecsysError(
                "R375",
                "Training was stopped, and has saved a checkpoint:"
                f" step {progress.step:,} of {self.total:,}.",
                "Run the same command again to resume.",
                "SIGTERM or SIGINT",
            )
        if not self._is_over():
            raise RecsysError(
                "R399",
                f"A training must reach its last step, {self.total:,}, unless validation or a"
                " callback ends it.",
                "Run the same command again to resume; if it ends there again, look for what takes"
                " batches or ends Keras' loop, such as a callback that iterates over the data.",
                f"step {progress.step:,}",
            )

    def _is_over(self) -> bool:
        progress, validation = self._progress, self._config.validation
        if progress.step >= self.total or progress.is_stopped:
            return True
        if validation is None or validation.patience is None or progress.best_step is None:
            return False
        since = [look for look in progress.validations if look["step"] > progress.best_step]
        return len(since) >= validation.patience

    # --- Keras hooks

    def on_train_begin(self, logs: Any = None) -> None:
        self._callbacks.on_train_begin()
        self._callbacks.on_epoch_begin(self._progress.step // self._steps_per_epoch)
        self._log.skip_time(self._batches.waited_s)
        self._watch.begin()

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        if self._has_begin:
            self._watch.pause()
            self._callbacks.on_train_batch_begin(self._progress.step % self._steps_per_epoch)
            self._watch.begin()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        progress = self._progress
        progress.step += 1
        step = progress.step
        if batch == 0:
            release_freed()  # Compiling the step took memory.
        if step == 1 and not math.isfinite(logs["loss"]):
            raise non_finite_error(progress, self.model, float(logs["loss"]))
        self._profile(step)
        if self._has_end:
            self._watch.pause()
            self._callbacks.on_train_batch_end((step - 1) % self._steps_per_epoch, logs)
        self._watch.begin()
        self._is_interrupted = self._is_interrupted or self._stop.is_due(step)
        is_stop_requested = self._is_stop_requested()
        is_epoch_end, is_last = step % self._steps_per_epoch == 0, step == self.total
        # Between two updates a checkpoint would lack the accumulated gradients.
        is_update = step % self._config.accumulate == 0
        is_save = step % self._save_every == 0 or is_last
        is_save = is_save or (is_update and (is_stop_requested or self._is_save_due))
        if not (is_epoch_end or is_save or step % self._point_every == 0):
            return
        # From here on the model's variables hold the current values.
        self.model.jax_state_sync()
        self._log.record(self.model, logs, self._batches.waited_s)
        self.model.reset_metrics()
        self._watch.pause()
        if is_epoch_end:
            self._end_epoch(step // self._steps_per_epoch, is_last)
            self._is_stop_requested()
        progress.is_stopped = self._wants_stop and is_update
        is_over = self._is_over()
        self._is_save_due = self._is_save_due or progress.best_step == step
        if is_save or is_over or (self._is_save_due and is_update):
            self._save()
            self._is_save_due = False
        self._log.skip_time(self._batches.waited_s)
        if is_over or (self._is_interrupted and is_update):
            self.model.stop_training = True
        else:
            self._watch.begin()

    def on_train_end(self, logs: Any = None) -> None:
        if self._traced_to:
            jax.profiler.stop_trace()
        self._callbacks.on_train_end(self._epoch_logs)

    def _is_stop_requested(self) -> bool:
        """Returns whether a signal or a callback asks to stop; acted on at the next update."""
        model = self._work.model  # Keras moves all variables each time `self.model` is read.
        self._wants_stop = self._wants_stop or bool(model.stop_training)
        model.stop_training = False
        return self._is_interrupted or self._wants_stop

    def _end_epoch(self, epochs: int, is_last: bool) -> None:
        validation, metrics = self._config.validation, {}
        if validation is not None and (is_last or epochs % validation.every_epochs == 0):
            metrics = self._validate(validation)
            self._log.record_validation(metrics)
        self._epoch_logs = self._progress.end_epoch(epochs - 1, metrics)
        self._callbacks.on_epoch_end(epochs - 1, self._epoch_logs)
        if not self._is_over() and not self._is_stop_requested():
            self._callbacks.on_epoch_begin(epochs)

    def _profile(self, step: int) -> None:
        n_steps = self._config.profile_steps
        if n_steps and jax.process_index() == 0 and step == _PROFILE_AFTER:
            jax.profiler.start_trace(str(self._profile_folder))
            self._traced_to = step + n_steps
        elif step == self._traced_to:
            jax.profiler.stop_trace()
            self._traced_to = 0

    # --- validation and checkpoints

    def _validate(self, config: ValidationConfig) -> dict[str, float]:
        """Returns the validation's metrics; saves the model if its metric is the best so far."""
        progress, metric, sign = self._progress, config.metric, config.sign
        with averaged(self.model):
            # Use process 0's metrics: they may differ in the last bit between processes, and
            # all must agree on the best step.
            own = self._work.validate()
            metrics: dict[str, float] = agreed(lambda: own)
            earlier = [sign * look[metric] for look in progress.validations]
            progress.validations.append({"step": progress.step, **metrics})
            if not earlier or sign * metrics[metric] > max(earlier):
                progress.best_step = progress.step
                arrays = self._finite(weights_of(self.model))
                self._best.save(progress.step, arrays, {})
                self._wait_unless_background(self._best)
        if not self._has_validated:
            # Compiling towers and ranking took memory. Later calls free little: 30 of 640 MB,
            # for 0.2 s of CPU each.
            release_freed()
            self._has_validated = True
        return metrics

    def _save(self) -> None:
        """Starts to save the run; waits for an earlier save, but not always for this one.

        Raises:
            RecsysError: A variable isn't finite, or an earlier save failed.
        """
        progress = self._progress
        if self.model.step_proof is not None:
            progress.machine["step"] = dataclasses.asdict(self.model.step_proof)
        progress.machine["input_bytes_per_epoch"] = self._work.source.bytes_per_epoch
        arrays = self._finite(saved_variables(self.model))
        # The best model that this checkpoint names must be saved before it.
        self._last.save(progress.step, arrays, dataclasses.asdict(progress), self._best.pending)
        self._wait_unless_background(self._last)

    def _wait_unless_background(self, store: CheckpointStore) -> None:
        if not self._config.checkpoint.background:
            store.wait()

    def _finite(self, variables: dict[str, keras.Variable]) -> dict[str, jax.Array]:
        arrays = {path: variable.value for path, variable in variables.items()}
        with ending_after():
            is_finite = bool(all_finite([*arrays.values()]))
        if not is_finite:
            received = "a weight that is NaN or infinite"
            raise non_finite_error(self._progress, self.model, received)
        return arrays

    def _restore_best(self, step: int) -> None:
        """Restores the best weights by validation.

        Raises:
            RecsysError: They are missing or damaged, and the run has no checkpoint of that
                step.
        """
        reason = "no checkpoint of that step"
        try:
            if self._best.restore(weights_of(self.model), step) is not None:
                return
        except RecsysError as error:
            if error.code != DAMAGED:
                raise
            reason = error.rule
        if self._last.restore(saved_variables(self.model), step) is None:
            raise RecsysError(
                "R379",
                f"The best model, that of step {step:,}, must be complete.",
                f"Remove the folder {str(self._best.folder.parent)!r} to train from scratch.",
                reason,
            )
        note_on_primary(f"The best model is taken from the run's own checkpoint: {reason}")
        finalize(self.model)


class _Unblocked(keras.callbacks.CallbackList):
    """Callbacks that get the logs unconverted: Keras' own list waits for every step."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        for callback in self.callbacks:
            callback.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs)


def _has_hook(callback: keras.callbacks.Callback, when: str) -> bool:
    """Returns whether a callback overrides a hook for the begin or end of batches."""
    return any(
        getattr(getattr(callback, name), "__func__", None)
        is not getattr(keras.callbacks.Callback, name)
        for name in (f"on_batch_{when}", f"on_train_batch_{when}")
    )


class PrintEpochs(keras.callbacks.Callback):
    """Prints the metrics of each epoch as a line."""

    def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
        text = metrics_text(logs or {})
        print(f"epoch {epoch + 1}/{self.params['epochs']}: {text}", flush=True)  # noqa: T201
