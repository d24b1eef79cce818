"""Users inside the graph: who is known, their rows, and what they did."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from recsys.bundles.id_table import IdTable, hash_rows
from recsys.bundles.variables import constant
from recsys.data.histories import ServingHistories
from recsys.data.vocabulary import Vocabulary
from recsys.models.saved import TrainedModel


class StoredUsers(tf.Module):
    """The users of the data; each has a number from 1 on, and an unknown one has 0.

    Args:
        saved: The model.
        histories: What every user did.
    """

    def __init__(self, saved: TrainedModel, histories: ServingHistories) -> None:
        super().__init__(name="stored_users")
        self._n_hash_rows = saved.users.first_own_row - 1
        silent, silent_rows = _without_events(saved.users, histories)
        # No list: of many users it would take more memory than all else here.
        ids = pa.concat_arrays([pa.array(histories.ids, silent.type), silent])
        self._table = IdTable(ids, np.arange(1, len(ids) + 1))
        # Place 0 is the unknown user, who did nothing.
        rows = np.concatenate([[0], histories.user_rows, silent_rows])
        self._rows = constant(rows, tf.int32)
        ends = np.full(len(silent), histories.offsets[-1])
        offsets = np.concatenate([[0], histories.offsets, ends])
        self._offsets = constant(offsets, tf.int32 if offsets[-1] < 2**31 else tf.int64)
        self._items = constant(np.append(histories.item_rows, 0), tf.int32)

    def numbers(self, user_id: tf.Tensor) -> tf.Tensor:
        """Returns the number `[b]` int32 of each of `user_id` `[b]`."""
        return self._table.lookup(user_id)

    def rows(self, user: tf.Tensor, user_id: tf.Tensor) -> tf.Tensor:
        """Returns the row `[b]` of each user, by number; an unknown one has that of its id."""
        shared = hash_rows(user_id, self._n_hash_rows)
        return tf.where(user > 0, tf.gather(self._rows, user), shared)

    def newest(self, user: tf.Tensor, length: int) -> tf.Tensor:
        """Returns the newest item rows `[b, length]` of users, padded with 0."""
        start, end = self._slice(user)
        places = end[:, None] - 1 - tf.range(length, dtype=tf.int64)
        is_inside = places >= start[:, None]
        rows = tf.gather(self._items, tf.where(is_inside, places, 0))
        return tf.where(is_inside, rows, 0)

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
    with_events = pa.array(histories.ids, users.own_ids.type)
    is_silent = pc.invert(pc.is_in(users.own_ids, value_set=with_events))
    is_silent = pc.and_(is_silent, users.own_ids.is_valid())
    places = np.flatnonzero(is_silent.to_numpy(zero_copy_only=False))
    return users.own_ids.filter(is_silent), users.first_own_row + places
