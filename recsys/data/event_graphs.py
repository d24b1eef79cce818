"""TensorFlow functions of event features: they return what the features' `encode` does.

Values are `[n]`; a missing text is empty, a missing number NaN, a missing time or gap the lowest
int64. Token rows are int64, 0 is missing.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

MISSING = tf.int64.min
"""A missing time, or gap."""

Function = Callable[[tf.Tensor], tf.Tensor]


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


def bucketed(bounds: np.ndarray) -> Function:
    """Returns a function of numbers: their buckets, from 1 on."""

    def rows(values: tf.Tensor) -> tf.Tensor:
        row = 1 + tf.searchsorted(bounds, values, side="right", out_type=tf.int64)
        return tf.where(tf.math.is_nan(values), tf.zeros_like(row), row)

    return rows


def bucketed_hours(bounds: np.ndarray) -> Function:
    """Returns a function of gaps [s] int64: their buckets on a scale of hours."""
    of_hours = bucketed(bounds)

    def rows(gaps: tf.Tensor) -> tf.Tensor:
        hours = tf.cast(tf.cast(gaps, tf.float64) / 3600.0, tf.float32)
        return of_hours(tf.where(gaps == MISSING, np.float32(np.nan), hours))

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
