"""Buckets of the time between events.

Bucket k holds the times t with floor(ln(max(1, t)) / 0.301) = k, each about a third longer than the
one before, as in the code of HSTU (Zhai et al., "Actions Speak Louder than Words", ICML 2024): 70
of them reach from a second to `OLDEST`, 34 years.
"""

from __future__ import annotations

import math

import keras
import numpy as np
from keras import ops

from recsys.data.event_log import OLDEST

_WIDTH = 0.301
_N_KNOWN = math.floor(math.log(OLDEST) / _WIDTH) + 1
N_BUCKETS = 1 + _N_KNOWN
"""The first bucket is for unknown times."""

# First second of each bucket, and the end of the last bucket.
_FIRST = np.ceil(np.exp(_WIDTH * np.arange(_N_KNOWN + 1))).astype(np.int32)
_FIRST[0] = 0


def time_buckets(age: keras.KerasTensor, asked: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the bucket of the time from an event to a later time `[…]` int32.

    Equal on all backends, although they round logarithms differently.

    Args:
        age: Age of the event `[…]` int32 [s]; below 0: unknown.
        asked: Age of the later time, likewise; broadcast with `age`. A time before the event counts
            as the time of the event.

    Returns:
        0 if either age is unknown, else 1 … `N_BUCKETS` - 1.
    """
    passed = ops.maximum(age - asked, 0)
    guess = ops.log(ops.cast(ops.maximum(passed, 1), "float32")) / _WIDTH
    guess = ops.minimum(ops.cast(guess, "int32"), _N_KNOWN - 1)
    above, below = (ops.take(_FIRST, guess + step, axis=0) for step in (1, 0))
    bucket = guess + ops.cast(passed >= above, "int32") - ops.cast(passed < below, "int32")
    is_known = ops.logical_and(age >= 0, asked >= 0)
    return ops.where(is_known, 1 + bucket, 0)
