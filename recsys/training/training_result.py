"""The progress of a training, its log, and its result.

The log has the loss curve, progress and time left, scalars for TensorBoard, and notes.
"""

from __future__ import annotations

import dataclasses
import datetime as dt
import os
import resource
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import jax
import jax.numpy as jnp
import keras
import numpy as np
import pyarrow as pa
from tensorboardX.event_file_writer import EventsWriter
from tensorboardX.proto.event_pb2 import Event, SessionLog
from tensorboardX.proto.summary_pb2 import Summary

from recsys.data.hold_out import KeptEvents
from recsys.distributed.coordination import is_primary
from recsys.embedding import TablePlacement
from recsys.embedding.model import ExactCount
from recsys.errors import RecsysError
from recsys.formats import html_facts
from recsys.models import LookupModel, ModelInputs
from recsys.system.events import emit, note
from recsys.tasks.config import TrainStage

if TYPE_CHECKING:
    from recsys.training.run_folders import RunFolders
    from recsys.training.warm_start import EarlierModel

_WIDTH, _HEIGHT = 480, 120
_LEAST_S, _LEAST_STEPS = 3.0, 10
"""Time and steps after which the time left is shown."""


@dataclasses.dataclass
class Progress:
    """State of a training besides its arrays; saved with each checkpoint.

    Attributes:
        step: Steps done.
        seconds: Time spent in training, over all attempts.
        waited_s: Part of this time spent waiting for input.
        curve: The mean loss of every few steps, `{"step", "loss", …}`, with auxiliary losses
            and the model's own metrics by name.
        validations: Results of the validations, each `{"step", metric: value, …}`.
        best_step: Step of the best validation; None before the first.
        resumed_at: Steps that the run was resumed from.
        machine: Devices, processes, platform, contents of the compiled step, and the bytes of
            store and features that the first process reads in an epoch.
        warm_start: Rows taken over from an earlier model; None for a cold start.
        epochs: Metrics of each finished epoch, `{"epoch", "step", "loss", …}`, and of its
            validation as `val_…`.
        epoch_sums: Sums of the metrics over the steps of the current epoch, and `steps`.
        epoch_counts: Counts over these steps.
        is_stopped: Whether a callback stopped the run before its last step.
    """

    step: int = 0
    seconds: float = 0.0
    waited_s: float = 0.0
    curve: list[dict[str, Any]] = dataclasses.field(default_factory=list)
    validations: list[dict[str, float]] = dataclasses.field(default_factory=list)
    best_step: int | None = None
    resumed_at: list[int] = dataclasses.field(default_factory=list)
    machine: dict[str, Any] = dataclasses.field(default_factory=dict)
    warm_start: dict[str, Any] | None = None
    epochs: list[dict[str, float]] = dataclasses.field(default_factory=list)
    epoch_sums: dict[str, float] = dataclasses.field(default_factory=dict)
    epoch_counts: dict[str, float] = dataclasses.field(default_factory=dict)
    is_stopped: bool = False

    def add_steps(self, n: int, means: Mapping[str, float], counts: Mapping[str, float]) -> None:
        """Adds the mean metrics of `n` steps, and their counts, to the current epoch."""
        for name, value in {"steps": 1.0, **means}.items():
            self.epoch_sums[name] = self.epoch_sums.get(name, 0.0) + n * value
        for name, value in counts.items():
            self.epoch_counts[name] = self.epoch_counts.get(name, 0.0) + value

    def end_epoch(self, epoch: int, validation: Mapping[str, float]) -> dict[str, float]:
        """Returns the metrics of the current epoch, and records them.

        Args:
            epoch: Index of the epoch, from 0.
            validation: Metrics of the validation after the epoch; empty if there was none.
        """
        steps = self.epoch_sums.pop("steps")
        logs = {name: total / steps for name, total in self.epoch_sums.items()}
        logs |= self.epoch_counts
        logs |= {f"val_{name}": value for name, value in validation.items()}
        self.epochs.append({"epoch": epoch, "step": self.step, **logs})
        self.epoch_sums, self.epoch_counts = {}, {}
        return logs


def metrics_text(metrics: Mapping[str, float]) -> str:
    """Returns metrics as one line, without epoch and step."""
    shown = {name: value for name, value in metrics.items() if name not in ("epoch", "step")}
    return " · ".join(f"{name} {value:.4f}" for name, value in shown.items())


# --- the log


