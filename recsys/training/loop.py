"""The loop: steps, points of the curve, looks at the validation, checkpoints; and on again.

Everything that a step does is a function of the variables and of its number, so a run
that was killed goes on from its last checkpoint and ends with the same bits.
"""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import jax
import keras

from recsys.config import TrainConfig
from recsys.embedding import SparseModel
from recsys.errors import RecsysError
from recsys.training.averages import averaged, finalize
from recsys.training.border import Border
from recsys.training.checkpoint import DAMAGED, CheckpointStore
from recsys.training.feed import Feed
from recsys.training.processes import agreed
from recsys.training.progress import CURVE_POINTS, Progress
from recsys.training.recorder import Recorder, not_a_number
from recsys.training.stopping import StopRequest, stopped
from recsys.training.told import note_once
from recsys.training.variables import all_finite, kept_variables, values_of, weights_of

_PROFILE_AFTER = 100


class TrainingRun:
    """A model, compiled and restored, on its way to the last step.

    Args:
        model: The model, compiled.
        config: The training loop.
        last: Where checkpoints go.
        best: Where the model goes that validation found best.
        progress: Where the run stands.
        border: What happens between two epochs.
        profile: Folder for the trace of JAX's profiler.
    """

    def __init__(
        self,
        model: SparseModel,
        config: TrainConfig,
        last: CheckpointStore,
        best: CheckpointStore,
        progress: Progress,
        border: Border,
        profile: Path,
    ) -> None:
        self.model, self.config, self.progress = model, config, progress
        self.last, self.best = last, best
        self.border, self.profile = border, profile
        self.steps_per_epoch, self.total = border.source.steps_per_epoch, len(border.source)

    def run(self, feed: Feed, recorder: Recorder) -> None:
        """Trains to the end, or until validation finds nothing better any more.

        Args:
            feed: The batches from the present step on.
            recorder: Takes down what is seen.

        Raises:
            RecsysError: Somebody asked the run to stop, or its numbers went off.
        """
        if not self.is_over():
            self.progress.machine = _machine()
            stop = StopRequest()
            self.border.begin(self.progress.step, feed)
            steps = _Steps(self, feed, recorder, stop)
            with stop.listening():
                self.model.fit(
                    feed,
                    steps_per_epoch=self.total - self.progress.step,
                    callbacks=_Unblocked([steps], add_history=True, model=self.model),
                    shuffle=False,
                    verbose=0,
                )
                self.last.wait()
                self.best.wait()
            if steps.was_asked:
                raise stopped(self.progress.step, self.total)
        if self.progress.best_step is not None:
            self._take_best(self.progress.best_step)
        else:
            finalize(self.model)

    def is_over(self) -> bool:
        """Returns whether there is no step left, or no reason for one."""
        return self.progress.step >= self.total or self.is_patience_out()

    def is_patience_out(self) -> bool:
        """Returns whether the last looks were no better than one before."""
        validation, best = self.config.validation, self.progress.best_step
        if validation is None or validation.patience is None or best is None:
            return False
        since = [look for look in self.progress.looks if look["step"] > best]
        return len(since) >= validation.patience

    def save(self) -> None:
        """Starts to save the run as it is; waits for an earlier save, not for this one.

        Raises:
            RecsysError: A variable isn't finite, or an earlier save failed.
        """
        variables = kept_variables(self.model)
        if self.model.step_proof is not None:
            self.progress.machine["step"] = dataclasses.asdict(self.model.step_proof)
        self._check_finite(variables)
        # What this checkpoint names as the best model must be there before it is.
        self.last.save(
            self.progress.step, values_of(variables), self.progress.to_json(), self.best.pending
        )

    def _take_best(self, step: int) -> None:
        """Gives the model the weights that validation found best.

        Raises:
            RecsysError: They aren't there, or not whole, and the run's own checkpoint of
                that step isn't there any more.
        """
        found = "no checkpoint of that step"
        try:
            if self.best.restore(weights_of(self.model), step) is not None:
                return
        except RecsysError as error:
            if error.code != DAMAGED:
                raise
            found = error.rule
        if self.last.restore(kept_variables(self.model), step) is not None:
            note_once(f"The best model is taken from the run's own checkpoint: {found}")
            finalize(self.model)
            return
        folder = self.best.folder.parent
        raise RecsysError(
            "R379",
            f"The best model, that of step {step:,}, must be whole.",
            f"Remove the folder {str(folder)!r} to train anew.",
            found,
        )

    def _check_finite(self, variables: dict[str, keras.Variable]) -> None:
        if not all_finite(variables.values()):
            raise not_a_number(self.progress.step, "a weight that is NaN or infinite")

    def look(self, metric: str) -> dict[str, float]:
        """Looks at the validation, and keeps the model if its `metric` is the best so far."""
        progress = self.progress
        with averaged(self.model):
            # Rounded otherwise, another process might think otherwise of what is best.
            found = self.border.look()
            found = agreed(lambda: found)
            before = [k[metric] for k in progress.looks]
            progress.looks.append({"step": progress.step, **found})
            if not before or found[metric] > max(before):
                progress.best_step = progress.step
                variables = weights_of(self.model)
                self._check_finite(variables)
                self.best.save(progress.step, values_of(variables), {})
        return found


