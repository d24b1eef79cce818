"""What one process measures, and what it says at its end."""

from __future__ import annotations

import importlib.metadata
import statistics
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.measure import AsJson, peak_rss_mib

TOWER_WIDTHS = (128, 64)
"""Widths of a tower's layers, relu after all but the last."""
LEARNING_RATE = 0.05
"""Of Adagrad on towers and tables."""
INITIAL = 0.05
"""Tables start uniform in ±this."""


@dataclass(frozen=True)
class Case(AsJson):
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


@dataclass(frozen=True)
class Measured(AsJson):
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


# --- Runs in the measuring process, ours or a peer's: times the steps and tells the result.


_FEWEST = 3


class StepClock:
    """Times steps from the end of one to the end of the next.

    The first `warmup` steps are not counted. Steps that take seconds are cut short: the
    warm-up and the measured steps each end after `seconds`, but not before three steps.

    Args:
        case: What is measured.
    """

    def __init__(self, case: Case) -> None:
        self.case = case
        self.step_ms: list[float] = []
        self.losses: list[float] = []
        self._ids: npt.NDArray[np.int32] = np.load(case.ids)
        self._n_warm = 0
        self._last = self._phase = time.perf_counter()

    def batches(self) -> Iterator[npt.NDArray[np.int32]]:
        """Yields `[2, batch]` int32, user rows and item rows, until all is measured."""
        step = 0
        while not self.is_done:
            yield self._ids[step % len(self._ids)]
            step += 1

    @property
    def is_done(self) -> bool:
        """Whether enough steps were measured."""
        return self._is_over(len(self.step_ms), self.case.steps)

    def tick(self, loss: float) -> None:
        """Says that a step has ended, its loss read and with it all that it waits for."""
        now = time.perf_counter()
        self.losses.append(loss)
        if self.step_ms or self._is_over(self._n_warm, self.case.warmup):
            if not self.step_ms:
                self._phase = self._last
            self.step_ms.append((now - self._last) * 1000)
        else:
            self._n_warm += 1
            if self._n_warm == 1:  # Compiling takes seconds, and is no step.
                self._phase = now
        self._last = now

    def _is_over(self, n_done: int, n_asked: int) -> bool:
        late = self._last - self._phase > self.case.seconds
        return n_done >= n_asked or (late and n_done >= _FEWEST)

    def report(
        self,
        state_bytes: int,
        packages: Sequence[str],
        sent_bytes: float = 0.0,
        least_bytes: float = 0.0,
    ) -> None:
        """Prints what was measured as the last line of stdout.

        Args:
            state_bytes: Bytes of the tables and of their slots.
            packages: Distributions whose versions belong to the figures.
            sent_bytes: Bytes that a device sends to others in a step.
            least_bytes: The least that it could send.
        """
        measured = Measured(
            step_ms=self.step_ms[: self.case.steps],
            losses=[self.losses[0], self.losses[-1]],
            state_bytes=state_bytes,
            peak_rss_mib=peak_rss_mib(),
            versions={name: importlib.metadata.version(name) for name in packages},
            sent_bytes=sent_bytes,
            least_bytes=least_bytes,
        )
        print(measured.to_json(), flush=True)
