"""What the competitors of `benchmarks.embedding_layer` share: constants, and taking turns."""

from __future__ import annotations

import importlib.metadata
import json
import sys
import time
from collections.abc import Callable, Sequence

import numpy as np
import numpy.typing as npt

from benchmarks.measure import peak_rss_mib

LEARNING_RATE = 0.01
INITIAL = 0.5
"""Every weight of the table at the start."""
EPSILON = 1e-7
WARMUP = 10

_FEWEST = 5


def take_turns(
    ids: str,
    prepare: Callable[[npt.NDArray[np.int32]], object],
    step: Callable[[object], None],
    read_table: Callable[[], npt.NDArray[np.float32]],
    packages: Sequence[str],
) -> None:
    """Warms up, then measures steps whenever the parent says so, until it says no more.

    Each line of stdin is the length of a turn [s]; it is answered with a line of JSON,
    the time of each step [ms]. The first line of stdout says what the warm-up did to the
    table, which must be the same for all.

    Args:
        ids: Path of a .npy file, int32 `[batches, bags, length]`: rows to look up.
        prepare: Makes of ids `[bags, length]` what `step` takes; isn't measured.
        step: One lookup and update, done when it returns.
        read_table: Returns the table `[rows, dim]`.
        packages: Distributions whose versions belong to the figures.
    """
    batches = [prepare(of_batch) for of_batch in np.load(ids)]
    for i in range(WARMUP):
        step(batches[i % len(batches)])
    moved = float(np.abs(np.asarray(read_table(), np.float64) - INITIAL).mean())
    versions = {name: importlib.metadata.version(name) for name in packages}
    _tell({"moved": moved, "versions": versions})
    for line in sys.stdin:
        _tell({"step_ms": _turn(float(line), batches, step), "peak_rss_mib": peak_rss_mib()})


def _turn(seconds: float, batches: list[object], step: Callable[[object], None]) -> list[float]:
    times: list[float] = []
    began = time.perf_counter()
    while len(times) < _FEWEST or time.perf_counter() - began < seconds:
        batch = batches[len(times) % len(batches)]
        started = time.perf_counter()
        step(batch)
        times.append((time.perf_counter() - started) * 1000)
    return times


def _tell(what: object) -> None:
    print(json.dumps(what), flush=True)
