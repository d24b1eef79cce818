"""What is seen of a run while it goes: its curve, its progress, its numbers by step."""

from __future__ import annotations

import datetime as dt
import time
from collections.abc import Mapping
from typing import Any

import jax
import jax.numpy as jnp
import keras
import numpy as np

from recsys.errors import RecsysError
from recsys.training.pace import Pace
from recsys.training.progress import Progress
from recsys.training.scalars import Scalars, memory
from recsys.training.told import tell_progress


class Recorder:
    """Turns the logs of the steps since the last time into a point of the curve.

    Args:
        progress: Where the curve is kept.
        total: Steps of the whole run.
        batch_size: Examples of a step.
        unknown_share: Share of the ids of the training positives that no vocabulary has a
            row for [0..1].
        scalars: Where to write them for TensorBoard; None in all processes but the first.
    """

    def __init__(
        self,
        progress: Progress,
        total: int,
        batch_size: int,
        unknown_share: float,
        scalars: Scalars | None,
    ) -> None:
        self._progress, self._total = progress, total
        self._batch_size, self._unknown_share = batch_size, unknown_share
        self._scalars = scalars
        self._step, self._time = progress.step, time.perf_counter()
        self._waited_s = 0.0
        self._pace = Pace()

    def record(self, model: keras.Model, logs: Mapping[str, Any], waited_s: float) -> None:
        """Takes down what the steps since the last call gave.

        Args:
            model: The model; its variables hold their values.
            logs: Means and counts over these steps.
            waited_s: Seconds waited for input since the run was started.

        Raises:
            RecsysError: The loss is no number.
        """
        progress = self._progress
        steps = progress.step - self._step
        if not steps:
            return
        # Waits for the last step, so that the time is that of all.
        values = {name: float(value) for name, value in logs.items()}
        now = time.perf_counter()
        loss = values.pop("loss")
        if not np.isfinite(loss):
            raise not_a_number(progress.step, loss)
        seconds, waited = now - self._time, waited_s - self._waited_s
        progress.seconds += seconds
        progress.waited_s += waited
        point = {"step": progress.step, "loss": round(loss, 6)}
        if "temperature" in values:
            point["temperature"] = round(values["temperature"], 6)
        progress.curve.append(point)
        speed = steps * self._batch_size / seconds
        self._write(model, {"loss": loss, **values}, speed, waited / seconds)
        self._pace.add(steps, seconds)
        self._tell(loss)
        self._step, self._time, self._waited_s = progress.step, time.perf_counter(), waited_s

    def skip_time(self, waited_s: float) -> None:
        """Leaves the time since the last point out: it went into no step."""
        self._time, self._waited_s = time.perf_counter(), waited_s

    def looked(self, metrics: Mapping[str, float]) -> None:
        """Writes what validation found."""
        if self._scalars is not None:
            named = {f"validation/{name}": value for name, value in metrics.items()}
            self._scalars.write(self._progress.step, named)

    def _write(
        self, model: keras.Model, values: Mapping[str, float], speed: float, wait_share: float
    ) -> None:
        # In every process: what is computed of arrays of all is computed by all.
        named = {f"train/{name}": value for name, value in values.items()}
        named["train/examples_per_s"] = speed
        named["train/input_wait_share"] = wait_share
        named["train/unknown_id_share"] = self._unknown_share
        named["train/learning_rate"] = float(model.optimizer.learning_rate)
        dense = model.trainable_variables
        norms = np.asarray(_norms([variable.value for variable in dense]))
        named |= {f"norm/{v.path}": float(n) for v, n in zip(dense, norms, strict=True)}
        if self._scalars is not None:
            self._scalars.write(self._progress.step, {**named, **memory()})

    def _tell(self, loss: float) -> None:
        step, total, pace = self._progress.step, self._total, self._pace
        text = f"loss {loss:.3f}"
        left_s = pace.seconds_of(total - step)
        if left_s is not None:
            speed = pace.steps * self._batch_size / pace.seconds
            text += f" · {speed:,.0f} examples/s · {dt.timedelta(seconds=round(left_s))} left"
        if self._scalars is not None:  # The first process speaks for all.
            tell_progress(step, total, text)


def not_a_number(step: int, found: Any) -> RecsysError:
    """Returns what to tell of a run whose loss or weights went off."""
    return RecsysError(
        "R322",
        f"Loss and weights must be numbers; they were none around step {step}.",
        "Lower train.table_learning_rate and train.tower_learning_rate; what was saved before"
        " is whole.",
        found,
    )


@jax.jit
def _norms(arrays: list[jax.Array]) -> jax.Array:
    """Returns the norm of each array `[arrays]`, all at once: a call costs more than they do."""
    return jnp.array([jnp.sqrt(jnp.sum(jnp.square(array))) for array in arrays])
