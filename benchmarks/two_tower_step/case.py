"""What one process measures, and what it says at its end."""

from __future__ import annotations

import json
import statistics
from dataclasses import asdict, dataclass

TOWER_WIDTHS = (128, 64)
"""Widths of a tower's layers, relu after all but the last."""
LEARNING_RATE = 0.05
"""Of Adagrad on towers and tables."""
INITIAL = 0.05
"""Tables start uniform in ±this."""


@dataclass(frozen=True)
class Case:
    """One measurement of one competitor.

    Attributes:
        ids: Path of a .npy file, int32 `[steps, 2, batch]`: user rows, item rows.
        rows: Rows of each of the two tables.
        dim: Width of their rows [floats].
        warmup: Steps before the measured ones, compilation among them.
        steps: Steps to measure.
        seconds: The measured steps end after this time too [s].
        optimizer: Optimizer of our tables; peers have one of their own.
        devices: Simulated devices of ours.
    """

    ids: str
    rows: int
    dim: int
    warmup: int
    steps: int
    seconds: float
    optimizer: str = "rowwise_adagrad"
    devices: int = 1

    def to_json(self) -> str:
        """Returns the command line of a measuring process."""
        return json.dumps(asdict(self))

    @classmethod
    def from_json(cls, text: str) -> Case:
        """Reads what `to_json` wrote."""
        return cls(**json.loads(text))


@dataclass(frozen=True)
class Measured:
    """What a measuring process found.

    Attributes:
        step_ms: Time of each measured step [ms].
        losses: Loss of the first and of the last step.
        state_bytes: Bytes of the tables and of their slots.
        peak_rss_mib: Most memory that the process held [MiB].
        versions: Of what it ran on, by name.
        sent_bytes: Bytes that a device sends to others in a step; 0 on one device.
        least_bytes: The least that it could send.
    """

    step_ms: list[float]
    losses: list[float]
    state_bytes: int
    peak_rss_mib: float
    versions: dict[str, str]
    sent_bytes: float = 0.0
    least_bytes: float = 0.0

    @property
    def median_ms(self) -> float:
        """The median of the steps' times [ms]."""
        return statistics.median(self.step_ms)

    @classmethod
    def from_stdout(cls, text: str) -> Measured:
        """Reads the last line of what a measuring process printed."""
        return cls(**json.loads(text.strip().splitlines()[-1]))
