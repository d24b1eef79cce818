"""Fits of baselines, which only the first process makes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping

import numpy as np

from recsys.distributed.coordination import agreed, from_primary
from recsys.tasks.judging_side import LeftOutError

_FIT_S = 6 * 3600.0
"""Timeout of the other processes [s]."""


def on_primary(fit: Callable[[], Mapping[str, np.ndarray]]) -> dict[str, np.ndarray]:
    """Calls `fit` on the first process only, and returns its arrays on every process.

    Raises:
        LeftOutError: `fit` raised it.
    """
    arrays: dict[str, np.ndarray] = {}

    def described() -> tuple[str | None, list[str]]:
        try:
            arrays.update(fit())
        except LeftOutError as error:
            return str(error), []
        return None, list(arrays)

    reason, names = agreed(described, _FIT_S)
    if reason is not None:
        raise LeftOutError(reason)
    return {name: from_primary(functools.partial(arrays.__getitem__, name)) for name in names}
