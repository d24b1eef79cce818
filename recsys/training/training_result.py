"""The progress of a training and its result: model, metrics and statistics."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np
import pyarrow as pa

from recsys.data.hold_out import KeptEvents
from recsys.embedding import TablePlacement
from recsys.formats import html_facts
from recsys.models import LookupModel, ModelInputs
from recsys.tasks.config import TrainStage

if TYPE_CHECKING:
    from recsys.training.run_folders import RunFolders
    from recsys.training.warm_start import EarlierModel

_WIDTH, _HEIGHT = 480, 120


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


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingResult:
    """Result of `Trainer.fit`, with a rich display in notebooks.

    Attributes:
        model: The trained model; the best one if there was validation.
        stage: Configs of the training, with `history_of` resolved.
        inputs: Histories and features of users and items, as of the training events.
        events: Training positives, including those held back for validation.
        progress: Steps, times, loss curve and validations.
        placements: Placement of the tables on the devices.
        unknown_id_share: Share of the ids of the training positives without a row [0..1].
        folders: Folders of the checkpoints of the run.
        base: Earlier model of a warm start; None for a cold start.
        cold: Reason for a cold start despite an earlier model; None otherwise.
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
            "warm_start": progress.warm_start,
            "cold": self.cold,
            "checkpoints": str(folders.checkpoints),
            "tensorboard": str(folders.tensorboard),
            "sharding": [dataclasses.asdict(placement) for placement in self.placements],
            "curve": progress.curve,
        }

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
