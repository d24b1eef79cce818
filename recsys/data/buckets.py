"""Buckets: every row of one id goes into the same one, in every process."""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recsys.data.farmhash import fingerprints


def hash_buckets(ids: pa.Array, n_buckets: int) -> np.ndarray:
    """Returns the bucket `[n]` int64 of each id `[n]`.

    It is what `tf.strings.to_hash_bucket_fast` gives.
    """
    return (fingerprints(ids) % np.uint64(n_buckets)).astype(np.int64)
