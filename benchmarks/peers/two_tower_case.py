"""Shared by the competitors of `benchmarks.embedding_step`: the workload's sizes, and a clock."""

from __future__ import annotations

import importlib.metadata
import time
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import numpy.typing as npt

from benchmarks.measure import peak_rss_mib

TOWER_WIDTHS = (128, 64)
"""Widths of a tower's layers, relu after all but the last."""
LEARNING_RATE = 0.05
"""Learning rate of Adagrad for towers and tables."""
INITIAL = 0.05
"""Tables start uniform in ±this."""
_FEWEST = 3


class StepClock:
    """Times steps from the end of one to the end of the next.

    The first `warmup` steps are not counted. Steps that take seconds are cut short: the
    warm-up, without the first step, which compiles, and the measured steps each end after
    `seconds`, but not before three steps.

    Args:
        ids: Path of a .npy file, int32 `[steps, tables, batch]`: rows of each table.
        rows: Rows of each table.
        dim: Width of their rows [floats].
        warmup: Steps before the measured ones, compilation among them.
        steps: Steps to measure.
        seconds: Most time of the measured steps [s].
    """

    def __init__(
        self, ids: str, rows: int, dim: int, warmup: int, steps: int, seconds: float
    ) -> None:
        self.ids: npt.NDArray[np.int32] = np.load(ids)
        self.rows, self.dim = rows, dim
        self._warmup, self._steps, self._seconds = warmup, steps, seconds
        self._ends: list[float] = []
        self._losses: list[float] = []
        self._n_warm: int | None = None

    def batches(self) -> Iterator[npt.NDArray[np.int32]]:
        """Yields `[tables, batch]` int32 until all is measured."""
        step = 0
        while not self.is_done:
            yield self.ids[step % len(self.ids)]
            step += 1

    @property
    def is_done(self) -> bool:
        """Whether enough steps were measured."""
        n = self._n_warm
        return n is not None and self._is_over(n, len(self._ends) - n, self._steps)

    def tick(self, loss: float) -> None:
        """Ends a step; its loss has been read, and with it all that it waits for."""
        self._ends.append(time.perf_counter())
        self._losses.append(loss)
        n = len(self._ends)
        if self._n_warm is None and self._is_over(1, n, self._warmup):
            self._n_warm = n

    def callback(self, keras: Any) -> Any:
        """Returns a callback of Keras, whichever it is, that reads the loss and ends the step."""
        return keras.callbacks.LambdaCallback(
            on_train_batch_end=lambda _, logs: self.tick(float(logs["loss"]))
        )

    def _is_over(self, since: int, n_done: int, n_wanted: int) -> bool:
        """Returns whether so many steps are enough; `since`: the steps before the clock ran."""
        is_late = self._ends[-1] - self._ends[since - 1] > self._seconds
        return n_done >= n_wanted or (is_late and n_done >= _FEWEST)

    @property
    def step_ms(self) -> list[float]:
        """Time of each measured step [ms]."""
        measured = self._ends[(self._n_warm or 1) - 1 :][: self._steps + 1]
        return [float(ms) for ms in np.diff(measured) * 1000]

    def report(self, state_bytes: int, packages: Sequence[str]) -> dict[str, Any]:
        """Returns the figures of this process.

        Args:
            state_bytes: Bytes of the tables and of their slots.
            packages: Distributions whose versions belong to the figures.
        """
        return {
            "step_ms": self.step_ms,
            "losses": self._losses,
            "state_bytes": state_bytes,
            "peak_rss_mib": peak_rss_mib(),
            "versions": {name: importlib.metadata.version(name) for name in packages},
        }

    def adagrad_bytes(self) -> int:
        """Returns the bytes of the tables and of their Adagrad accumulators."""
        return self.ids.shape[1] * self.rows * self.dim * 2 * 4
