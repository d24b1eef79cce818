"""Ids to places inside the graph, and to the rows that unknown ids share."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import tensorflow as tf


class IdTable(tf.Module):
    """A table from ids to numbers; an id that it doesn't hold has the number 0.

    Args:
        ids: Ids `[n]`, text, unique.
        numbers: The number of each of them `[n]`, from 1 on.
    """

    def __init__(self, ids: pa.Array | Sequence[str], numbers: np.ndarray) -> None:
        super().__init__(name="id_table")
        texts = ids.to_pylist() if isinstance(ids, pa.Array) else ids
        keys = tf.constant(np.asarray(texts, object), tf.string, [len(texts)])
        values = tf.constant(numbers, tf.int32, [len(texts)])
        entries = tf.lookup.KeyValueTensorInitializer(keys, values)
        self._table = tf.lookup.StaticHashTable(entries, 0)

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the numbers `[...]` int32 of `ids` `[...]`."""
        return self._table.lookup(ids)


def hash_rows(ids: tf.Tensor, n_hash_rows: int) -> tf.Tensor:
    """Returns the row that each of `ids` has without one of its own, as `Vocabulary.rows`.

    Args:
        ids: Ids `[...]`; the empty one stands for no id, and has row 0.
        n_hash_rows: Rows that such ids share; 0: they have row 0.
    """
    if not n_hash_rows:
        return tf.zeros_like(ids, tf.int32)
    hashed = 1 + tf.strings.to_hash_bucket_fast(ids, n_hash_rows)
    return tf.where(ids == "", 0, tf.cast(hashed, tf.int32))