class TrainingLog:
    """Records a point of the loss curve from the logs of the steps since the last one.

    Args:
        progress: Progress of the run, which holds the curve.
        total: Steps of the whole run.
        batch_size: Examples of a step.
        unknown_share: Share of the ids of the training positives that no vocabulary has a
            row for [0..1].
        scalars: Writer for TensorBoard; None: no logs.
        is_bar_shown: Whether a progress bar is printed.
    """

    def __init__(
        self,
        progress: Progress,
        total: int,
        batch_size: int,
        unknown_share: float,
        scalars: TensorBoardWriter | None = None,
        is_bar_shown: bool = False,
    ) -> None:
        self._progress, self._total = progress, total
        self._batch_size, self._unknown_share = batch_size, unknown_share
        self._scalars = scalars
        self._step, self._time = progress.step, time.perf_counter()
        self._waited_s = 0.0
        # For the mean speed, without the first steps, which wait for a compiler.
        self._is_compiled, self._timed_steps, self._timed_s = False, 0, 0.0
        self._bar: Any = None
        if is_bar_shown and is_primary():
            self._bar = keras.utils.Progbar(total, stateful_metrics=["loss"], unit_name="step")

    def record(self, model: keras.Model, logs: Mapping[str, Any], waited_s: float) -> None:
        """Records the metrics of the steps since the last call.

        Args:
            model: The model; its variables hold their values.
            logs: Means and counts over these steps.
            waited_s: Total time waited for input since the start of the run [s].

        Raises:
            RecsysError: The loss is NaN or infinite.
        """
        progress = self._progress
        steps = progress.step - self._step
        if not steps:
            return
        # Waits for the last step, so that the time covers all steps.
        values = {name: float(value) for name, value in logs.items()}
        now = time.perf_counter()
        loss = values.pop("loss")
        if not np.isfinite(loss):
            raise non_finite_error(progress, model, loss)
        seconds, waited = now - self._time, waited_s - self._waited_s
        progress.seconds += seconds
        progress.waited_s += waited
        counted = {metric.name for metric in model.metrics if isinstance(metric, ExactCount)}
        means = {name: value for name, value in values.items() if name not in counted}
        # A metric may be NaN before its first value; JSON has no NaN.
        own = {name: round(x, 6) if np.isfinite(x) else None for name, x in means.items()}
        progress.curve.append({"step": progress.step, "loss": round(loss, 6), **own})
        counts = {name: value for name, value in values.items() if name in counted}
        progress.add_steps(steps, {"loss": loss, **means}, counts)
        speed = steps * self._batch_size / seconds
        self._write(model, {"loss": loss, **values}, speed, waited / seconds)
        if self._is_compiled:
            self._timed_steps += steps
            self._timed_s += seconds
        self._is_compiled = True
        self._report(loss)
        self._step, self._time, self._waited_s = progress.step, time.perf_counter(), waited_s

    def skip_time(self, waited_s: float) -> None:
        """Excludes the time since the last point, which was not spent in steps."""
        self._time, self._waited_s = time.perf_counter(), waited_s

    def record_validation(self, metrics: Mapping[str, float]) -> None:
        if self._scalars is not None:
            named = {f"validation/{name}": value for name, value in metrics.items()}
            self._scalars.write(self._progress.step, named)

    def _write(
        self, model: keras.Model, values: Mapping[str, float], speed: float, wait_share: float
    ) -> None:
        # In every process: norms of distributed arrays are computed by all processes.
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

    def _report(self, loss: float) -> None:
        step, total = self._progress.step, self._total
        text = f"loss {loss:.3f}"
        if self._timed_steps >= _LEAST_STEPS and self._timed_s >= _LEAST_S:
            steps_per_s = self._timed_steps / self._timed_s
            left = dt.timedelta(seconds=round((total - step) / steps_per_s))
            text += f" · {steps_per_s * self._batch_size:,.0f} examples/s · {left} left"
        if is_primary():
            report_progress(step, total, text)
        if self._bar is not None:
            self._bar.update(step, [("loss", loss)], finalize=step == total)


def non_finite_error(progress: Progress, model: keras.Model, received: Any) -> RecsysError:
    """Returns the error of a run whose loss or weights are not finite.

    Learning rates are suggested if the loss had grown before, or if no plugin computes it.
    """
    parts = [model, *(getattr(model, name, None) for name in ("training_loss", "encoder"))]
    types = [type(part) for part in parts if part is not None]
    plugins = [
        f"{x.__module__}.{x.__name__}" for x in types if not x.__module__.startswith("recsys.")
    ]
    losses = [point["loss"] for point in progress.curve]
    has_grown = bool(losses) and losses[-1] > losses[0] + abs(losses[0])
    rule = f"Loss and weights must be finite; they were not around step {progress.step}."
    cure = (
        "Lower train.table_learning_rate and train.tower_learning_rate; earlier checkpoints are"
        " intact."
    )
    if plugins and not has_grown:
        before = f"after a loss of {losses[-1]:.4g}" if losses else "before anything was learned"
        cure = (
            f"This came suddenly, {before}: look in {' and '.join(plugins)} for a division by 0, a"
            " logarithm or root of 0 or less, or a root whose gradient is infinite at 0."
        )
    return RecsysError("R322", rule, cure, received)


