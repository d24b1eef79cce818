"""Encoders of sequences, SASRec and LiGR, which learn at every position.

Training packs the sequences of several users into a row. An example reads the state of the newest
item before it, so one pass over a row serves all of its examples. In inference a row is the history
of one user, and the state of its newest item is read.

Rows `[rows, length]` are histories with the newest item first. 0 is padding or an unknown item,
which no entry attends to. The position of an item is the number of older items of its user in the
row, so positions of a truncated history start at its oldest remaining item.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from recsys.models.encoders import HistoryEncoder, masked_softmax
from recsys.models.frequency_filter import FrequencyFilter
from recsys.models.layers import Dropout, InputDtypeLayer, Linear, Norm
from recsys.registry import register_encoder

_BESIDE_MEAN = 0.05
"""Initial scale of states that are added to a mean: the size of the items' initial weights."""


class PositionEncoder(HistoryEncoder):
    """The stack of blocks that the encoders of sequences share; a subclass makes the blocks.

    Args:
        length: Length of a row; each position has a learned vector [items].
        dim: Width of an item [floats].
        layers: Number of blocks.
        heads: Attention heads of a block; must divide `dim`.
        dropout: Dropout rate of the activations [0..1).
        add_mean: Whether to add the mean of the items so far, weighted by distance, to a state.
            Training then starts close to the encoder `mean`.
        seed: Seed of the initial weights and of the dropout.
        training_dtype: Dtype in which training computes; inference computes in float32.
    """

    def __init__(
        self,
        length: int,
        dim: int,
        layers: int = 2,
        heads: int = 2,
        dropout: float = 0.0,
        add_mean: bool = True,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(length, dim, seed, **kwargs)
        self.n_layers, self.heads, self.dropout = layers, heads, dropout
        self.add_mean = add_mean
        self.blocks = [self.make_block(seed + 10 * i, f"block_{i}") for i in range(layers)]
        self.norm = Norm(scale=_BESIDE_MEAN if add_mean else 1.0, name="norm")

    def make_block(self, seed: int, name: str) -> keras.layers.Layer:
        """Returns a block: a layer of `(x, seen, mask, training)`, as `AttentionBlock` is."""
        raise NotImplementedError

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights."""
        self._drop = Dropout(self.dropout, self.seed - 1)
        self._random = self._drop.generator  # Keras tracks attributes.
        normal = keras.initializers.RandomNormal(stddev=0.05, seed=self.seed - 1)
        self.place = self.add_weight(
            name="place", shape=(self.length, self.dim), initializer=normal
        )
        if self.add_mean:
            self.recency = self.add_weight(
                name="recency", shape=(self.length,), initializer="zeros"
            )
        for block in self.blocks:
            block.build()
        self.norm.build((None, self.dim))

    def call(
        self,
        items: keras.KerasTensor,
        rows: keras.KerasTensor,
        training: bool = False,
        segment: keras.KerasTensor | None = None,
        at: keras.KerasTensor | None = None,
    ) -> keras.KerasTensor:
        """Returns states `[rows * n, dim]` float32; zeros at padding.

        Args:
            items: Embeddings of the items `[rows, length, dim]`, the newest first.
            rows: Their rows of the table `[rows, length]` int32; 0 is padding.
            training: Whether to apply dropout and compute in `training_dtype`.
            segment: User of each item `[rows, length]` int32, as a number within the row; None:
                each row has one user.
            at: Columns whose states are returned `[rows, n]` int32, -1 for none; None: the column
                of the newest item, `n` = 1. Requires `at[r, k] >= k`: if `n` is `length`, entry `k`
                is not compared with newer columns.
        """
        is_item = rows > 0
        column = ops.arange(self.length, dtype="int32")
        # The newest comes first: an item attends to itself and to the older items after it.
        mask = ops.logical_and(is_item[:, None, :], column[:, None] <= column[None, :])
        if segment is not None:
            mask = ops.logical_and(mask, ops.equal(segment[:, :, None], segment[:, None, :]))
        dtype = self.training_dtype if training else "float32"
        x = items * self.dim**0.5 + self.position_vectors(mask)
        x = self._drop(ops.cast(x, dtype), training) * ops.cast(is_item, dtype)[..., None]
        # The last block computes only the states that are read. A product with the one-hot
        # encoding `[rows, n, length]` of their columns selects entries exactly, and keeps the
        # sharding of the rows.
        if at is None:
            count = ops.cumsum(ops.cast(is_item, "int32"), axis=1)
            chosen = ops.cast(ops.logical_and(is_item, count == 1), dtype)[:, None]
        else:
            chosen = ops.cast(ops.equal(at[..., None], column), dtype)
        for block in self.blocks[:-1]:
            x = block(x, x, mask, training=training)
        own, seen = ops.matmul(chosen, x), ops.matmul(chosen, ops.cast(mask, dtype)) > 0
        states = self.blocks[-1](own, x, seen, training=training)
        has_state = ops.sum(chosen, axis=-1, keepdims=True) > 0
        states = ops.where(has_state, ops.cast(self.norm(states), "float32"), 0.0)
        if self.add_mean:
            states = states + self._mean(items, mask, chosen)
        return ops.reshape(states, (-1, self.dim))

    def position_vectors(self, mask: keras.KerasTensor) -> keras.KerasTensor:
        """Returns the vector of each item's position `[rows, length, dim]`.

        Args:
            mask: Whether an item attends to another one `[rows, length, length]` bool.
        """
        place = ops.sum(ops.cast(mask, "int32"), axis=-1) - 1
        return ops.take(self.place, ops.maximum(place, 0), axis=0)

    def _mean(
        self, items: keras.KerasTensor, mask: keras.KerasTensor, chosen: keras.KerasTensor
    ) -> keras.KerasTensor:
        """Returns the weighted mean `[rows, n, dim]` of the items up to each chosen one."""
        weight = ops.take(ops.softplus(self.recency), distances(self.length), axis=0)
        weight = ops.where(mask, weight, 0.0)
        total = ops.sum(weight, axis=-1, keepdims=True)
        weight = ops.matmul(ops.cast(chosen, "float32"), weight / ops.maximum(total, 1e-9))
        return ops.matmul(weight, items)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        own = {name: getattr(self, name) for name in ("heads", "dropout", "add_mean")}
        return {**super().get_config(), "layers": self.n_layers, **own}


def distances(length: int) -> np.ndarray:
    """Returns the distance of each column to the older ones `[length, length]`, else 0."""
    column = np.arange(length)
    return np.maximum(column[None, :] - column[:, None], 0)


# --- attention with a softmax

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
class AttentionBlock(InputDtypeLayer):
    """Multi-head attention, then a feed-forward layer, each with a residual connection.

    Args:
        dim: Width of an entry [floats].
        heads: Heads; must divide `dim`.
        width: Width of the feed-forward layer [floats].
        dropout: Dropout rate of attention weights and activations [0..1).
        seed: Seed of the initial weights and of the dropout.
        frequency_filter: A filter whose output is mixed with that of attention; None: no filter.
    """

    def __init__(
        self,
        dim: int,
        heads: int,
        width: int,
        dropout: float,
        seed: int = 0,
        frequency_filter: FrequencyFilter | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.dim, self.heads, self.width = dim, heads, width
        self.dropout, self.seed, self.filter = dropout, seed, frequency_filter
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
        if self.filter is not None:
            self.filter.build((None, self.dim))

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
        mixed = self._mixed(self.norm(x), self.norm(seen), mask, training)
        return self._fed(x, mixed, training)

    def _fed(
        self, x: keras.KerasTensor, mixed: keras.KerasTensor, training: bool
    ) -> keras.KerasTensor:
        """Returns the output of the block, given that of its first part `[batch, n, dim]`."""
        x = x + self._drop(mixed, training)
        inner = self._drop(ops.relu(self.widen(self.feed_norm(x))), training)
        return x + self._drop(self.narrow(inner), training)

    def _mixed(
        self, x: keras.KerasTensor, seen: keras.KerasTensor, mask: keras.KerasTensor, training: bool
    ) -> keras.KerasTensor:
        """Returns the output of attention `[batch, n, dim]`, mixed with that of the filter."""
        attended = self._attended(x, seen, mask, training)
        if self.filter is None:
            return attended
        share = self.filter.share
        return share * self.filter(x, seen, mask) + (1.0 - share) * attended

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
        return self.out(ops.reshape(attended, (-1, x.shape[1], self.dim)))

    def _in_heads(self, x: keras.KerasTensor) -> keras.KerasTensor:
        # A served request may have any number of candidates.
        return ops.reshape(x, (-1, ops.shape(x)[1], self.heads, self.dim // self.heads))


@register_encoder("sasrec")
@keras.saving.register_keras_serializable(package="recsys")
class SasRec(PositionEncoder):
    """Causal self-attention (SASRec: Kang and McAuley, ICDM 2018).

    Its blocks are pre-norm (Xiong et al., ICML 2020).

    Args:
        length: Items of a row.
        dim: Width of an item [floats].
        width: Width of the feed-forward layers; None for `dim` [floats].
        filter_share: Share of a `FrequencyFilter` in the output of attention; 0: no filter [0..1).
        filter_frequencies: Frequencies that the filter treats as low.
        **kwargs: Other arguments of `PositionEncoder`.
    """

    _block: ClassVar[type[AttentionBlock]] = AttentionBlock

    def __init__(
        self,
        length: int,
        dim: int,
        width: int | None = None,
        filter_share: float = 0.0,
        filter_frequencies: int = 3,
        **kwargs: Any,
    ) -> None:
        # Before Keras looks at attributes: the blocks are made in `super`.
        self._width = width
        self._filter_share, self._filter_frequencies = filter_share, filter_frequencies
        super().__init__(length, dim, **kwargs)

    def make_block(self, seed: int, name: str) -> keras.layers.Layer:
        """Returns an `AttentionBlock`, or one of the subclass."""
        frequency_filter = None
        if share := self._filter_share:
            frequencies = self._filter_frequencies
            frequency_filter = FrequencyFilter(
                self.length, share, frequencies, seed + 9, name="filter"
            )
        return self._block(
            self.dim,
            self.heads,
            self._width or self.dim,
            self.dropout,
            seed,
            frequency_filter=frequency_filter,
            name=name,
        )

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        own = {
            "width": self._width,
            "filter_share": self._filter_share,
            "filter_frequencies": self._filter_frequencies,
        }
        return {**super().get_config(), **own}


@keras.saving.register_keras_serializable(package="recsys")
class GatedBlock(AttentionBlock):
    """An `AttentionBlock` whose two parts are gated: `x + sigmoid(G x) * part(norm(x))`."""

    def __init__(
        self, dim: int, heads: int, width: int, dropout: float, seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(dim, heads, width, dropout, seed, **kwargs)
        self.gate = Linear(dim, seed=seed + 6, name="gate")
        self.feed_gate = Linear(dim, seed=seed + 7, name="feed_gate")
        self.swish = Linear(width, seed=seed + 8, name="swish")

    def build(self, input_shape: Any = None) -> None:
        """Creates the weights."""
        super().build()
        for layer in (self.gate, self.feed_gate, self.swish):
            layer.build((None, self.dim))

    def call(
        self,
        x: keras.KerasTensor,
        seen: keras.KerasTensor,
        mask: keras.KerasTensor,
        training: bool = False,
    ) -> keras.KerasTensor:
        """Returns the new states of the entries; see `AttentionBlock.call`."""
        mixed = self._mixed(self.norm(x), self.norm(seen), mask, training)
        x = x + self._drop(ops.sigmoid(self.gate(x)) * mixed, training)
        normed = self.feed_norm(x)
        inner = self._drop(ops.silu(self.swish(normed)) * self.widen(normed), training)
        return x + self._drop(ops.sigmoid(self.feed_gate(x)) * self.narrow(inner), training)


@register_encoder("ligr")
@keras.saving.register_keras_serializable(package="recsys")
class Ligr(SasRec):
    """Self-attention with gates (LiGR: Borisyuk et al., "From Features to Transformers", 2025).

    The outputs of attention and feed-forward layer are gated by the input. The feed-forward layer
    is a SwiGLU (Shazeer, 2020), as in eSASRec (Tikhonovich et al., RecSys 2025).
    """

    _block: ClassVar[type[AttentionBlock]] = GatedBlock
