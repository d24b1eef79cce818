"""Calibration inside the graph: what `recsys.models.calibration` does, in TensorFlow."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from recsys.models.calibration import Isotonic, Temperature


def calibrated(map_: Temperature | Isotonic, logit: tf.Tensor) -> tf.Tensor:
    """Returns the probabilities `[n]` float32 of log odds `[n]` float32."""
    if isinstance(map_, Temperature):
        return tf.sigmoid(map_.scale * logit + map_.bias)
    points, values = (tf.constant(x, tf.float64) for x in (map_.logit, map_.probability))
    if len(map_.logit) == 1:
        return tf.fill(tf.shape(logit), np.float32(map_.probability[0]))
    # In float64, since two points may be close together.
    at = tf.clip_by_value(tf.cast(logit, tf.float64), points[0], points[-1])
    right = tf.clip_by_value(tf.searchsorted(points, at, "right"), 1, len(map_.logit) - 1)
    low, high = tf.gather(points, right - 1), tf.gather(points, right)
    first, last = tf.gather(values, right - 1), tf.gather(values, right)
    return tf.cast(first + (last - first) * (at - low) / (high - low), tf.float32)
