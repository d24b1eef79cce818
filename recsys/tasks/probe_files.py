"""Files of probes: inputs with the results that training computed, which later code must equal."""

from __future__ import annotations

import contextlib
import zipfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from recsys.errors import RecsysError
from recsys.models.summary import damaged
from recsys.tasks.raw_events import MISSING

PROBE_TOLERANCE = 1e-4
"""Highest difference between a result in training and here, relative to the largest result if that
is above 1."""


@contextlib.contextmanager
def reading(path: Path) -> Iterator[dict[str, np.ndarray]]:
    """Yields the arrays of a probe's file in a model folder.

    Raises:
        RecsysError: The file is missing or damaged, or the block could not use its arrays (R310).
    """
    try:
        with path.open("rb") as file, np.load(file, allow_pickle=False) as probe:
            yield {name: probe[name] for name in probe}
    except (OSError, ValueError, EOFError, KeyError, TypeError, zipfile.BadZipFile) as error:
        raise damaged(path.parent, str(error)) from None


def times_before(past: Any, first: np.ndarray, ends: np.ndarray, length: int) -> np.ndarray:
    """Returns the times of the newest events of histories `[n, length]`, padded with `MISSING`.

    Args:
        past: Log of the events of histories.
        first: Index of the first event of each history `[n]`.
        ends: Index after the last one `[n]`.
        length: Number of times.
    """
    places = ends[:, None] - 1 - np.arange(length)
    is_there = places >= first[:, None]
    times = past.timestamp[np.where(is_there, places, 0)] if len(past) else np.zeros_like(places)
    return np.where(is_there, times, MISSING)


def check_equal(folder: Path, difference: float) -> None:
    """Checks that a model computes the same as in training.

    Weights fit any code with variables of the same names, so a layer whose code has changed would
    silently compute other numbers.

    Args:
        folder: The model folder.
        difference: Highest difference from the results in training, see `PROBE_TOLERANCE`.

    Raises:
        RecsysError: It is above `PROBE_TOLERANCE`, or NaN (R311).
    """
    if not difference <= PROBE_TOLERANCE:
        raise RecsysError(
            "R311",
            f"The model in {str(folder)!r} must compute what it did when it was trained,"
            f" within {PROBE_TOLERANCE:g}.",
            "The code of its layers has changed since: train again (recsys run); if this is the"
            " last blessed model, run once with --set bless.over_blessed=0.",
            difference,
        )
