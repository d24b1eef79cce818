"""The trained towers as functions of item and user rows, in TensorFlow."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from recsys.data.catalogue import FeatureBags
from recsys.data.vocabulary import Vocabulary
from recsys.model.saved import SavedModel
from recsys.model.tower_inputs import trained_rows
from recsys.serving.constants import constant
from recsys.serving.sources import FEATURES, HISTORY, POPULARITY, USER

Bags = dict[str, tf.Tensor]


@dataclasses.dataclass(frozen=True)
class Query:
    """Embedded queries.

    Attributes:
        embedding: `[b, dim]` float32.
        source: What each was made of `[b]` string, one of `recsys.serving.sources.SOURCES`.
    """

    embedding: tf.Tensor
    source: tf.Tensor


class RowTowers:
    """Reads a model, what is stored of users and items, and which of them have a trained row.

    Args:
        saved: A model, loaded with Keras on TensorFlow.
    """

    def __init__(self, saved: SavedModel) -> None:
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
        given = [table for table in tables if isinstance(table, tf.Variable)]
        bags = [*self._user_bags.values(), *self._item_bags.values()]
        return [*weights, *given, self._user_is_trained, self._item_is_trained, *bags]

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
        # An untrained user reads row 0; who has no row of its own shares a smaller one.
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
