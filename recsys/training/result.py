"""What a training gives: the model, its loss curve, its metrics, and how it ran."""

from __future__ import annotations

import dataclasses
import html
from collections.abc import Iterable
from pathlib import Path
from typing import Any

import pyarrow as pa

from recsys.config import TrainStage
from recsys.data.training_events import KeptEvents
from recsys.embedding import TablePlacement
from recsys.models import ModelInputs, RetrievalModel
from recsys.training.earlier_model import EarlierModel
from recsys.training.run_folders import RunFolders
from recsys.training.run_state import Progress, metrics_text

_WIDTH, _HEIGHT = 480, 120


@dataclasses.dataclass(frozen=True, eq=False)
class TrainingResult:
    """The result of `Trainer.fit`; it shows itself in a notebook.

    Attributes:
        model: The trained model; the best one of those that were validated.
        stage: The configs that it was trained with, `history_of` resolved.
        inputs: What is known of users and items to a model that trained on these events.
        events: The training positives, with those that validation held back.
        progress: Steps, times, loss curve, validations.
        placements: Where the tables lie.
        unknown_id_share: Share of the ids of the training positives without a row [0..1].
        folders: Where the run saved its checkpoints.
        base: The earlier model of a warm start; None for a cold start.
        cold: Why it began anew though an earlier model was given, as a sentence.
    """

    model: RetrievalModel
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
        """Metrics by name, a value for each epoch that ended; None where it wasn't validated."""
        epochs = self.progress.epochs
        names = dict.fromkeys(name for epoch in epochs for name in epoch)
        return {name: [epoch.get(name) for epoch in epochs] for name in names}

    @property
    def curve(self) -> list[dict[str, float]]:
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
        """Returns the metrics as a pandas frame with a row for each epoch; needs pandas."""
        return pa.Table.from_pydict(self.history).to_pandas()

    def summary(self) -> dict[str, Any]:
        """Returns what `training.json` of a model folder holds, JSON."""
        progress, folders = self.progress, self.folders
        return {
            **progress.machine,
            "steps": progress.step,
            "examples": progress.step * self.stage.train.batch_size,
            "seconds": round(progress.seconds, 3),
            "examples_per_s": self.examples_per_s,
            "input_wait_share": round(progress.wait_share, 4),
            "unknown_id_share": round(self.unknown_id_share, 6),
            "resumed_at": progress.resumed_at,
            "best_step": progress.best_step,
            "validation": progress.looks,
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
            best = next(m for m in progress.looks if m["step"] == progress.best_step)
            lines["best"] = f"step {progress.best_step:,}: {metrics_text(best)}"
        if progress.resumed_at:
            lines["resumed at"] = ", ".join(f"step {step:,}" for step in progress.resumed_at)
        return {**lines, "checkpoints": str(self.checkpoints)}

    def __repr__(self) -> str:
        lines = (f"  {name}: {text}" for name, text in self._lines().items())
        return "\n".join(["TrainingResult", *lines])

    def _repr_html_(self) -> str:
        """Returns a table and the loss curve, for notebooks."""
        rows = "".join(
            f"<tr><th style='text-align:left'>{html.escape(name)}</th>"
            f"<td style='text-align:left'>{html.escape(text)}</td></tr>"
            for name, text in self._lines().items()
        )
        return f"<table>{rows}</table>{_curve_svg(self.curve)}"


def _curve_svg(curve: list[dict[str, float]]) -> str:
    """Returns the loss over the steps as SVG, readable on light and dark; "" for no curve."""
    if len(curve) < 2:
        return ""
    steps, losses = ([point[key] for point in curve] for key in ("step", "loss"))
    points = " ".join(
        f"{x:.1f},{_HEIGHT - y:.1f}"
        for x, y in zip(_scaled(steps, _WIDTH), _scaled(losses, _HEIGHT), strict=True)
    )
    title = f"loss {losses[0]:.4f} → {losses[-1]:.4f}, step {steps[-1]:,.0f}"
    return (
        f"<svg viewBox='-4 -4 {_WIDTH + 8} {_HEIGHT + 24}' width='{_WIDTH}' role='img'>"
        f"<title>{title}</title>"
        f"<polyline points='{points}' fill='none' stroke='#3b82c4' stroke-width='2'/>"
        f"<text x='0' y='{_HEIGHT + 16}' font-size='12' fill='currentColor'>{title}</text></svg>"
    )


def _scaled(values: Iterable[float], size: float) -> list[float]:
    """Returns values between 0 and `size`, the least and the greatest at the ends."""
    values = list(values)
    low, span = min(values), (max(values) - min(values)) or 1.0
    return [size * (value - low) / span for value in values]
