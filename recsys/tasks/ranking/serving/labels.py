"""Labels of the events of a history, from the raw columns of a request."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import tensorflow as tf

from recsys.data.label_config import LabelConfig
from recsys.savedmodel.inputs import trimmed, typed


def raw_labels(
    labels: Mapping[str, LabelConfig], texts: Mapping[str, tf.Tensor]
) -> dict[str, tf.Tensor]:
    """Returns labels `[b, n]` float32 by name, NaN if unknown; as the ingest types them.

    Args:
        labels: The labels, each after its `given`.
        texts: Raw texts `[b, n]` by column.
    """
    found: dict[str, tf.Tensor] = {}
    for name, label in labels.items():
        own = texts[label.column]
        if label.values:
            words = trimmed(tf.reshape(own, [-1]))[:, None]
            is_yes = tf.reduce_any(words == tf.constant(label.values), axis=1)
            value = tf.where(words[:, 0] == "", np.float32(np.nan), tf.cast(is_yes, tf.float32))
            value = tf.reshape(value, tf.shape(own))
        else:
            value = typed(label.column, "number", own)
            if label.at_least is not None:
                is_yes = tf.cast(value >= np.float32(label.at_least), tf.float32)
                value = tf.where(tf.math.is_nan(value), value, is_yes)
        if label.given is not None:
            value = tf.where(found[label.given] == 1.0, value, np.float32(np.nan))
        found[name] = value
    return found
