"""The users in a SavedModel: their ids, rows and histories, and how to remove them."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf
from tensorflow.core.protobuf.trackable_object_graph_pb2 import TrackableObjectGraph

from recsys.data.statistics import TOKEN_BITS
from recsys.data.store import ServingHistories
from recsys.data.vocabulary import Vocabulary
from recsys.savedmodel.inputs import IdTable, hash_rows, places_of
from recsys.savedmodel.variables import constant

Rows = dict[str, dict[int, Any]]
"""New values of rows, by the key of a variable and the row."""


class StoredUsers(tf.Module):
    """The users of the data, numbered from 1; unknown users have the number 0.

    Args:
        users: Vocabulary of the users.
        histories: The events of every user.
    """

    def __init__(self, users: Vocabulary, histories: ServingHistories) -> None:
        super().__init__(name="stored_users")
        self._n_hash_rows = users.first_own_row - 1
        silent, silent_rows = _without_events(users, histories)
        ids = pa.concat_arrays([histories.ids, silent])
        self._table = IdTable(ids, np.arange(1, len(ids) + 1))
        # Index 0 is the unknown user, without events.
        rows = np.concatenate([[0], histories.user_rows, silent_rows])
        self._rows = constant(rows, tf.int32)
        ends = np.full(len(silent), histories.offsets[-1])
        offsets = np.concatenate([[0], histories.offsets, ends])
        self._offsets = constant(offsets, tf.int32 if offsets[-1] < 2**31 else tf.int64)
        self._items = constant(np.append(histories.item_rows, 0), tf.int32)
        if histories.is_positive is not None:
            self._masks = constant(np.append(histories.is_positive, False), tf.bool)
        if histories.times is not None:
            # The last entry is the newest time of all, the default query time.
            newest = histories.times.max() if len(histories.times) else 0
            self._times = constant(np.append(histories.times, newest), tf.int64)
        self._features = {
            name: constant(
                np.append(column, column[:0].sum(axis=0, keepdims=True), axis=0),
                tf.as_dtype(column.dtype),
            )
            for name, column in histories.features.items()
        }

    def numbers(self, user_id: tf.Tensor) -> tf.Tensor:
        """Returns the number `[b]` int32 of each of `user_id` `[b]`."""
        return self._table.lookup(user_id)

    def rows(self, user: tf.Tensor, user_id: tf.Tensor) -> tf.Tensor:
        """Returns the row `[b]` of each user by number; unknown users have the row of their id."""
        shared = hash_rows(user_id, self._n_hash_rows)
        return tf.where(user > 0, tf.gather(self._rows, user), shared)

    def newest(self, user: tf.Tensor, length: int) -> tf.Tensor:
        """Returns the newest item rows `[b, length]` of users, padded with 0."""
        places, is_inside = self._newest_places(user, length)
        return tf.where(is_inside, tf.gather(self._items, places), 0)

    def times(self, user: tf.Tensor, length: int) -> tf.Tensor:
        """Returns the times of the newest events `[b, length]` int64; the lowest is padding."""
        places, is_inside = self._newest_places(user, length)
        return tf.where(is_inside, tf.gather(self._times, places), tf.int64.min)

    def feature(self, name: str, user: tf.Tensor, length: int) -> tf.Tensor:
        """Returns a feature of the events that `newest` returns `[b, length, …]`.

        Token rows are int32, and numbers float32; padding is 0.
        """
        places, is_inside = self._newest_places(user, length)
        found = tf.gather(self._features[name], places)
        found = found if found.dtype == tf.float32 else tf.cast(found, tf.int32)
        found = tf.where(is_inside[:, :, None], found, tf.zeros_like(found))
        return tf.ensure_shape(found, [None, length, self._features[name].shape[1]])

    def _newest_places(self, user: tf.Tensor, length: int) -> tuple[tf.Tensor, tf.Tensor]:
        """Returns the indices of the newest events `[b, length]`, and which of them exist."""
        start, end = self._slice(user)
        places = end[:, None] - 1 - tf.range(length, dtype=tf.int64)
        is_inside = places >= start[:, None]
        return tf.where(is_inside, places, 0), is_inside

    def history(self, user: tf.Tensor) -> tf.RaggedTensor:
        """Returns the item rows of users `[b, any]`, the oldest first."""
        places = tf.ragged.range(*self._slice(user))
        # Gathers the values, since a ragged gather would copy the whole variable.
        return places.with_values(tf.gather(self._items, places.values))

    def seen(self, user: tf.Tensor) -> tf.RaggedTensor:
        """Returns the item rows of `history`, but 0 for events that are no positives."""
        rows = self.history(user)
        if not hasattr(self, "_masks"):
            return rows
        places = tf.ragged.range(*self._slice(user))
        masks = tf.gather(self._masks, places.values)
        return rows.with_values(tf.where(masks, rows.values, tf.zeros_like(rows.values)))

    def _slice(self, user: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
        bounds = tf.gather(self._offsets, user), tf.gather(self._offsets, user + 1)
        return tf.cast(bounds[0], tf.int64), tf.cast(bounds[1], tf.int64)


def _without_events(users: Vocabulary, histories: ServingHistories) -> tuple[pa.Array, np.ndarray]:
    """Returns ids and rows of users with a row, because of their features, but without events."""
    is_silent = pc.invert(pc.is_in(users.own_ids, value_set=histories.ids))
    is_silent = pc.and_(is_silent, users.own_ids.is_valid())
    places = np.flatnonzero(is_silent.to_numpy(zero_copy_only=False))
    return users.own_ids.filter(is_silent), users.first_own_row + places


def _following(gone: Sequence[int] | np.ndarray, n: int) -> dict[int, int]:
    """Returns which of `n` sorted entries replaces each of those that are removed: the next one.

    Searches find the first of equal entries.
    """
    left = np.setdiff1d(np.arange(n), gone)
    return {int(place): int(left[np.searchsorted(left, place)]) for place in gone}


class StoredIds:
    """The numbers of users in a bundle's SavedModel, or in one of its parts.

    Args:
        bundle: The bundle.
        ids: Users to look up.
        part: Attribute of the part; empty: the whole module.

    Attributes:
        is_there: Whether the part has users; a SavedModel of a plugin's task may have none.
        numbers: Numbers of the `ids` that the part knows.
    """

    def __init__(self, bundle: Path, ids: Sequence[str], part: str = "") -> None:
        self._reader = tf.train.load_checkpoint(str(bundle / "variables" / "variables"))
        graph = self._reader.get_tensor("_CHECKPOINTABLE_OBJECT_GRAPH")
        self._nodes = TrackableObjectGraph.FromString(graph).nodes
        self._root = self._nodes[0]
        self.parts = [child.local_name for child in self._root.children]
        self._root = self._node(part)
        self.is_there, self.numbers = "_users" in self._children(""), dict[str, int]()
        if not self.is_there:
            return
        first, second, numbers = self._table = [
            self._get(f"_users/_table/{name}") for name in ("_first", "_second", "_numbers")
        ]
        places = places_of(ids, first, second).tolist()
        self._places = {id_: p for id_, p in zip(ids, places, strict=True) if p >= 0}
        self.numbers = {id_: int(numbers[place]) for id_, place in self._places.items()}

    @classmethod
    def of_parts(cls, bundle: Path, ids: Sequence[str]) -> list[StoredIds]:
        """Returns the users of the SavedModel, or of each of its parts that has users."""
        whole = cls(bundle, ids)
        parts = [whole] if whole.is_there else [cls(bundle, ids, part) for part in whole.parts]
        return [part for part in parts if part.is_there]

    def overwritten(self, rows: Sequence[int]) -> Rows:
        """Returns the new values of the variables' rows after the users are removed.

        Args:
            rows: The users' own rows.
        """
        changes: Rows = {}
        following = _following([*self._places.values()], len(self._table[0]))
        for name, values in zip(("_first", "_second", "_numbers"), self._table, strict=True):
            key = self.key(f"_users/_table/{name}")
            changes[key] = {place: values[other] for place, other in following.items()}
        changes[self.key("_users/_rows")] = dict.fromkeys(self.numbers.values(), 0)
        offsets = self._get("_users/_offsets")
        events = [e for n in self.numbers.values() for e in range(offsets[n], offsets[n + 1])]
        changes[self.key("_users/_items")] = dict.fromkeys(events, 0)
        # An earlier version stored facts of the events, with -1 for unknown.
        for kind, nothing in (("_features", 0), ("_facts", -1)):
            for name in self._children(f"_users/{kind}"):
                changes[self.key(f"_users/{kind}/{name}")] = dict.fromkeys(events, nothing)
        if "_times" in self._children("_users"):
            times = self._get("_users/_times")
            newest = np.delete(times[:-1], events).max(initial=0)
            last = {len(times) - 1: newest}
            changes[self.key("_users/_times")] = dict.fromkeys(events, 0) | last
        for name in self._children("_of_user_rows"):
            changes[self.key(f"_of_user_rows/{name}")] = dict.fromkeys(rows, 0)
        return changes | self._without_states(rows)

    def _without_states(self, rows: Sequence[int]) -> Rows:
        """Returns the changes of the states in a `StoredStatistics`, if there is one."""
        changes: Rows = {}
        for name in self._children("_statistics/_user_keys"):
            paths = [f"_statistics/_user_{kind}/{name}" for kind in ("keys", "values")]
            keys, values = map(self._get, paths)
            gone = np.flatnonzero(np.isin(keys >> TOKEN_BITS, rows))
            following = _following(gone, len(keys))
            for path, column in zip(paths, (keys, values), strict=True):
                changes[self.key(path)] = {at: column[other] for at, other in following.items()}
        return changes

    def key(self, path: str) -> str:
        """Returns the checkpoint key of the variable at a path of attributes."""
        return str(self._node(path).attributes[0].checkpoint_key)

    def _get(self, path: str) -> Any:
        return self._reader.get_tensor(self.key(path))

    def _children(self, path: str) -> list[str]:
        parent, _, name = path.rpartition("/")
        if path and name not in self._children(parent):
            return []
        return [child.local_name for child in self._node(path).children]

    def _node(self, path: str) -> Any:
        node = self._root
        for name in filter(None, path.split("/")):
            node = self._nodes[{c.local_name: c.node_id for c in node.children}[name]]
        return node
