"""Runs in the measuring process, ours or a peer's: times the steps and tells the result."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from pathlib import Path

import numpy as np
import numpy.typing as npt

from benchmarks.two_tower_step.case import Case, Measured

_KIB_PER_MIB = 1024
_FEWEST = 3


def read_case() -> Case:
    """Returns the case that the command line names."""
    return Case.from_json(sys.argv[1])


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
        print(json.dumps(asdict(measured)), flush=True)


def peak_rss_mib() -> float:
    """Returns the most memory that this process has held since it was started [MiB]."""
    # Not getrusage: that counts what the parent held before the exec.
    lines = Path("/proc/self/status").read_text().splitlines()
    (peak,) = [line for line in lines if line.startswith("VmHWM")]
    return int(peak.split()[1]) / _KIB_PER_MIB
