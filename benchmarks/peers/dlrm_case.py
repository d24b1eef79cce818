"""Shared by the competitors of `benchmarks.rank_step`: sizes, numbers and labels."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import numpy as np

from benchmarks.peers.two_tower_case import StepClock

TABLES, NUMBERS = 26, 13
BOTTOM = (512, 256, 64)
TOP = (512, 512, 256)
LEARNING_RATE = 0.01


def examples(clock: StepClock) -> Iterator[tuple[Any, Any, Any]]:
    """Yields ids `[26, batch]`, numbers `[batch, 13]` and labels `[batch]`."""
    for step, ids in enumerate(clock.batches()):
        rng = np.random.default_rng(step)
        numbers = rng.standard_normal((ids.shape[1], NUMBERS), np.float32)
        likes = np.sin(ids[0]) + numbers[:, 0] + rng.standard_normal(ids.shape[1]) > 0
        yield ids, numbers, likes.astype(np.float32)


def row_wise_bytes(clock: StepClock) -> int:
    """Returns the bytes of the tables and of an accumulator for each row."""
    return TABLES * clock.rows * (clock.dim + 1) * 4
