"""How far the exported model may be from the trainer's."""

from __future__ import annotations

import numpy as np

from recsys.errors import RecsysError

TOLERANCE = 1e-5


def difference(code: str, subject: str, found: np.ndarray, expected: np.ndarray) -> float:
    """Returns the largest difference of two arrays.

    Raises:
        RecsysError: They differ in shape, or by more than the tolerance (`code`).
    """
    if found.shape != expected.shape:
        raise refused(code, subject, f"shape {found.shape} instead of {expected.shape}")
    worst = float(np.max(np.abs(found - expected), initial=0.0))
    # Dots may be large; cosines, and the entries of unit vectors, are 1 at the most.
    largest = max(1.0, float(np.max(np.abs(expected), initial=0.0)))
    if not (worst <= TOLERANCE * largest and np.isfinite(worst)):  # NaN is over it too.
        raise refused(code, subject, f"a difference of {worst:.3g}")
    return worst


def refused(code: str, subject: str, received: str) -> RecsysError:
    """Returns the error of a model that must not be exported."""
    return RecsysError(
        code,
        f"The {subject} of the exported model must be the trainer's within {TOLERANCE:g}"
        " of the largest number, or of 1.",
        "Nothing was exported. Train again: recsys run; if it stays, report it as a bug.",
        received,
    )
