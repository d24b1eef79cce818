"""The training loop: steps, points of the loss curve, validation, checkpoints, resume.

A step is a function of the variables and of its number alone, so a run that was killed
is resumed from its last checkpoint and ends with the same bits.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import jax
import keras

from recsys.config import TrainConfig
from recsys.embedding import SparseModel
from recsys.errors import RecsysError
from recsys.training.callbacks import EpochTasks, UserCallbacks
from recsys.training.checkpoint import DAMAGED, CheckpointStore
from recsys.training.distributed import StopRequest, agreed, stopped
from recsys.training.optimizers import averaged, finalize
from recsys.training.prefetch import BatchIterator
from recsys.training.run_state import (
    CURVE_POINTS,
    Progress,
    all_finite,
    arrays_of,
    saved_variables,
    weights_of,
)
from recsys.training.training_log import TrainingLog, not_a_number, note_once

_PROFILE_AFTER = 100


class TrainingRun:
    """The training loop of a compiled and restored model.

    Args:
        model: The model, compiled.
        config: The training loop.
        last: Where checkpoints go.
        best: Where the model goes that validation found best.
        progress: The progress of the run.
        tasks: What is done between two epochs.
        profile: Folder for the trace of JAX's profiler.
        callbacks: Keras callbacks of the user.
    """

    def __init__(
        self,
        model: SparseModel,
        config: TrainConfig,
        last: CheckpointStore,
        best: CheckpointStore,
        progress: Progress,
        tasks: EpochTasks,
        profile: Path,
        callbacks: Sequence[keras.callbacks.Callback] = (),
    ) -> None:
        self.model, self.config, self.progress = model, config, progress
        self.last, self.best = last, best
        self.tasks, self.profile = tasks, profile
        self.steps_per_epoch, self.total = tasks.source.steps_per_epoch, len(tasks.source)
        epochs = self.total // self.steps_per_epoch
        self.callbacks = UserCallbacks(callbacks, model, epochs, self.steps_per_epoch)

    def run(self, batches: BatchIterator, log: TrainingLog) -> None:
        """Trains to the end, or until validation finds nothing better or a callback stops it.

        Args:
            batches: The batches from the present step on.
            log: Records what is seen.

        Raises:
            RecsysError: The run was asked to stop, or its numbers are not finite.
        """
        if not self.is_over():
            self._fit(batches, log)
        if self.progress.best_step is not None:
            self._restore_best(self.progress.best_step)
        else:
            finalize(self.model)

    def _fit(self, batches: BatchIterator, log: TrainingLog) -> None:
        self.progress.machine = {
            "devices": jax.device_count(),
            "processes": jax.process_count(),
            "platform": jax.devices()[0].platform,
        }
        stop = StopRequest()
        self.tasks.begin(self.progress.step, batches)
        steps = _Steps(self, batches, log, stop)
        with stop.listening():
            self.model.fit(
                batches,
                steps_per_epoch=self.total - self.progress.step,
                callbacks=_Unblocked([steps], add_history=True, model=self.model),
                shuffle=False,
                verbose=0,
            )
            self.last.wait()
            self.best.wait()
        if steps.is_interrupted:
            raise stopped(self.progress.step, self.total)

    def is_over(self) -> bool:
        """Returns whether there is no step left, or no reason for one."""
        is_stopped = self.progress.is_stopped
        return self.progress.step >= self.total or is_stopped or self._is_patience_out()

    def _is_patience_out(self) -> bool:
        """Returns whether the last validations were no better than one before."""
        validation, best = self.config.validation, self.progress.best_step
        if validation is None or validation.patience is None or best is None:
            return False
        since = [metrics for metrics in self.progress.looks if metrics["step"] > best]
        return len(since) >= validation.patience

    def save(self) -> None:
        """Starts to save the run as it is; waits for an earlier save, not for this one.

        Raises:
            RecsysError: A variable isn't finite, or an earlier save failed.
        """
        variables = saved_variables(self.model)
        if self.model.step_proof is not None:
            self.progress.machine["step"] = dataclasses.asdict(self.model.step_proof)
        self._check_finite(variables)
        # What this checkpoint names as the best model must be there before it is.
        self.last.save(
            self.progress.step, arrays_of(variables), self.progress.to_json(), self.best.pending
        )

    def _restore_best(self, step: int) -> None:
        """Gives the model the weights that validation found best.

        Raises:
            RecsysError: They are missing or damaged, and the run's own checkpoint of that
                step is gone.
        """
        reason = "no checkpoint of that step"
        try:
            if self.best.restore(weights_of(self.model), step) is not None:
                return
        except RecsysError as error:
            if error.code != DAMAGED:
                raise
            reason = error.rule
        if self.last.restore(saved_variables(self.model), step) is not None:
            note_once(f"The best model is taken from the run's own checkpoint: {reason}")
            finalize(self.model)
            return
        folder = self.best.folder.parent
        raise RecsysError(
            "R379",
            f"The best model, that of step {step:,}, must be whole.",
            f"Remove the folder {str(folder)!r} to train anew.",
            reason,
        )

    def _check_finite(self, variables: dict[str, keras.Variable]) -> None:
        if not all_finite(variables.values()):
            raise not_a_number(self.progress.step, "a weight that is NaN or infinite")

    def validate(self, metric: str) -> dict[str, float]:
        """Returns the validation's metrics; saves the model if its `metric` is the best so far."""
        progress = self.progress
        with averaged(self.model):
            # Rounded otherwise, another process might think otherwise of what is best.
            own = self.tasks.validate()
            metrics: dict[str, float] = agreed(lambda: own)
            earlier = [before[metric] for before in progress.looks]
            progress.looks.append({"step": progress.step, **metrics})
            if not earlier or metrics[metric] > max(earlier):
                progress.best_step = progress.step
                variables = weights_of(self.model)
                self._check_finite(variables)
                self.best.save(progress.step, arrays_of(variables), {})
        return metrics


