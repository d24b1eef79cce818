"""Lookup of ids inside the graph, and of the rows that unknown ids share.

The graph does not hold ids: as a constant they could exceed the 2 GB of a protobuf, and a hash
table of strings takes minutes and gigabytes to load. It holds two fingerprints of each id in
variables, 16 bytes per id.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from recsys.bundles.raw_features import first_of, seconds
from recsys.bundles.variables import constant
from recsys.data.history_facts import AGES, OLDEST, UNKNOWN
from recsys.data.store import ServingHistories
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.tasks.model_folder import TrainedModel

_FIRST_BUCKETS, _SECOND_BUCKETS = 2**63 - 1, 2**31 - 1
_SECOND_KEY = (0x9AE16A3B2F90404F >> 1, 0xC3A5C85C97CB3127 >> 1)
_TRIES = 8
_BLOCK = 1 << 16


class IdTable(tf.Module):
    """A table from ids to numbers; unknown ids have the number 0.

    An id is found by a first fingerprint of 63 bits, by binary search, and verified by a
    second one of 31 bits; both are SipHashes (Aumasson and Bernstein, "SipHash: a fast
    short-input PRF", 2012) under different keys. An id that the table doesn't hold is
    taken for one of its `n` with a probability of `n / 2^94`: below 2^-60 for any `n` below
    2^34. Ids that the table holds never share a first fingerprint: that is checked as it
    is built, and cured by another key.

    Args:
        ids: Ids `[n]`, text, unique.
        numbers: The number of each of them `[n]`, from 1 on.

    Raises:
        RecsysError: An id is there twice (R527).
    """

    def __init__(self, ids: pa.Array | Sequence[str], numbers: np.ndarray) -> None:
        super().__init__(name="id_table")
        self._key, first, order = _sorted(ids)
        second = _hashed(ids, _SECOND_BUCKETS, _SECOND_KEY).astype(np.int32)[order]
        values = np.asarray(numbers, np.int32)[order]
        # Behind all others, so that each search ends inside; no id has its fingerprint.
        self._first = constant(np.append(first, np.int64(_FIRST_BUCKETS)), tf.int64)
        self._second = constant(np.append(second, np.int32(_SECOND_BUCKETS)), tf.int32)
        self._numbers = constant(np.append(values, np.int32(0)), tf.int32)

    def lookup(self, ids: tf.Tensor) -> tf.Tensor:
        """Returns the numbers `[...]` int32 of `ids` `[...]`."""
        flat = tf.reshape(ids, [-1])
        first = tf.strings.to_hash_bucket_strong(flat, _FIRST_BUCKETS, self._key)
        second = tf.strings.to_hash_bucket_strong(flat, _SECOND_BUCKETS, _SECOND_KEY)
        # Read, not gathered from: a variable that is gathered from is copied at every read.
        known = tf.convert_to_tensor(self._first)
        # `tf.searchsorted` can't search for nothing.
        places = tf.raw_ops.LowerBound(sorted_inputs=known[None], values=first[None])[0]
        is_same = tf.gather(known, places) == first
        is_same &= tf.gather(self._second, places) == tf.cast(second, tf.int32)
        numbers = tf.where(is_same, tf.gather(self._numbers, places), 0)
        return tf.reshape(numbers, tf.shape(ids))


def _sorted(ids: pa.Array | Sequence[str]) -> tuple[tuple[int, int], np.ndarray, np.ndarray]:
    """Returns a key without twins, the first fingerprints under it in order, and that order."""
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


def places_of(ids: Sequence[str], first: np.ndarray, second: np.ndarray) -> np.ndarray:
    """Returns the place `[n]` int64 of each of `ids` `[n]` in a saved table; -1 for none.

    Args:
        ids: Ids, text.
        first: First fingerprints of the table, in order, under whatever key it has.
        second: Second fingerprints.
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
    """Returns the row that each of `ids` has without one of its own, as `Vocabulary.rows`.

    Args:
        ids: Ids `[...]`; the empty one stands for no id, and has row 0.
        n_hash_rows: Rows that such ids share; 0: they have row 0.
    """
    if not n_hash_rows:
        return tf.zeros_like(ids, tf.int32)
    hashed = 1 + tf.strings.to_hash_bucket_fast(ids, n_hash_rows)
    return tf.where(ids == "", 0, tf.cast(hashed, tf.int32))


class StoredUsers(tf.Module):
    """The users of the data, numbered from 1; unknown users have the number 0.

    Args:
        saved: The model.
        histories: What every user did.
    """

    def __init__(self, saved: TrainedModel, histories: ServingHistories) -> None:
        super().__init__(name="stored_users")
        self._n_hash_rows = saved.users.first_own_row - 1
        silent, silent_rows = _without_events(saved.users, histories)
        ids = pa.concat_arrays([histories.ids, silent])
        self._table = IdTable(ids, np.arange(1, len(ids) + 1))
        # Place 0 is the unknown user, who did nothing.
        rows = np.concatenate([[0], histories.user_rows, silent_rows])
        self._rows = constant(rows, tf.int32)
        ends = np.full(len(silent), histories.offsets[-1])
        offsets = np.concatenate([[0], histories.offsets, ends])
        self._offsets = constant(offsets, tf.int32 if offsets[-1] < 2**31 else tf.int64)
        self._items = constant(np.append(histories.item_rows, 0), tf.int32)
        if histories.times is not None:
            # At the end the newest of all: the default time of a query.
            newest = histories.times.max() if len(histories.times) else 0
            self._times = constant(np.append(histories.times, newest), tf.int64)
        self._facts = {
            name: constant(np.append(fact, UNKNOWN), tf.int32)
            for name, fact in histories.facts.items()
        }

    def numbers(self, user_id: tf.Tensor) -> tf.Tensor:
        """Returns the number `[b]` int32 of each of `user_id` `[b]`."""
        return self._table.lookup(user_id)

    def rows(self, user: tf.Tensor, user_id: tf.Tensor) -> tf.Tensor:
        """Returns the row `[b]` of each user, by number; an unknown one has that of its id."""
        shared = hash_rows(user_id, self._n_hash_rows)
        return tf.where(user > 0, tf.gather(self._rows, user), shared)

    def newest(self, user: tf.Tensor, length: int) -> tf.Tensor:
        """Returns the newest item rows `[b, length]` of users, padded with 0."""
        places, is_inside = self._newest_places(user, length)
        return tf.where(is_inside, tf.gather(self._items, places), 0)

    def fact(self, name: str, user: tf.Tensor, now: tf.Tensor | None, length: int) -> tf.Tensor:
        """Returns a fact of the events that `newest` returns `[b, length]` int32.

        Args:
            name: The fact, of `recsys.data.history_facts`.
            user: Numbers of users `[b]`.
            now: Texts `[b, any]`, of which the first is the moment from which ages count back;
                empty: the newest event.
            length: Items of a user.
        """
        places, is_inside = self._newest_places(user, length)
        if name == AGES and now is not None:
            moment = seconds(first_of(now))
            newest = tf.gather(self._times, tf.size(self._times) - 1)
            moment = tf.where(moment == tf.int64.min, newest, moment)[:, None]
            age = moment - tf.gather(self._times, places)
            fact = tf.cast(tf.clip_by_value(age, 0, OLDEST), tf.int32)
        else:
            fact = tf.gather(self._facts[name], places)
        return tf.where(is_inside, fact, UNKNOWN)

    def _newest_places(self, user: tf.Tensor, length: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the places of the newest events `[b, length]`, and which of them are there."""
        start, end = self._slice(user)
        places = end[:, None] - 1 - tf.range(length, dtype=tf.int64)
        is_inside = places >= start[:, None]
        return tf.where(is_inside, places, 0), is_inside

    def history(self, user: tf.Tensor) -> tf.RaggedTensor:
        """Returns the item rows of users `[b, any]`, the oldest first."""
        places = tf.ragged.range(*self._slice(user))
        # By its values: gathered ragged, the variable is read whole, and copied for that.
        return places.with_values(tf.gather(self._items, places.values))

    def _slice(self, user: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        bounds = tf.gather(self._offsets, user), tf.gather(self._offsets, user + 1)
        return tf.cast(bounds[0], tf.int64), tf.cast(bounds[1], tf.int64)


def _without_events(users: Vocabulary, histories: ServingHistories) -> tuple[pa.Array, np.ndarray]:
    """Returns ids and rows of the users who have a row, for their features, and did nothing."""
    is_silent = pc.invert(pc.is_in(users.own_ids, value_set=histories.ids))
    is_silent = pc.and_(is_silent, users.own_ids.is_valid())
    places = np.flatnonzero(is_silent.to_numpy(zero_copy_only=False))
    return users.own_ids.filter(is_silent), users.first_own_row + places