@jax.jit
def _norms(arrays: list[jax.Array]) -> jax.Array:
    """Returns the norm of each array `[arrays]`, in one call: a call costs more than a norm."""
    return jnp.array([jnp.sqrt(jnp.sum(jnp.square(array))) for array in arrays])


class TensorBoardWriter:
    """Writes numbers by step into a folder that TensorBoard reads.

    Each call writes synchronously, because tensorboardX's own thread ends silently if the disk
    is full, and the training would then wait for it forever. If writing fails, the run continues
    without these files.

    Args:
        folder: The folder; made if missing.
        first_step: Step after which the events of an earlier attempt are discarded.
    """

    def __init__(self, folder: Path, first_step: int) -> None:
        self._writer: EventsWriter | None = None
        try:
            folder.mkdir(parents=True, exist_ok=True)
            self._writer = EventsWriter(str(folder / "events"), f".{os.getpid()}")
        except OSError as error:
            self._give_up(error)
        if first_step:
            start = SessionLog(status=SessionLog.START)
            self._put(step=first_step + 1, session_log=start)

    def write(self, step: int, values: Mapping[str, float]) -> None:
        """Writes values by names such as `train/loss`."""
        named = [Summary.Value(tag=name, simple_value=value) for name, value in values.items()]
        self._put(step=step, summary=Summary(value=named))

    def close(self) -> None:
        writer, self._writer = self._writer, None
        if writer is not None:
            with suppress(OSError):
                writer.close()

    def _put(self, **fields: Any) -> None:
        if self._writer is None:
            return
        try:
            self._writer.write_event(Event(wall_time=time.time(), **fields))
            self._writer.flush()
        except OSError as error:
            self._give_up(error)

    def _give_up(self, error: OSError) -> None:
        self.close()
        note(f"Nothing more is written for TensorBoard: {error.strerror or error}.")


def memory() -> dict[str, float]:
    """Returns the memory of this process and of its devices [MiB]."""
    peak_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    values = {"memory/peak_rss_mib": peak_kib / 2**10}
    for device in jax.local_devices():
        # CPUs have no memory statistics.
        if statistics := device.memory_stats():
            values[f"memory/device_{device.id}_mib"] = statistics["bytes_in_use"] / 2**20
    return values


def report_progress(done: int, total: int, text: str) -> None:
    """Reports the progress of the run, for a progress bar.

    Args:
        done: Steps done.
        total: Steps of the whole run.
        text: Loss, speed and time left.
    """
    emit("progress", done=done, total=total, text=text)


