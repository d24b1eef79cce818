"""TensorFlow functions of event features: they return what the features' `encode` does.

Values are `[n]`; a missing text is empty, a missing number NaN, a missing time or gap the lowest
int64. Token rows are int64, 0 is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from recsys.data.encoding_graphs import buckets
from recsys.data.event_features import LearnedFeature

MISSING = tf.int64.min
"""A missing time, or gap."""

Function = Callable[[tf.Tensor], tf.Tensor]


class EventEncoder(tf.Module):
    """Encodes events by all features, as `recsys.data.event_features.encode_features` does.

    Args:
        features: The features.
    """

    def __init__(self, features: Sequence[LearnedFeature]) -> None:
        super().__init__(name="event_encoder")
        self._features = [feature.feature for feature in features]
        self._graphs = {f.name: f.feature.graph(f.learned) for f in features}

    def __call__(self, values: Mapping[str, tf.Tensor]) -> dict[str, tf.Tensor]:
        """Returns token rows `[n]` int64 or numbers `[n, floats]` of typed values by feature."""
        crosses = [f for f in self._features if f.value == "tokens"]
        made = {
            f.name: self._graphs[f.name](values[f.name])
            for f in self._features
            if f.value != "tokens"
        }
        for cross in crosses:
            of: Any = cross
            made[cross.name] = self._graphs[cross.name](tf.stack([made[n] for n in of.of], axis=1))
        return made


class TokenRows(tf.Module):
    """Returns the row of each text among known tokens, from 1 on; 0 for other texts."""

    def __init__(self, tokens: Sequence[str]) -> None:
        super().__init__()
        rows = tf.range(1, len(tokens) + 1, dtype=tf.int64)
        pairs = tf.lookup.KeyValueTensorInitializer(tf.constant([*tokens], tf.string), rows)
        self._table = tf.lookup.StaticHashTable(pairs, 0)

    def __call__(self, texts: tf.Tensor) -> tf.Tensor:
        return self._table.lookup(texts)


def hashed(n_buckets: int) -> Function:
    """Returns a function that hashes texts to rows 1 … `n_buckets`."""

    def rows(texts: tf.Tensor) -> tf.Tensor:
        row = 1 + tf.strings.to_hash_bucket_fast(texts, n_buckets)
        return tf.where(texts == "", tf.zeros_like(row), row)

    return rows


def bucketed_hours(bounds: np.ndarray) -> Function:
    """Returns a function of gaps [s] int64: their buckets on a scale of hours."""

    def rows(gaps: tf.Tensor) -> tf.Tensor:
        hours = tf.cast(tf.cast(gaps, tf.float64) / 3600.0, tf.float32)
        return buckets(tf.where(gaps == MISSING, np.float32(np.nan), hours), bounds)

    return rows


def of_local_time(
    borders: np.ndarray, offsets: np.ndarray, of_local: Callable[[Any], Any]
) -> Function:
    """Returns a function of times [s] int64: 1 + `of_local` of the local times.

    Args:
        borders: Times at which the offset from UTC changes `[n]` int64.
        offsets: The offsets `[n + 1]` int64 [s].
        of_local: The feature of local times.
    """

    def rows(times: tf.Tensor) -> tf.Tensor:
        is_there = times != MISSING
        time = tf.where(is_there, times, 0)
        place = tf.searchsorted(tf.constant(borders, tf.int64), time, side="right")
        local = time + tf.gather(tf.constant(offsets, tf.int64), place)
        return tf.where(is_there, 1 + of_local(local), 0)

    return rows
