"""The model's inputs of queries and items inside the graph, from raw ids and raw columns."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from recsys.data.catalogue import FeatureBags, of_history
from recsys.data.store import ServingHistories
from recsys.data.vocabulary import Vocabulary
from recsys.models.inputs import trained_rows
from recsys.savedmodel.inputs import RawFeatures, VocabularyRows
from recsys.savedmodel.variables import constant, variables_of
from recsys.tasks.model_folder import TrainedModel
from recsys.tasks.serving.events import EventReads, ServedEvents
from recsys.tasks.serving.stored_users import StoredUsers

Tensors = dict[str, tf.Tensor]


class QueryInputs(NamedTuple):
    """Inputs of a model for queries.

    Attributes:
        inputs: Inputs by name, without the context.
        has_row: Whether the model has trained a row of the user `[b]` bool.
        has_history: Whether it has trained a row of an item of the history `[b]` bool.
        has_features: Whether the user has features `[b]` bool.
    """

    inputs: Tensors
    has_row: tf.Tensor
    has_history: tf.Tensor
    has_features: tf.Tensor


class ModelRows:
    """The stored features of users and items by row, and the inputs that they are part of.

    Args:
        saved: A model, loaded with Keras on TensorFlow.

    Attributes:
        model: The model.
        config: Config of the model.
        item_bag_tables: Token rows of each item row `[item rows, width]` int32, by feature.
    """

    def __init__(self, saved: TrainedModel) -> None:
        self.model = saved.model
        self.config = saved.model.spec.config
        self._first_own_row = saved.users.first_own_row
        # A model without layers has no inputs for features.
        self._user_features = [feature.name for feature in saved.model.spec.of_side("user")]
        self._user_is_trained = _is_trained(saved.users)
        self._item_is_trained = _is_trained(saved.items)
        self._user_bags = _variables(saved.inputs.user_features)
        self.item_bag_tables = _variables(saved.catalogue.features)

    @property
    def variables(self) -> list[tf.Variable]:
        """All variables of the model and of the features."""
        bags = [*self._user_bags.values(), *self.item_bag_tables.values()]
        trained = [self._user_is_trained, self._item_is_trained]
        return [*variables_of(self.model), *trained, *bags]

    @property
    def of_user_rows(self) -> list[tf.Variable]:
        """The variables with a row for each user row: tables and stored features of users.

        The tables of features have a row for each token, which many users share.
        """
        spec = self.model.spec
        others = {"items", *(feature.name for feature in spec.features)}
        tables = [
            table.embeddings
            for table in self.model.embedding.tables
            if table.rows == spec.user_rows and self.model.rows_of_table(table.name) not in others
        ]
        read = [table for table in tables if isinstance(table, tf.Variable)]
        return [*read, self._user_is_trained, *self._user_bags.values()]

    def query(
        self, user_row: tf.Tensor, history: tf.Tensor, bags: Tensors, events: Tensors
    ) -> QueryInputs:
        """Returns the inputs of queries.

        Args:
            user_row: User rows `[b]`.
            history: Item rows `[b, history]`.
            bags: Token rows `[b, width]` of each feature of the users.
            events: Features of the query and of the events of its history, by input of the model.
        """
        rows = {
            "user_row": _or_0(self._user_is_trained, user_row),
            "history": _or_0(self._item_is_trained, history),
        }
        # An untrained user reads row 0; one without its own row reads a lower, shared row.
        has_row = (rows["user_row"] >= self._first_own_row) & self.config.user_id
        tokens = [tf.reduce_any(bags[name] != 0, axis=1) for name in self._user_features]
        of_items = self.item_bags(rows["history"]) if self.config.history_features else {}
        of_items = {of_history(name): tokens for name, tokens in of_items.items()}
        return QueryInputs(
            inputs={**rows, **events, **bags, **of_items},
            has_row=has_row,
            has_history=tf.reduce_any(rows["history"] > 0, axis=1),
            has_features=tf.reduce_any(tf.stack([tf.zeros_like(has_row), *tokens]), axis=0),
        )

    def candidate(self, item_row: tf.Tensor, bags: Tensors) -> Tensors:
        """Returns the inputs of `item_row` `[b]` with token rows `[b, width]`."""
        return {"id_row": _or_0(self._item_is_trained, item_row), **bags}

    def user_bags(self, user_row: tf.Tensor) -> Tensors:
        """Returns the stored token rows of `user_row` `[b]`."""
        return {name: tf.gather(bag, user_row) for name, bag in self._user_bags.items()}

    def item_bags(self, item_row: tf.Tensor) -> Tensors:
        """Returns the stored token rows of `item_row` `[b]`."""
        # Converted once, since gathering from a variable copies it each time, and filters read
        # all of them.
        read = {name: tf.convert_to_tensor(bag) for name, bag in self.item_bag_tables.items()}
        return {name: tf.gather(bag, item_row) for name, bag in read.items()}


class Queries(tf.Module):
    """Makes the inputs of queries from raw ids and raw columns.

    Args:
        saved: The model.
        histories: The events of every user.
        raw_users: Maps raw columns of users to token rows; None without features.
        time_column: Raw column of the times of events.

    Attributes:
        reads: What the model reads of events.
        event_columns: Raw columns of events.
        rows: The stored features by row.
        users: The users of the data.
        items: Rows of item ids.
    """

    def __init__(
        self,
        saved: TrainedModel,
        histories: ServingHistories,
        raw_users: RawFeatures | None,
        time_column: str,
    ) -> None:
        super().__init__(name="queries")
        self.reads, self.rows = EventReads.of(saved), ModelRows(saved)
        self.users, self.items = StoredUsers(saved.users, histories), VocabularyRows(saved.items)
        self._raw_users, self._length = raw_users, saved.model.spec.config.history
        self._events = ServedEvents(self.reads, self._length, time_column)
        self.event_columns = self._events.columns

    @property
    def columns(self) -> tuple[str, ...]:
        """Names of the optional texts `[b, any]` of a query, besides user and history."""
        of_users = self._raw_users.columns if self._raw_users else ()
        return (*self._events.columns.inputs, *of_users)

    def inputs(
        self,
        user: tf.Tensor,
        user_id: tf.Tensor,
        history: tf.Tensor,
        columns: Tensors,
        n_values: int | tf.Tensor = 1,
    ) -> tuple[QueryInputs, Tensors]:
        """Returns the inputs of queries, and their context `[b, n_values, …]` by feature.

        Args:
            user: Numbers of the users in `users` `[b]`.
            user_id: Ids of the users `[b]` text.
            history: Ids of the items of histories `[b, any]` text, the newest first.
            columns: Texts `[b, any]` by name in `columns`.
            n_values: Number of values of the context.
        """
        row = self.users.rows(user, user_id)
        has_history = tf.reduce_any(history != "", axis=1)
        newest = self.users.newest(user, self._length)
        rows = tf.where(has_history[:, None], self.given_rows(history), newest)
        texts = {name: columns[name] for name in self._events.columns.inputs}
        raw = {name: column for name, column in columns.items() if name not in texts}
        events, context = self._events.inputs(texts, self.users, user, has_history, n_values)
        bags = or_stored(self._raw_users, user_id, raw, self.rows.user_bags(row))
        return self.rows.query(row, rows, bags, events), context

    def given_rows(self, history: tf.Tensor) -> tf.Tensor:
        """Returns the item rows `[b, length]` of given histories, padded with 0."""
        rows = self.items(history[:, : self._length])  # The rest is never read.
        missing = self._length - tf.shape(rows)[1]
        # Layers need the static shape.
        return tf.ensure_shape(tf.pad(rows, [[0, 0], [0, missing]]), [None, self._length])


def or_stored(
    features: RawFeatures | None, ids: tf.Tensor, raw: Mapping[str, tf.Tensor], stored: Tensors
) -> Tensors:
    """Returns the features of raw columns; the stored ones if none are given."""
    return features.or_stored(ids, raw, stored) if features else stored


def traced(function: Any, inputs: Mapping[str, tf.TensorSpec]) -> Any:
    """Returns a concrete function of these inputs."""
    return tf.function(function, autograph=False).get_concrete_function(**inputs)


def _is_trained(vocabulary: Vocabulary) -> tf.Variable:
    """Returns which rows are trained `[rows]` bool; others read row 0 of the table."""
    rows = np.arange(vocabulary.n_rows)
    return constant(trained_rows(rows, vocabulary) == rows, tf.bool)


def _or_0(is_trained: tf.Variable, rows: tf.Tensor) -> tf.Tensor:
    """Returns the table rows to read for rows `[...]`: 0 for untrained ones."""
    return tf.where(tf.gather(is_trained, rows), rows, 0)


def _variables(features: Iterable[FeatureBags]) -> dict[str, tf.Variable]:
    dtypes = {False: tf.int32, True: tf.float32}
    return {f.name: constant(f.bags, dtypes[f.floats > 0]) for f in features}
