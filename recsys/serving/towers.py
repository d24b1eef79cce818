"""The trained towers as functions of item and user rows, in TensorFlow."""

from __future__ import annotations

import numpy as np
import tensorflow as tf

from recsys.model.saved import SavedModel, id_rows


class RowTowers:
    """Reads a model, its catalogue, and which items have a trained row.

    Args:
        saved: A model, loaded with Keras on TensorFlow.
    """

    def __init__(self, saved: SavedModel) -> None:
        self._model = saved.model
        self.history: int = saved.model.spec.config.history
        self.features = tuple(feature.name for feature in saved.catalogue.features)
        trained = id_rows(np.arange(saved.items.n_rows), saved.items)
        self._id_row = tf.Variable(trained, trainable=False)
        self._bags = {
            feature.name: tf.Variable(np.asarray(feature.bags, np.int32), trainable=False)
            for feature in saved.catalogue.features
        }

    @property
    def variables(self) -> list[tf.Variable]:
        """Everything that the towers read."""
        weights = [variable.value for variable in self._model.variables]
        return [*weights, self._id_row, *self._bags.values()]

    def query(self, user_row: tf.Tensor, history: tf.Tensor) -> tf.Tensor:
        """Returns embeddings `[b, dim]` of `user_row` `[b]` and item rows `[b, history]`."""
        rows = tf.gather(self._id_row, history)
        return self._model.embed_query({"user_row": user_row, "history": rows})

    def candidate(self, item_row: tf.Tensor, bags: dict[str, tf.Tensor]) -> tf.Tensor:
        """Returns embeddings `[b, dim]` of `item_row` `[b]` and token rows `[b, width]`."""
        return self._model.embed_candidate({"id_row": tf.gather(self._id_row, item_row), **bags})

    def stored_bags(self, item_row: tf.Tensor) -> dict[str, tf.Tensor]:
        """Returns the token rows that the catalogue holds of `item_row` `[b]`."""
        return {name: tf.gather(bag, item_row) for name, bag in self._bags.items()}