class _Steps(keras.callbacks.Callback):
    """What happens before and after each step."""

    def __init__(
        self, run: TrainingRun, batches: BatchIterator, log: TrainingLog, stop: StopRequest
    ) -> None:
        super().__init__()
        self.is_interrupted = False
        self._is_save_due = False
        self._wants_stop = False
        self._traced_to = 0
        self._run, self._batches, self._log, self._stop = run, batches, log, stop
        self._every = max(1, run.total // CURVE_POINTS)
        accumulate = run.config.accumulate
        # Where accumulated gradients are spent.
        self._save_every = -(-run.config.checkpoint.every_steps // accumulate) * accumulate

    def on_train_begin(self, logs: Any = None) -> None:
        self._run.callbacks.begin(self._run.progress.step)
        self._log.skip_time(self._batches.waited_s)

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._run.callbacks.begin_step(self._run.progress.step)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        run, progress = self._run, self._run.progress
        progress.step += 1
        step = progress.step
        self._profile(step)
        run.callbacks.end_step(step, logs)
        self.is_interrupted = self.is_interrupted or self._stop.is_due(step)
        is_asked = self._is_asked()
        is_epoch_end, is_last = step % run.steps_per_epoch == 0, step == run.total
        # Between two updates a checkpoint would lack the gradients that are added up.
        is_update = step % run.config.accumulate == 0
        is_save = step % self._save_every == 0 or is_last
        is_save = is_save or (is_update and (is_asked or self._is_save_due))
        if not (is_epoch_end or is_save or step % self._every == 0):
            return
        # From here on the model's variables hold their values.
        run.model.jax_state_sync()
        self._log.record(run.model, logs, self._batches.waited_s)
        run.model.reset_metrics()
        if is_epoch_end:
            self._end_epoch(step // run.steps_per_epoch, is_last)
            self._is_asked()
        progress.is_stopped = self._wants_stop and is_update
        is_over = run.is_over()
        self._is_save_due = self._is_save_due or progress.best_step == step
        if is_save or is_over or (self._is_save_due and is_update):
            run.save()
            self._is_save_due = False
        self._log.skip_time(self._batches.waited_s)
        if is_over or (self.is_interrupted and is_update):
            self.model.stop_training = True

    def _is_asked(self) -> bool:
        """Returns whether a signal or a callback asks to stop, at the next update."""
        self._wants_stop = self._wants_stop or bool(self.model.stop_training)
        self.model.stop_training = False
        return self.is_interrupted or self._wants_stop

    def _end_epoch(self, epochs: int, is_last: bool) -> None:
        run = self._run
        validation, metrics = run.config.validation, {}
        if validation is not None and (is_last or epochs % validation.every_epochs == 0):
            metrics = run.validate(validation.metric)
            self._log.record_validation(metrics)
        run.callbacks.end_epoch(epochs - 1, run.progress.end_epoch(epochs - 1, metrics))
        if not run.is_over() and not self._is_asked():
            run.tasks.refresh(epochs, self._batches)
            run.callbacks.begin_epoch(epochs)

    def _profile(self, step: int) -> None:
        n_steps = self._run.config.profile_steps
        if n_steps and jax.process_index() == 0 and step == _PROFILE_AFTER:
            jax.profiler.start_trace(str(self._run.profile))
            self._traced_to = step + n_steps
        elif step == self._traced_to:
            jax.profiler.stop_trace()
            self._traced_to = 0

    def on_train_end(self, logs: Any = None) -> None:
        if self._traced_to:
            jax.profiler.stop_trace()
        self._run.callbacks.end()


class _Unblocked(keras.callbacks.CallbackList):
    """Callbacks that get the logs as they are: Keras' own list waits for every step."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Calls each callback."""
        for callback in self.callbacks:
            callback.on_train_batch_begin(batch, logs)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Calls each callback without waiting for the step's numbers."""
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs)
