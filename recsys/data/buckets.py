"""Buckets: every row of one id goes into the same one, in every process."""

from __future__ import annotations

import zlib

import numpy as np
import pyarrow as pa


def hash_buckets(ids: pa.Array, n_buckets: int) -> np.ndarray:
    """Returns the bucket `[n]` int64 of each id `[n]`."""
    encoded = ids.dictionary_encode()
    hashes = [zlib.crc32(id_.encode()) % n_buckets for id_ in encoded.dictionary.to_pylist()]
    return np.array(hashes, np.int64)[encoded.indices.to_numpy()]


def split_by_bucket(batch: pa.RecordBatch, bucket: np.ndarray) -> list[tuple[int, pa.RecordBatch]]:
    """Splits a batch by the bucket `[n]` of its rows; their order is kept.

    The parts are copies: a slice would carry the whole batch through a shuffle.
    """
    order = np.argsort(bucket, kind="stable")
    used, starts = np.unique(bucket[order], return_index=True)
    rows = np.split(order, starts[1:])
    return [(int(one), batch.take(pa.array(part))) for one, part in zip(used, rows, strict=False)]
