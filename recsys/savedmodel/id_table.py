"""Lookup of ids, and of the hash rows of unknown ids, inside the graph.

The graph does not hold ids: as a constant they could exceed the 2 GB of a protobuf, and a hash
table of strings takes minutes and gigabytes to load. It holds two fingerprints of each id in
variables, 16 bytes per id.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import tensorflow as tf

from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.savedmodel.variables import constant

_FIRST_BUCKETS, _SECOND_BUCKETS = 2**63 - 1, 2**31 - 1
_SECOND_KEY = (0x9AE16A3B2F90404F >> 1, 0xC3A5C85C97CB3127 >> 1)
_TRIES = 8
_BLOCK = 1 << 16


class IdTable(tf.Module):
    """A table from ids to numbers; unknown ids have the number 0.

    An id is found by a binary search for a 63-bit fingerprint, and verified by another fingerprint
    of 31 bits. Both are SipHashes (Aumasson and Bernstein, "SipHash: a fast short-input PRF", 2012)
    with different keys. An unknown id is mistaken for one of the `n` ids with probability `n /
    2^94`, below 2^-60 for `n` below 2^34. The 63-bit fingerprints of the ids are unique: the
    constructor tries keys until they are.

    Args:
        ids: Ids `[n]`, text, unique.
        numbers: Number of each id `[n]`, at least 1.

    Raises:
        RecsysError: An id occurs twice (R527).
    """

    def __init__(self, ids: pa.Array | Sequence[str], numbers: np.ndarray) -> None:
        super().__init__(name="id_table")
        self._key, first, order = _sorted(ids)
        second = _hashed(ids, _SECOND_BUCKETS, _SECOND_KEY).astype(np.int32)[order]
        values = np.asarray(numbers, np.int32)[order]
        # A sentinel after all others, so that each search ends inside the table; no id has this
        # fingerprint.
        self._first = constant(np.append(first, np.int64(_FIRST_BUCKETS)), tf.int64)
        self._second = constant(np.append(second, np.int32(_SECOND_BUCKETS)), tf.int32)
        self._numbers = constant(np.append(values, np.int32(0)), tf.int32)

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the numbers `[...]` int32 of `ids` `[...]`."""
        flat = tf.reshape(ids, [-1])
        first = tf.strings.to_hash_bucket_strong(flat, _FIRST_BUCKETS, self._key)
        second = tf.strings.to_hash_bucket_strong(flat, _SECOND_BUCKETS, _SECOND_KEY)
        # Read first: gathering from a variable copies it each time.
        known = tf.convert_to_tensor(self._first)
        # `tf.searchsorted` fails for empty input.
        places = tf.raw_ops.LowerBound(sorted_inputs=known[None], values=first[None])[0]
        is_same = tf.gather(known, places) == first
        is_same &= tf.gather(self._second, places) == tf.cast(second, tf.int32)
        numbers = tf.where(is_same, tf.gather(self._numbers, places), 0)
        return tf.reshape(numbers, tf.shape(ids))


def _sorted(ids: pa.Array | Sequence[str]) -> tuple[tuple[int, int], np.ndarray, np.ndarray]:
    """Returns a key without collisions, the sorted fingerprints, and the order of the ids."""
    for number in range(_TRIES):
        key = (number, 0)
        hashes = _hashed(ids, _FIRST_BUCKETS, key)
        order = np.argsort(hashes, kind="stable")
        hashes = hashes[order]
        twins = np.flatnonzero(hashes[1:] == hashes[:-1])
        if not len(twins):
            return key, hashes, order
    rule = "The ids of a table must be unique."
    cure = "Report this as a bug, with the run's log."
    raise RecsysError("R527", rule, cure, str(ids[int(order[twins[0]])]))


def _hashed(ids: pa.Array | Sequence[str], buckets: int, key: tuple[int, int]) -> np.ndarray:
    """Returns the fingerprints `[n]` int64 of ids, block by block."""
    hashes = np.empty(len(ids), np.int64)
    for start in range(0, len(ids), _BLOCK):
        part = ids[start : start + _BLOCK]
        texts = part.to_pylist() if isinstance(part, pa.Array) else list(part)
        block = tf.strings.to_hash_bucket_strong(tf.constant(texts, tf.string), buckets, key)
        hashes[start : start + len(texts)] = block.numpy()
    return hashes


class VocabularyRows(tf.Module):
    """Rows of ids inside the graph, as `Vocabulary.rows` returns them.

    Args:
        vocabulary: Users or items.
    """

    def __init__(self, vocabulary: Vocabulary) -> None:
        super().__init__(name="vocabulary_rows")
        self._table = IdTable(vocabulary.own_ids.drop_null(), np.flatnonzero(vocabulary.has_id()))
        self._n_hash_rows = vocabulary.first_own_row - 1

    def __call__(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns rows `[...]` int32 of `ids` `[...]` text; 0 for the empty id."""
        rows = self._table.lookup(ids)
        return tf.where(rows > 0, rows, hash_rows(ids, self._n_hash_rows))

    def known(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns which of `ids` `[...]` have a row of their own `[...]` bool."""
        return self._table.lookup(ids) > 0


def places_of(ids: Sequence[str], first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the index `[n]` int64 of each of `ids` `[n]` in a saved table; -1 if missing.

    Args:
        ids: Ids, text.
        first: Sorted 63-bit fingerprints of the table; the key is found by trial.
        second: 31-bit fingerprints of the table.
    """
    places = np.full(len(ids), -1, np.int64)
    again = _hashed(ids, _SECOND_BUCKETS, _SECOND_KEY)
    for number in range(_TRIES):
        hashes = _hashed(ids, _FIRST_BUCKETS, (number, 0))
        found = np.minimum(np.searchsorted(first, hashes), len(first) - 1)
        is_same = (first[found] == hashes) & (second[found] == again)
        places[is_same] = found[is_same]
    return places


def hash_rows(ids: tf.Tensor, n_hash_rows: int) -> tf.Tensor:
    """Returns the row of each id that has no row of its own, as `Vocabulary.rows`, `[...]`.

    Args:
        ids: Ids `[...]`; the empty id has row 0.
        n_hash_rows: Number of hash rows; without any, the row is 0.
    """
    if not n_hash_rows:
        return tf.zeros_like(ids, tf.int32)
    hashed = 1 + tf.strings.to_hash_bucket_fast(ids, n_hash_rows)
    return tf.where(ids == "", 0, tf.cast(hashed, tf.int32))
