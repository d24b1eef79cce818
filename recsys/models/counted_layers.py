"""Layers whose weights are counted from the training data, and not trained."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from recsys.data.catalogue import FeatureBags
from recsys.data.kept_events import KeptEvents
from recsys.data.neighbours import graph_neighbours

_BLOCK = 2**16
"""Bags that are counted at once."""


@keras.saving.register_keras_serializable(package="recsys")
class BagWeights(keras.layers.Layer):
    """Weights of a feature's tokens in the mean of a bag: rare tokens count more.

    The weight of a token is its inverse document frequency (Spärck Jones, "A Statistical
    Interpretation of Term Specificity and Its Application in Retrieval", Journal of Documentation
    1972), in the smooth form of scikit-learn,

        w_t = 1 + ln((1 + n) / (1 + n_t))

    with n items (or users), of which n_t have the token. The vector of a bag is Σ w_t e_t / Σ w_t.
    As weights of the model they are saved, restored and exported with it.

    Args:
        rows: Rows of each feature's table, row 0 (padding) included.
    """

    def __init__(self, rows: Mapping[str, int], **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rows = dict(rows)

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights `[rows]` of each feature, 1."""
        self.of_feature = {
            name: self.add_weight(name=name, shape=(n,), initializer="ones", trainable=False)
            for name, n in self.rows.items()
        }

    def adapt(self, features: Mapping[str, FeatureBags]) -> None:
        """Counts the weights from the bags of each feature."""
        for name, weight in self.of_feature.items():
            weight.assign(inverse_frequencies(features[name].bags, self.rows[name]))

    def of_tokens(self, name: str, tokens: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the weights of tokens `[..., width]` int32 of a feature, 0 for padding."""
        weights = ops.take(ops.convert_to_tensor(self.of_feature[name]), tokens, axis=0)
        return ops.where(tokens > 0, weights, 0.0)


def inverse_frequencies(bags: np.ndarray, rows: int) -> np.ndarray:
    """Returns the weight of each token `[rows]` float32.

    Args:
        bags: Token rows `[n, width]`, 0 is padding; empty bags are not counted.
        rows: Rows of the feature's table.
    """
    n_of_token, n = np.zeros(rows, np.int64), 0
    for start in range(0, len(bags), _BLOCK):
        block = np.sort(bags[start : start + _BLOCK], axis=1)
        is_first = np.diff(block, axis=1, prepend=0) != 0  # Padding is in front.
        n_of_token += np.bincount(block[is_first], minlength=rows)
        n += int(is_first.any(axis=1).sum())
    return (1 + np.log((1 + n) / (1 + n_of_token))).astype(np.float32)


@keras.saving.register_keras_serializable(package="recsys")
class ItemGraph(keras.layers.Layer):
    """Keeps the neighbours of each item, and averages an item with them: LightGCN for items.

    LightGCN (He et al., "LightGCN: Simplifying and Powering Graph Convolution Network for
    Recommendation", SIGIR 2020) has rows e⁰ of users and items, and layers

        e_u^(k+1) = Σ_{i of u} e_i^(k) / √(d_u d_i),    e_i^(k+1) = Σ_{u of i} e_u^(k) / √(d_u d_i)

    whose mean over the layers is the vector. If users have no rows of their own (e_u⁰ = 0),
    a user's vector is a weighted sum of the items of the history, which is layer 1, and an item's

        e_i = (e_i⁰ + Σ_j C_ij e_j⁰) / 2

    for e_i¹ = 0, with C of `recsys.data.neighbours.graph_neighbours`, in which users are summed
    out: a step reads rows of items only. Here a row of C is sampled, its `n` largest entries, and
    scaled to sum 1. The neighbours are counted from the training events; each device holds all.

    Args:
        rows: Item rows, row 0 included.
        n: Neighbours of an item.
    """

    def __init__(self, rows: int, n: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rows, self.n = rows, n

    def build(self, input_shape: Any = None) -> None:
        """Creates the neighbours `[rows, n]`, rows of the item table, and their weights."""
        options: dict[str, Any] = {"shape": (self.rows, self.n), "trainable": False}
        self.neighbours = self.add_weight(
            name="neighbours", initializer="zeros", dtype="int32", **options
        )
        self.shares = self.add_weight(name="shares", initializer="zeros", **options)

    def adapt(self, events: KeptEvents) -> None:
        """Takes the neighbours of the training events."""
        rows, weights = graph_neighbours(events, self.rows, self.n)
        self.neighbours.assign(rows)
        self.shares.assign(weights)

    def bags(self, rows: keras.KerasTensor) -> tuple[keras.KerasTensor, keras.KerasTensor]:
        """Returns the neighbours of items `[b]` int32, and weights, both `[b, n]`."""
        return ops.take(self.neighbours, rows, axis=0), ops.take(self.shares, rows, axis=0)

    @staticmethod
    def averaged(own: keras.KerasTensor, mean: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the mean `[b, dim]` of items' own rows and the means of their neighbours."""
        return (own + mean) / 2
