"""Numbers and texts that a saved graph reads."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from recsys.serving.checkpoint import SMALL_BYTES, filled_later


def constant(values: Any, dtype: tf.DType) -> tf.Variable:
    """Returns a variable, which is saved in a file of its own and not in the graph.

    A large one has no rows before `recsys.serving.checkpoint.fill` gives them to what was
    saved; an array in memory or a memory map is then read slice by slice.
    """
    if isinstance(values, np.ndarray) and dtype != tf.string and values.nbytes > SMALL_BYTES:
        return filled_later(values, dtype)
    return tf.Variable(tf.convert_to_tensor(values, dtype), trainable=False)
