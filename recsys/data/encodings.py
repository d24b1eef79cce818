"""Inputs of a model from numbers, vectors and tokens, with NumPy.

`recsys.data.encoding_graphs` has the same functions in TensorFlow. The features of events learn
with `learn_number`; those of users and items with TensorFlow Transform.
"""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.feature_options import NumberOptions
from recsys.data.hashes import mix

Learned = Mapping[str, np.ndarray]
"""Properties of the training data: `bound` of the quantile buckets, all but the first `[n - 1]`;
or `mean` and `deviation` `[1]`."""

STEP = 0x9E3779B97F4A7C15
"""Increment of SplitMix64, between the tokens of a cross."""


def learn_number(options: NumberOptions, values: np.ndarray, counts: np.ndarray) -> Learned:
    """Returns what `encode_number` needs.

    Args:
        options: The encoding.
        values: Numbers `[n]` float32, unique and ascending.
        counts: Number of events of each `[n]`.
    """
    if options.as_ == "buckets":
        return {"bound": quantiles(values, counts, options.buckets)}
    scaled = _scaled(values, options)
    mean = np.average(scaled, weights=counts) if len(values) else 0.0
    variance = np.average((scaled - mean) ** 2, weights=counts) if len(values) else 0.0
    return {"mean": np.array([mean]), "deviation": np.array([np.sqrt(variance)])}


def quantiles(values: np.ndarray, counts: np.ndarray, n: int) -> np.ndarray:
    """Returns the lower bound of each quantile bucket but the first `[n - 1]` float32."""
    if not len(values):
        return np.zeros(n - 1, np.float32)
    upto = np.cumsum(counts)
    at = np.searchsorted(upto, np.arange(1, n) * upto[-1] / n, side="right")
    return values[np.minimum(at, len(values) - 1)].astype(np.float32)


def encode_number(options: NumberOptions, x: np.ndarray, learned: Learned) -> np.ndarray:
    """Returns numbers as token rows `[n, 1]` int32, or as `[n, options.floats]` float32.

    Args:
        options: The encoding.
        x: Numbers `[n]` float32; NaN is missing.
        learned: The result of `learn_number`.
    """
    if options.as_ == "buckets":
        return buckets(x, learned["bound"])
    deviation = learned["deviation"]
    z = (_scaled(x, options) - learned["mean"]) / np.where(deviation > 0, deviation, 1.0)
    return _with_known(z[:, None], x)


def encode_columns(options: NumberOptions, x: np.ndarray, learned: Learned) -> np.ndarray:
    """Returns columns of numbers `[n, k]`, each by `encode_number`, one beside the other.

    The buckets of a column are numbered after those of the column before.
    """
    parts = [encode_number(options, column, learned) for column in x.T]
    if options.as_ == "buckets":
        parts = [np.where(p > 0, p + options.buckets * n, 0) for n, p in enumerate(parts)]
    return np.concatenate(parts, axis=1)


def buckets(x: np.ndarray, bounds: np.ndarray) -> np.ndarray:
    """Returns the bucket of each number `[n, 1]` int32, from 1 on; 0 for NaN."""
    rows = 1 + np.searchsorted(bounds, x, side="right")
    return np.where(np.isnan(x), 0, rows).astype(np.int32)[:, None]


def _scaled(x: np.ndarray, options: NumberOptions) -> np.ndarray:
    x = x.astype(np.float64)
    return np.sign(x) * np.log1p(np.abs(x)) if options.scale == "log" else x


def _with_known(encoded: np.ndarray, x: np.ndarray) -> np.ndarray:
    """Returns `encoded` `[n, k]` with a last column of 1; all zeros for NaN in `x` `[n]`."""
    known = ~np.isnan(x)[:, None]
    both = np.concatenate([np.where(known, encoded, 0.0), known], axis=1)
    return both.astype(np.float32)


def encode_vectors(values: pa.Array, length: int) -> np.ndarray:
    """Returns lists of `length` numbers `[n]` as `[n, length + 1]` float32; zeros for null.

    The last number is 1 if the list is there.
    """
    known = values.is_valid().to_numpy(zero_copy_only=False)
    encoded = np.zeros((len(values), length + 1), np.float32)
    flat = pc.list_flatten(values.filter(pa.array(known)))
    encoded[known, :-1] = flat.to_numpy(zero_copy_only=False).reshape(-1, length)
    encoded[:, -1] = known
    return encoded


def crossed(codes: np.ndarray, n_buckets: int) -> np.ndarray:
    """Returns the hash rows `[n, 1]` int32 of tokens `[n, k]`, from 1 on; 0 if one is 0."""
    mixed = np.zeros(len(codes), np.uint64)
    for column in codes.T:
        mixed = mix(mixed + np.uint64(STEP)) ^ column.astype(np.uint64)
    rows = 1 + (mix(mixed) % np.uint64(n_buckets)).astype(np.int32)
    return np.where((codes > 0).all(axis=1), rows, 0).astype(np.int32)[:, None]
