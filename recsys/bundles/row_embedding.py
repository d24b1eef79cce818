"""Users and items by row inside the graph: what is stored of them, and how they are embedded."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import tensorflow as tf

from recsys.bundles.id_table import IdTable, hash_rows
from recsys.bundles.signatures import FEATURES, HISTORY, POPULARITY, USER
from recsys.bundles.variables import constant
from recsys.data.catalogue import FeatureBags
from recsys.data.histories import ServingHistories
from recsys.data.vocabulary import Vocabulary
from recsys.models.inputs import trained_rows
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


Bags = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Query:
    """Embedded queries.

    Attributes:
        embedding: `[b, dim]` float32.
        source: What each was made of `[b]` string, one of `recsys.bundles.signatures.SOURCES`.
    """

    embedding: tf.Tensor
    source: tf.Tensor


class RowEmbedder:
    """Reads a model, what is stored of users and items, and which of them have a trained row.

    Args:
        saved: A model, loaded with Keras on TensorFlow.
    """

    def __init__(self, saved: TrainedModel) -> None:
        self._model = saved.model
        self.history: int = saved.model.spec.config.history
        self.user_widths = _widths(saved.inputs.user_features)
        self.item_widths = _widths(saved.catalogue.features)
        self._first_own_row = saved.users.first_own_row
        self._reads_user_row = saved.model.spec.config.user_id
        # A model without layers reads none.
        self._user_features = [feature.name for feature in saved.model.spec.of_side("user")]
        self._user_is_trained = _is_trained(saved.users)
        self._item_is_trained = _is_trained(saved.items)
        self._user_bags = _variables(saved.inputs.user_features)
        self._item_bags = _variables(saved.catalogue.features)

    @property
    def variables(self) -> list[tf.Variable]:
        """Everything that the towers read."""
        weights = [variable.value for variable in self._model.variables]
        # Keras counts none that `Table.read_from` was given.
        tables = [table.embeddings for table in self._model.embedding.tables]
        read_tables = [table for table in tables if isinstance(table, tf.Variable)]
        bags = [*self._user_bags.values(), *self._item_bags.values()]
        return [*weights, *read_tables, self._user_is_trained, self._item_is_trained, *bags]

    @property
    def item_bag_tables(self) -> dict[str, tf.Variable]:
        """Token rows of each item row `[item rows, width]` int32, by feature."""
        return self._item_bags

    def query(self, user_row: tf.Tensor, history: tf.Tensor, bags: Bags) -> Query:
        """Embeds queries.

        Args:
            user_row: User rows `[b]`.
            history: Item rows `[b, history]`.
            bags: Token rows `[b, width]` of each feature of the users.
        """
        rows = {
            "user_row": _or_0(self._user_is_trained, user_row),
            "history": _or_0(self._item_is_trained, history),
        }
        # An untrained user reads row 0; one without a row of its own shares a smaller row.
        has_row = (rows["user_row"] >= self._first_own_row) & self._reads_user_row
        tokens = [tf.reduce_any(bags[name] > 0, axis=1) for name in self._user_features]
        return Query(
            embedding=self._model.embed_query({**rows, **bags}),
            source=_source(
                has_row,
                tf.reduce_any(rows["history"] > 0, axis=1),
                tf.reduce_any(tf.stack([tf.zeros_like(has_row), *tokens]), axis=0),
            ),
        )

    def candidate(self, item_row: tf.Tensor, bags: Bags) -> tf.Tensor:
        """Returns embeddings `[b, dim]` of `item_row` `[b]` and token rows `[b, width]`."""
        return self._model.embed_candidate(
            {"id_row": _or_0(self._item_is_trained, item_row), **bags}
        )

    def user_bags(self, user_row: tf.Tensor) -> Bags:
        """Returns the token rows that are stored of `user_row` `[b]`."""
        return {name: tf.gather(bag, user_row) for name, bag in self._user_bags.items()}

    def item_bags(self, item_row: tf.Tensor) -> Bags:
        """Returns the token rows that are stored of `item_row` `[b]`."""
        # Read, not gathered from: a variable that is gathered from is copied at every read,
        # and filters read these whole.
        read = {name: tf.convert_to_tensor(bag) for name, bag in self._item_bags.items()}
        return {name: tf.gather(bag, item_row) for name, bag in read.items()}


def _widths(features: Iterable[FeatureBags]) -> dict[str, int]:
    return {feature.name: int(feature.bags.shape[1]) for feature in features}


def _is_trained(vocabulary: Vocabulary) -> tf.Variable:
    """Returns which addresses read their own row of the table `[rows]` bool; others read 0."""
    rows = np.arange(vocabulary.n_rows)
    return constant(trained_rows(rows, vocabulary) == rows, tf.bool)


def _or_0(is_trained: tf.Variable, rows: tf.Tensor) -> tf.Tensor:
    """Returns the rows of the table to read for addresses `[...]`."""
    return tf.where(tf.gather(is_trained, rows), rows, 0)


def _variables(features: Iterable[FeatureBags]) -> dict[str, tf.Variable]:
    return {feature.name: constant(feature.bags, tf.int32) for feature in features}


def _source(has_row: tf.Tensor, has_history: tf.Tensor, has_features: tf.Tensor) -> tf.Tensor:
    """Returns the strongest of `SOURCES` for each query `[b]`, from what it has `[b]` bool."""
    weaker = tf.where(has_features, FEATURES, POPULARITY)
    return tf.where(has_row, USER, tf.where(has_history, HISTORY, weaker))