def _machine() -> dict[str, Any]:
    return {
        "devices": jax.device_count(),
        "processes": jax.process_count(),
        "platform": jax.devices()[0].platform,
    }


class _Steps(keras.callbacks.Callback):
    """What happens after each step."""

    def __init__(self, run: TrainingRun, feed: Feed, recorder: Recorder, stop: StopRequest) -> None:
        super().__init__()
        self.was_asked = False
        self._is_due = False
        self._traced_to = 0
        self._run, self._feed, self._recorder, self._stop = run, feed, recorder, stop
        self._every = max(1, run.total // CURVE_POINTS)
        accumulate = run.config.accumulate
        # Where accumulated gradients are spent.
        self._save_every = -(-run.config.checkpoint.every_steps // accumulate) * accumulate

    def on_train_begin(self, logs: Any = None) -> None:
        self._recorder.skip_time(self._feed.waited_s)

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        run, progress = self._run, self._run.progress
        progress.step += 1
        step = progress.step
        self._profile(step)
        is_border = step % run.steps_per_epoch == 0
        is_last = step == run.total
        self.was_asked = self.was_asked or self._stop.is_due(step)
        # Between two updates a checkpoint would lack the gradients that are added up.
        is_update = step % run.config.accumulate == 0
        is_asked = self.was_asked and is_update
        is_save = step % self._save_every == 0 or is_last or is_asked
        is_save = is_save or (self._is_due and is_update)
        if not (is_border or is_save or step % self._every == 0):
            return
        # From here on the model's variables hold their values.
        run.model.jax_state_sync()
        self._recorder.record(run.model, logs, self._feed.waited_s)
        run.model.reset_metrics()
        if is_border:
            self._at_border(step // run.steps_per_epoch, is_last)
        is_over = run.is_over()
        self._is_due = self._is_due or progress.best_step == step
        if is_save or is_over or (self._is_due and is_update):
            run.save()
            self._is_due = False
        self._recorder.skip_time(self._feed.waited_s)
        if is_over or is_asked:
            self.model.stop_training = True

    def _at_border(self, epochs: int, is_last: bool) -> None:
        run = self._run
        validation = run.config.validation
        if validation is not None and (is_last or epochs % validation.every_epochs == 0):
            self._recorder.looked(run.look(validation.metric))
        if not run.is_over():
            run.border.refresh(epochs, self._feed)

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


class _Unblocked(keras.callbacks.CallbackList):
    """Callbacks that get the logs as they are: Keras' own list waits for every step."""

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Does nothing: no callback of ours begins a step."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Calls each callback without waiting for the step's numbers."""
        for callback in self.callbacks:
            callback.on_train_batch_end(batch, logs)
