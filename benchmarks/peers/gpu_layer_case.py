"""What one process measures on an accelerator, how it is timed, and what it should move."""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

from benchmarks.measure import AsJson

LEARNING_RATE = 0.05
COPIED_BYTES = 2 << 30
"""Size of the array whose copy gives the bandwidth; a tenth of it on a CPU."""
_FLOAT = 4
_GIGA = 1e9


@dataclass(frozen=True)
class Case(AsJson):
    """One measurement.

    Attributes:
        ids: Path of a .npy file, int32 `[sets, features · batch]`; steps take turns.
        rows: Rows of the table.
        dim: Width of a row [floats].
        steps: Steps that are timed together.
        repeats: How often they are.
        on_cpu: Whether a CPU will do: to try the program, not to measure.
    """

    ids: str
    rows: int
    dim: int
    steps: int
    repeats: int
    on_cpu: bool = False

    def read_ids(self) -> npt.NDArray[np.int32]:
        """Returns the ids `[sets, features · batch]` int32."""
        return np.load(self.ids)

    @property
    def copied_floats(self) -> int:
        """Length of the array to copy [floats]."""
        return COPIED_BYTES // _FLOAT // (10 if self.on_cpu else 1)


@dataclass(frozen=True)
class Measured(AsJson):
    """What a process found.

    Attributes:
        step_ms: Time of a step by kind of update, one figure a repeat [ms].
        copy_gb_s: Bytes read and written by a copy, one figure a repeat [GB/s].
        peak_device_bytes: Most memory of the device that was in use; 0 if unknown.
        peak_rss_mib: Most memory of the host that the process held [MiB].
        device: Its name.
        versions: What it ran on.
    """

    step_ms: dict[str, list[float]]
    copy_gb_s: list[float]
    peak_device_bytes: int
    peak_rss_mib: float
    device: str
    versions: dict[str, str]


def moved_bytes(ids: npt.NDArray[np.int32], dim: int) -> float:
    """Returns the fewest bytes that a step moves, on average over the sets `[sets, n]`.

    Each distinct row is read and written once, with its accumulator of one float, and the
    gradient of each id is read: 2 · distinct · 4 · (dim + 1) + n · 4 · dim. Not counted:
    that the lookup writes n rows, and that rows are read for it and again for the update.
    """
    distinct = np.mean([len(np.unique(of_step)) for of_step in ids])
    return float(2 * distinct * _FLOAT * (dim + 1) + ids.shape[1] * _FLOAT * dim)


def timed_ms(step: Callable[[int], object], wait: Callable[[], object], case: Case) -> list[float]:
    """Returns the time of a step, on average over `case.steps`, for each repeat [ms].

    Args:
        step: Starts the i-th step.
        wait: Waits until all that was started is done.
        case: How many steps and repeats; one repeat before them warms up.
    """
    found = []
    for _ in range(case.repeats + 1):
        started = time.perf_counter()
        for i in range(case.steps):
            step(i)
        wait()
        found.append((time.perf_counter() - started) * 1000 / case.steps)
    return found[1:]


def copy_rate(ms: Sequence[float], case: Case) -> list[float]:
    """Returns the bandwidth of copies that took `ms`, bytes read and written [GB/s]."""
    return [2 * case.copied_floats * _FLOAT / _GIGA / (one * 1e-3) for one in ms]
