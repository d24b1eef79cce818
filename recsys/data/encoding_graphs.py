"""TensorFlow functions that return what those of `recsys.data.encodings` do."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from recsys.data.encodings import STEP
from recsys.data.feature_options import NumberOptions


def encode_number(options: NumberOptions, x: tf.Tensor, learned: Mapping[str, Any]) -> tf.Tensor:
    """Returns numbers `[n]` as token rows `[n]` int64, or as `[n, options.floats]` float32."""
    if options.as_ == "buckets":
        return buckets(x, learned["bound"])
    deviation = learned["deviation"]
    z = (scaled(x, options) - learned["mean"]) / tf.where(deviation > 0, deviation, 1.0)
    return _with_known(z[:, None], x)


def encode_columns(options: NumberOptions, x: tf.Tensor, learned: Mapping[str, Any]) -> tf.Tensor:
    """Returns columns of numbers `[n, k]` as token rows `[n, k]` int64, or numbers float32."""
    columns = tf.unstack(x, axis=1)
    parts = [encode_number(options, column, learned) for column in columns]
    if options.as_ != "buckets":
        return tf.concat(parts, axis=1)
    parts = [tf.where(p > 0, p + options.buckets * n, 0) for n, p in enumerate(parts)]
    return tf.stack(parts, axis=1)


def buckets(x: tf.Tensor, bounds: Any) -> tf.Tensor:
    """Returns the bucket of each number `[n]` int64, from 1 on; 0 for NaN."""
    row = 1 + tf.searchsorted(bounds, x, side="right", out_type=tf.int64)
    return tf.where(tf.math.is_nan(x), tf.zeros_like(row), row)


def scaled(x: tf.Tensor, options: NumberOptions) -> tf.Tensor:
    """Returns numbers as float64, or their logarithms."""
    x = tf.cast(x, tf.float64)
    return tf.sign(x) * tf.math.log1p(tf.abs(x)) if options.scale == "log" else x


def _with_known(encoded: tf.Tensor, x: tf.Tensor) -> tf.Tensor:
    known = ~tf.math.is_nan(x)[:, None]
    encoded = tf.where(known, tf.cast(encoded, tf.float32), 0.0)
    return tf.concat([encoded, tf.cast(known, tf.float32)], axis=1)


def encode_vectors(values: tf.Tensor, length: int) -> tf.Tensor:
    """Returns vectors `[n, length]` float32 as `[n, length + 1]`; a missing one is all NaN.

    A vector with fewer numbers, the others NaN, is an error.
    """
    is_there = ~tf.math.is_nan(values)
    known = tf.reduce_any(is_there, axis=1, keepdims=True)
    is_whole = tf.reduce_all(is_there == known)
    rule = f"A vector must have {length} numbers."
    with tf.control_dependencies([tf.debugging.Assert(is_whole, [rule])]):
        found = tf.where(known, values, tf.zeros_like(values))
    encoded = tf.concat([found, tf.cast(known, tf.float32)], axis=1)
    return tf.ensure_shape(encoded, [None, length + 1])


def crossed(codes: tf.Tensor, n_buckets: int) -> tf.Tensor:
    """Returns the hash rows `[n]` int64 of tokens `[n, k]` int64, from 1 on; 0 if one is 0."""
    mixed = tf.zeros(tf.shape(codes)[:1], tf.uint64)
    for column in tf.unstack(tf.cast(codes, tf.uint64), axis=1):
        mixed = tf.bitwise.bitwise_xor(_mix(mixed + tf.constant(STEP, tf.uint64)), column)
    rows = 1 + tf.cast(_mix(mixed) % tf.constant(n_buckets, tf.uint64), tf.int64)
    return tf.where(tf.reduce_all(codes > 0, axis=1), rows, tf.zeros_like(rows))


def _mix(numbers: tf.Tensor) -> tf.Tensor:
    """Returns what `recsys.data.hashes.mix` does."""
    for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
        numbers = _folded(numbers, shift) * tf.constant(factor, tf.uint64)
    return _folded(numbers, 31)


def _folded(numbers: tf.Tensor, shift: int) -> tf.Tensor:
    right = tf.bitwise.right_shift(numbers, tf.constant(shift, tf.uint64))
    return tf.bitwise.bitwise_xor(numbers, right)
