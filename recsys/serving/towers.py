"""The trained towers as functions of item and user rows, in TensorFlow."""

from __future__ import annotations

from collections.abc import Iterable

import numpy as np
import tensorflow as tf

from recsys.data.catalogue import FeatureBags
from recsys.data.vocabulary import Vocabulary
from recsys.model.saved import SavedModel
from recsys.model.tower_inputs import trained_rows

Bags = dict[str, tf.Tensor]


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
        self._user_row, self._item_row = _trained(saved.users), _trained(saved.items)
        self._user_bags = _variables(saved.inputs.user_features)
        self._item_bags = _variables(saved.catalogue.features)

    @property
    def variables(self) -> list[tf.Variable]:
        """Everything that the towers read."""
        weights = [variable.value for variable in self._model.variables]
        bags = [*self._user_bags.values(), *self._item_bags.values()]
        return [*weights, self._user_row, self._item_row, *bags]

    def query(self, user_row: tf.Tensor, history: tf.Tensor, bags: Bags) -> tf.Tensor:
        """Returns embeddings `[b, dim]`.

        Args:
            user_row: User rows `[b]`.
            history: Item rows `[b, history]`.
            bags: Token rows `[b, width]` of each feature of the users.
        """
        rows = {
            "user_row": tf.gather(self._user_row, user_row),
            "history": tf.gather(self._item_row, history),
        }
        return self._model.embed_query({**rows, **bags})

    def candidate(self, item_row: tf.Tensor, bags: Bags) -> tf.Tensor:
        """Returns embeddings `[b, dim]` of `item_row` `[b]` and token rows `[b, width]`."""
        return self._model.embed_candidate({"id_row": tf.gather(self._item_row, item_row), **bags})

    def user_bags(self, user_row: tf.Tensor) -> Bags:
        """Returns the token rows that are stored of `user_row` `[b]`."""
        return {name: tf.gather(bag, user_row) for name, bag in self._user_bags.items()}

    def item_bags(self, item_row: tf.Tensor) -> Bags:
        """Returns the token rows that are stored of `item_row` `[b]`."""
        return {name: tf.gather(bag, item_row) for name, bag in self._item_bags.items()}


def _widths(features: Iterable[FeatureBags]) -> dict[str, int]:
    return {feature.name: int(feature.bags.shape[1]) for feature in features}


def _trained(vocabulary: Vocabulary) -> tf.Variable:
    """Returns the row of the table to read for each address."""
    rows = trained_rows(np.arange(vocabulary.n_rows), vocabulary)
    return tf.Variable(rows, trainable=False)


def _variables(features: Iterable[FeatureBags]) -> dict[str, tf.Variable]:
    return {
        feature.name: tf.Variable(np.asarray(feature.bags, np.int32), trainable=False)
        for feature in features
    }
