"""Buckets of the time between events.

Bucket k holds the times t with floor(ln(max(1, t)) / 0.301) = k, each about a third longer than
the one before, as in the code of HSTU (Zhai et al., "Actions Speak Louder than Words", ICML
2024): 70 of them reach from a second to `OLDEST`, 34 years.
"""

from __future__ import annotations

import math

import keras
import numpy as np
from keras import ops

from recsys.data.history_facts import OLDEST

_WIDTH = 0.301
_N_KNOWN = math.floor(math.log(OLDEST) / _WIDTH) + 1
N_BUCKETS = 1 + _N_KNOWN
"""The first is of times that nobody knows."""

# First second of each bucket, and of the one behind the last.
_FIRST = np.ceil(np.exp(_WIDTH * np.arange(_N_KNOWN + 1))).astype(np.int32)
_FIRST[0] = 0


def time_buckets(age: keras.KerasTensor, asked: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the bucket of the time from an event to a later moment `[…]` int32.

    Exactly the same on every backend, though they round logarithms differently.

    Args:
        age: Age of the event `[…]` int32 [s]; below 0: unknown.
        asked: Age of the moment, likewise; both may be broadcast. A moment before the event is
            taken for the event's own.

    Returns:
        0 where one of the two is unknown, else 1 … `N_BUCKETS` - 1.
    """
    passed = ops.maximum(age - asked, 0)
    guess = ops.log(ops.cast(ops.maximum(passed, 1), "float32")) / _WIDTH
    guess = ops.minimum(ops.cast(guess, "int32"), _N_KNOWN - 1)
    above, below = (ops.take(_FIRST, guess + step, axis=0) for step in (1, 0))
    bucket = guess + ops.cast(passed >= above, "int32") - ops.cast(passed < below, "int32")
    is_known = ops.logical_and(age >= 0, asked >= 0)
    return ops.where(is_known, 1 + bucket, 0)