# --- the result


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingResult:
    """Result of `Trainer.fit`, with a rich display in notebooks.

    Attributes:
        model: The trained model; the best one if there was validation.
        stage: Configs of the training, with `history_of` resolved.
        inputs: Histories and features of users and items, as of the training events.
        events: Training positives, including those held back for validation.
        progress: Steps, times, loss curve and validations; with `refit` of the training with
            validation.
        placements: Placement of the tables on the devices.
        unknown_id_share: Share of the ids of the training positives without a row [0..1].
        folders: Folders of the checkpoints of the run.
        base: Earlier model of a warm start; None for a cold start.
        cold: Reason for a cold start despite an earlier model; None otherwise.
        refit: Progress of the training on all events that followed, see
            `TrainingSide.trains_again`; None: there was none.
        choice: Record of the comparison that chose the model, see `model.minutes`; None: none.
    """

    model: LookupModel
    stage: TrainStage
    inputs: ModelInputs
    events: KeptEvents
    progress: Progress
    placements: list[TablePlacement]
    unknown_id_share: float
    folders: RunFolders
    base: EarlierModel | None = None
    cold: str | None = None
    refit: Progress | None = None
    choice: dict[str, Any] | None = None

    @property
    def best_epochs(self) -> int:
        """Number of epochs before the best validation, or of all without one; at least 1."""
        best = self.progress.best_step
        best = self.progress.step if best is None else best
        return max(1, sum(epoch["step"] <= best for epoch in self.progress.epochs))

    @property
    def history(self) -> dict[str, list[float | None]]:
        """Metrics by name, one value per finished epoch; None if an epoch was not validated."""
        epochs = self.progress.epochs
        names = dict.fromkeys(name for epoch in epochs for name in epoch)
        return {name: [epoch.get(name) for epoch in epochs] for name in names}

    @property
    def curve(self) -> list[dict[str, Any]]:
        """The loss curve: `{"step", "loss", …}`, the mean of every few steps."""
        return self.progress.curve

    @property
    def checkpoints(self) -> Path:
        """Folder of the run's checkpoints."""
        return self.folders.checkpoints

    @property
    def examples_per_s(self) -> float:
        """Mean speed of the steps [examples/s]; 0 before the first."""
        progress = self.progress
        examples = progress.step * self.stage.train.batch_size
        return round(examples / progress.seconds, 1) if progress.seconds else 0.0

    def to_pandas(self) -> Any:
        """Returns the metrics as a pandas DataFrame with one row per epoch; requires pandas."""
        return pa.Table.from_pydict(self.history).to_pandas()

    def summary(self) -> dict[str, Any]:
        """Returns the content of `training.json` in a model folder."""
        progress, folders = self.progress, self.folders
        return {
            **progress.machine,
            "steps": progress.step,
            "examples": progress.step * self.stage.train.batch_size,
            "seconds": round(progress.seconds, 3),
            "examples_per_s": self.examples_per_s,
            "input_wait_share": round(progress.waited_s / (progress.seconds or 1.0), 4),
            "unknown_id_share": round(self.unknown_id_share, 6),
            "resumed_at": progress.resumed_at,
            "best_step": progress.best_step,
            "validation": progress.validations,
            "refit": self._of_refit(),
            "warm_start": progress.warm_start,
            "cold": self.cold,
            "choice": self.choice,
            "checkpoints": str(folders.checkpoints),
            "tensorboard": str(folders.tensorboard),
            "sharding": [dataclasses.asdict(placement) for placement in self.placements],
            "curve": progress.curve,
        }

    def _of_refit(self) -> dict[str, Any] | None:
        """Returns steps and seconds of the training on all events, if there was one."""
        if (own := self.refit) is None:
            return None
        seconds = round(own.seconds, 3)
        return {"steps": own.step, "seconds": seconds, "resumed_at": own.resumed_at}

    def _lines(self) -> dict[str, str]:
        progress = self.progress
        lines = {
            "model": type(self.model).__name__,
            "steps": f"{progress.step:,} in {progress.seconds:,.1f} s"
            f" ({self.examples_per_s:,.0f} examples/s)",
        }
        if progress.epochs:
            lines["last epoch"] = metrics_text(progress.epochs[-1])
        if progress.best_step is not None:
            best = next(m for m in progress.validations if m["step"] == progress.best_step)
            lines["best"] = f"step {progress.best_step:,}: {metrics_text(best)}"
        if self.refit is not None:
            seconds = f"{self.refit.seconds:,.1f} s"
            lines["refit"] = f"{self.refit.step:,} steps in {seconds}, on all events"
        if progress.resumed_at:
            lines["resumed at"] = ", ".join(f"step {step:,}" for step in progress.resumed_at)
        return {**lines, "checkpoints": str(self.checkpoints)}

    def __repr__(self) -> str:
        lines = (f"  {name}: {text}" for name, text in self._lines().items())
        return "\n".join(["TrainingResult", *lines])

    def _repr_html_(self) -> str:
        """Returns a table and the loss curve, for notebooks."""
        return html_facts(self._lines()) + _curve_svg(self.curve)


def _curve_svg(curve: list[dict[str, Any]]) -> str:
    """Returns the loss over the steps as SVG, readable on light and dark; "" for no curve."""
    if len(curve) < 2:
        return ""
    steps, losses = (np.array([point[key] for point in curve]) for key in ("step", "loss"))
    x, y = ((v - v.min()) / (np.ptp(v) or 1.0) for v in (steps, losses))
    points = " ".join(
        f"{_WIDTH * a:.1f},{_HEIGHT * (1 - b):.1f}" for a, b in zip(x, y, strict=True)
    )
    title = f"loss {losses[0]:.4f} → {losses[-1]:.4f}, step {steps[-1]:,.0f}"
    return (
        f"<svg viewBox='-4 -4 {_WIDTH + 8} {_HEIGHT + 24}' width='{_WIDTH}' role='img'>"
        f"<title>{title}</title>"
        f"<polyline points='{points}' fill='none' stroke='#3b82c4' stroke-width='2'/>"
        f"<text x='0' y='{_HEIGHT + 16}' font-size='12' fill='currentColor'>{title}</text></svg>"
    )
