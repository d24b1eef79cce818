"""Encoders of a history: weights of positions, attention, self-attention, or none.

Self-attention: Kang and McAuley, "Self-Attentive Sequential Recommendation", ICDM 2018; its
layers are normalised before each part (pre-norm), which trains without a warm-up (Xiong et
al., ICML 2020).

A history `[batch, length]` holds rows of the item table, the newest first. 0 is padding or an
unknown item, at any position, and is ignored. A history without items is encoded as zeros, with
finite gradients.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import keras
from keras import ops

from recsys.models.layers import Dropout, Linear, Norm
from recsys.registry import register_encoder


class HistoryEncoder(keras.layers.Layer):
    """Encodes a history as one vector; register a subclass with `recsys.register_encoder`.

    The fields of its `Config` are passed to the constructor in addition to the arguments below.
    `build(input_shape=None)` creates its weights.

    Args:
        length: Items of a history.
        dim: Width of an item and of the vector [floats].
        seed: Seed of the initial weights and of the dropout.
        training_dtype: Dtype in which training may compute; inference computes in float32.

    Attributes:
        only_weighs: Whether `call(rows)` returns weights `[batch, length]` by which the
            lookup averages the items, which is faster. Otherwise
            `call(items, rows, training)` returns vectors `[batch, dim]` float32 of `items`
            `[batch, length, dim]`, the newest first, and their `rows` `[batch, length]`
            int32, 0 for none.
        uses_positions: Whether `call` also takes `place`, the index of each history entry in the
            unique `items` `[n, dim]`; see `AttentionPooling`. Others get `items` by entry.
    """

    only_weighs: ClassVar[bool] = False
    uses_positions: ClassVar[bool] = False

    def __init__(
        self,
        length: int,
        dim: int,
        seed: int = 0,
        training_dtype: str = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.length, self.dim, self.seed = length, dim, seed
        self.training_dtype = training_dtype

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights; here there are none."""

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        names = ("length", "dim", "seed", "training_dtype")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


@register_encoder("mean")
@keras.saving.register_keras_serializable(package="recsys")
class PositionWeights(HistoryEncoder):
    """Weights the items of a history by position, the newest first, with learned weights."""

    only_weighs: ClassVar[bool] = True

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights of the positions `[length]`, initially equal."""
        self.place = self.add_weight(name="place", shape=(self.length,), initializer="zeros")

    def call(self, rows: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the weights `[batch, length]` of `rows`; 0 for padding, which is left out."""
        return ops.cast(rows > 0, "float32") * ops.softplus(self.place)


@register_encoder("none")
@keras.saving.register_keras_serializable(package="recsys")
class NoHistory(HistoryEncoder):
    """Ignores histories: users are represented by their rows and features.

    Without layers and with `dot`, the model is a matrix factorisation (Koren et al., Computer
    2009).
    """

    only_weighs: ClassVar[bool] = True

    def call(self, rows: keras.KerasTensor) -> keras.KerasTensor:
        """Returns zeros `[batch, length]`, so that the mean is 0."""
        return ops.zeros_like(rows, dtype="float32")


