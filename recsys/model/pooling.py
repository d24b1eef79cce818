"""From the items of a history to one vector: weighted by their places, or by attention.

A history `[batch, length]` holds rows of the item table, the newest first; 0 is padding,
or an item that isn't known, and counts nothing wherever it stands. A history without an
item becomes zeros, with finite gradients.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.model.linear import Linear


@keras.saving.register_keras_serializable(package="recsys")
class PlaceWeights(keras.layers.Layer):
    """Weighs the entries of a history by their place in it, the newest first.

    Args:
        length: Entries of a history; each place has a weight that is learned.
    """

    def __init__(self, length: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.length = length

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights of the places `[length]`, all of them equal at first."""
        self.place = self.add_weight(name="place", shape=(self.length,), initializer="zeros")

    def call(self, rows: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the weights `[batch, length]` of `rows`; 0, and not in the bag, for row 0."""
        return ops.cast(rows > 0, "float32") * ops.softplus(self.place)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "length": self.length}


@keras.saving.register_keras_serializable(package="recsys")
class AttentionPooling(keras.layers.Layer):
    """Weighs the items of a history by what they are and by their place.

    The score of item h_l at place l is `v · tanh(W h_l + p_l)`; the weights are the
    softmax of the scores (Bahdanau et al., ICLR 2015, by way of NAIS: He et al., TKDE
    2018, and DIN: Zhou et al., KDD 2018). There the candidate is in the score; here it
    can't be, since a query is embedded before its candidates are known.

    Args:
        length: Items of a history.
        dim: Width of an item, and of W's output [floats].
        seed: Seed of the initial weights.
        training_dtype: What training computes the scores in.
    """

    def __init__(
        self, length: int, dim: int, seed: int = 0, training_dtype: str = "float32", **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.length, self.dim, self.seed = length, dim, seed
        self.training_dtype = training_dtype
        self.inner = Linear(dim, use_bias=False, seed=seed, name="inner")
        self.score = Linear(1, use_bias=False, seed=seed + 1, name="score")

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights; those of the places `[length, dim]` are 0 at first."""
        self.inner.build((None, self.dim))
        self.place = self.add_weight(
            name="place", shape=(self.length, self.dim), initializer="zeros"
        )
        self.score.build((None, self.dim))

    def call(
        self, items: keras.KerasTensor, rows: keras.KerasTensor, training: bool = False
    ) -> keras.KerasTensor:
        """Returns the weighted sums `[batch, dim]` float32.

        Args:
            items: The items' embeddings `[batch, length, dim]`.
            rows: Their rows `[batch, length]`; 0 for none.
            training: Whether `training_dtype` counts.
        """
        x = ops.cast(items, self.training_dtype if training else "float32")
        inner = ops.tanh(self.inner(x) + ops.cast(self.place, x.dtype))
        weights = masked_softmax(ops.squeeze(self.score(inner), -1), rows > 0)
        return ops.sum(weights[..., None] * items, axis=1)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        names = ("length", "dim", "seed", "training_dtype")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def masked_softmax(scores: keras.KerasTensor, mask: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the softmax float32 over the last axis, of the entries that `mask` lets through.

    Zeros, with gradients 0, where it lets none through.
    """
    scores = ops.where(mask, ops.cast(scores, "float32"), -1e9)
    top = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
    powers = ops.exp(scores - top) * ops.cast(mask, "float32")
    total = ops.sum(powers, axis=-1, keepdims=True)
    return powers / ops.where(total > 0, total, 1.0)