@register_encoder("attention")
@keras.saving.register_keras_serializable(package="recsys")
class AttentionPooling(HistoryEncoder):
    """Mean of a history, weighted by attention over the embeddings and positions of its items.

    The score of item h_l at position l is `v · tanh(W h_l + p_l)`; the weights are the softmax of
    the scores (additive attention: Bahdanau et al., ICLR 2015). Unlike in NAIS (He et al., TKDE
    2018) and DIN (Zhou et al., KDD 2018), the scores don't depend on the candidate, because a query
    is embedded before its candidates are known.

    Args:
        length: Items of a history.
        dim: Width of an item and of W's output [floats].
        seed: Seed of the initial weights.
        training_dtype: Dtype in which training computes the scores.
    """

    uses_positions: ClassVar[bool] = True

    def __init__(self, length: int, dim: int, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(length, dim, seed, **kwargs)
        self.inner = Linear(dim, use_bias=False, seed=seed, name="inner")
        self.score = Linear(1, use_bias=False, seed=seed + 1, name="score")

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights; the position vectors `[length, dim]` are initially 0."""
        self.inner.build((None, self.dim))
        self.place = self.add_weight(
            name="place", shape=(self.length, self.dim), initializer="zeros"
        )
        self.score.build((None, self.dim))

    def call(
        self,
        items: keras.KerasTensor,
        rows: keras.KerasTensor,
        training: bool = False,
        place: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        """Returns the weighted sums `[batch, dim]` float32.

        Args:
            items: Embeddings of the items `[batch, length, dim]`; with `place`, of the unique items
                of the batch `[n, dim]`.
            rows: Their rows `[batch, length]`; 0 for none.
            training: Whether to compute the scores in `training_dtype`.
            place: Index of each history entry in `items` `[batch, length]` int32.
        """
        x = ops.cast(items, self.training_dtype if training else "float32")
        inner = self.inner(x)
        if place is not None:
            items, inner = (ops.take(of_item, place, axis=0) for of_item in (items, inner))
        inner = ops.tanh(inner + ops.cast(self.place, x.dtype))
        weights = masked_softmax(ops.squeeze(self.score(inner), -1), rows > 0)
        return ops.sum(weights[..., None] * items, axis=1)


def masked_softmax(scores: keras.KerasTensor, mask: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the softmax over the last axis of the entries where `mask` is true, float32.

    Masked entries are 0. If all are masked, the gradients are 0 too.
    """
    scores = ops.where(mask, ops.cast(scores, "float32"), -1e9)
    top = ops.stop_gradient(ops.max(scores, axis=-1, keepdims=True))
    powers = ops.exp(scores - top) * ops.cast(mask, "float32")
    total = ops.sum(powers, axis=-1, keepdims=True)
    return powers / ops.where(total > 0, total, 1.0)


_BLOCK = 256
"""Queries per block of attention, which bounds the height of the attention matrix."""


def in_blocks(
    attend: Callable[[slice, slice], keras.KerasTensor], n: int, length: int
) -> keras.KerasTensor:
    """Returns the output of attention `[batch, n, …]`, computed in blocks of queries.

    Args:
        attend: Returns the output for a slice of the queries and a slice of the keys.
        n: Number of queries.
        length: Number of keys. If it equals `n`, queries and keys are the same entries, the newest
            first, and attention is causal: a block skips the keys newer than its queries.
    """
    blocks = []
    for first in range(0, n, _BLOCK):
        seen = slice(first if n == length else 0, length)
        blocks.append(attend(slice(first, min(first + _BLOCK, n)), seen))
    return blocks[0] if len(blocks) == 1 else ops.concatenate(blocks, axis=1)


@keras.saving.register_keras_serializable(package="recsys")
class AttentionBlock(keras.layers.Layer):
    """Multi-head attention, then a feed-forward layer, each with a residual connection.

    Args:
        dim: Width of an entry [floats].
        heads: Heads; must divide `dim`.
        width: Width of the feed-forward layer [floats].
        dropout: Dropout rate of attention weights and activations [0..1).
        seed: Seed of the initial weights and of the dropout.
    """

    def __init__(
        self, dim: int, heads: int, width: int, dropout: float, seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs, autocast=False)
        self._convert_input_args = False
        self.dim, self.heads, self.width = dim, heads, width
        self.dropout, self.seed = dropout, seed
        self.norm, self.feed_norm = Norm(name="norm"), Norm(name="feed_norm")
        names = ("query", "key", "value", "out")
        self.query, self.key, self.value, self.out = (
            Linear(dim, seed=seed + i, name=name) for i, name in enumerate(names)
        )
        self.widen = Linear(width, seed=seed + 4, name="widen")
        self.narrow = Linear(dim, seed=seed + 5, name="narrow")

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights."""
        self._drop = Dropout(self.dropout, self.seed)
        self._random = self._drop.generator  # Keras tracks attributes.
        for layer in (self.norm, self.query, self.key, self.value, self.out):
            layer.build((None, self.dim))
        self.feed_norm.build((None, self.dim))
        self.widen.build((None, self.dim))
        self.narrow.build((None, self.width))

    def call(
        self,
        x: keras.KerasTensor,
        seen: keras.KerasTensor,
        mask: keras.KerasTensor,
        training: bool = False,
    ) -> keras.KerasTensor:
        """Returns the new states of the entries `[batch, n, dim]`, in the dtype of `x`.

        Args:
            x: Entries to compute, the queries `[batch, n, dim]`.
            seen: All entries, the keys and values `[batch, length, dim]`.
            mask: Whether a query attends to a key, bool `[batch, n, length]`.
            training: Whether to apply dropout.
        """
        attended = self._attended(self.norm(x), self.norm(seen), mask, training)
        x = x + self._drop(self.out(attended), training)
        inner = self._drop(ops.relu(self.widen(self.feed_norm(x))), training)
        return x + self._drop(self.narrow(inner), training)

    def _attended(
        self, x: keras.KerasTensor, seen: keras.KerasTensor, mask: keras.KerasTensor, training: bool
    ) -> keras.KerasTensor:
        query = self._in_heads(self.query(x))
        key, value = (self._in_heads(layer(seen)) for layer in (self.key, self.value))
        scale = (self.dim // self.heads) ** -0.5

        def attend(n: slice, seen: slice) -> keras.KerasTensor:
            scores = ops.einsum("bnhd,blhd->bhnl", query[:, n], key[:, seen]) * scale
            weights = self._drop(masked_softmax(scores, mask[:, None, n, seen]), training)
            return ops.einsum("bhnl,blhd->bnhd", ops.cast(weights, x.dtype), value[:, seen])

        attended = in_blocks(attend, x.shape[1], seen.shape[1])
        return ops.reshape(attended, (-1, x.shape[1], self.dim))

    def _in_heads(self, x: keras.KerasTensor) -> keras.KerasTensor:
        return ops.reshape(x, (-1, x.shape[1], self.heads, self.dim // self.heads))


@register_encoder("sequence")
@keras.saving.register_keras_serializable(package="recsys")
class SequenceEncoder(HistoryEncoder):
    """Encodes a history by self-attention as the state of its newest item.

    Args:
        length: Maximum length of a history; each position has a learned vector [items].
        dim: Width of an item [floats].
        layers: Number of blocks.
        heads: Attention heads of a block; must divide `dim`.
        width: Width of their feed-forward layers; None for `dim` [floats].
        dropout: Dropout rate of the activations [0..1).
        seed: Seed of the initial weights and of the dropout.
        training_dtype: Dtype in which training computes; inference computes in float32.
    """

    def __init__(
        self,
        length: int,
        dim: int,
        layers: int = 2,
        heads: int = 2,
        width: int | None = None,
        dropout: float = 0.0,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(length, dim, seed, **kwargs)
        self.n_layers, self.heads, self.width, self.dropout = layers, heads, width, dropout
        self.blocks = [
            AttentionBlock(dim, heads, width or dim, dropout, seed + 10 * i, name=f"block_{i}")
            for i in range(layers)
        ]
        self.norm = Norm(name="norm")

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights."""
        self._drop = Dropout(self.dropout, self.seed - 1)
        self._random = self._drop.generator  # Keras tracks attributes.
        normal = keras.initializers.RandomNormal(stddev=0.05, seed=self.seed - 1)
        self.place = self.add_weight(
            name="place", shape=(self.length, self.dim), initializer=normal
        )
        for block in self.blocks:
            block.build()
        self.norm.build((None, self.dim))

    def call(
        self, items: keras.KerasTensor, rows: keras.KerasTensor, training: bool = False
    ) -> keras.KerasTensor:
        """Returns the state of the newest item `[batch, dim]` float32; zeros for an empty history.

        Args:
            items: Embeddings of the items `[batch, length, dim]`, the newest first.
            rows: Their rows `[batch, length]`; 0 for none.
            training: Whether to apply dropout and compute in `training_dtype`.
        """
        is_item = rows > 0
        x = ops.cast(items * self.dim**0.5 + self.place, self._type(training))
        x = self._drop(x, training) * ops.cast(is_item, x.dtype)[..., None]
        place = ops.arange(self.length)
        # The newest comes first: an item attends to itself and to the older items after it.
        mask = ops.logical_and(is_item[:, None, :], place[:, None] <= place[None, :])
        for block in self.blocks[:-1]:
            x = block(x, x, mask, training=training)
        # Only the state of the newest item is needed from the last block; it attends to all items.
        newest = newest_item(is_item, x.dtype)
        own = ops.sum(x * newest[..., None], axis=1, keepdims=True)
        state = self.blocks[-1](own, x, is_item[:, None, :], training=training)[:, 0]
        has_any = ops.any(is_item, axis=1, keepdims=True)
        return ops.where(has_any, ops.cast(self.norm(state), "float32"), 0.0)

    def _type(self, training: bool) -> str:
        return self.training_dtype if training else "float32"

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        own = {name: getattr(self, name) for name in ("heads", "width", "dropout")}
        return {**super().get_config(), "layers": self.n_layers, **own}


def newest_item(is_item: keras.KerasTensor, dtype: str) -> keras.KerasTensor:
    """Returns 1 at the newest item of each history `[batch, length]`, else 0."""
    count = ops.cumsum(ops.cast(is_item, "int32"), axis=1)
    return ops.cast(ops.logical_and(is_item, count == 1), dtype)
