"""Encoders of a history: weights of positions, attention, folding in, or none.

A history `[batch, length]` holds rows of the item table, the newest first. 0 is padding or an
unknown item, at any position, and is ignored. A history without items is encoded as zeros, with
finite gradients. Encoders by self-attention are in `recsys.models.sequences`.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any, ClassVar

import keras
import numpy as np
from keras import ops

from recsys.models.layers import Linear
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


# --- folding in


@register_encoder("fold_in")
@keras.saving.register_keras_serializable(package="recsys")
class FoldIn(HistoryEncoder):
    """Solves for the user vector with the least loss, given the trained item vectors.

    Hu, Koren and Volinsky, "Collaborative Filtering for Implicit Feedback Datasets", ICDM 2008,
    equation 4. For the n items y of a history, `G = mean y yᵀ` over the training items, and weights
    w and λ, it solves for u in

        (Σ y yᵀ  +  w n G  +  λ √n I) u  =  Σ y

    which minimises `Σ (1 - u · y)² + w n mean (u · y)² + λ √n |u|²`. This is
    `recsys.losses.LeastSquares` for one user, except that the squared norm is weighted by the root
    of n (Rendle et al., RecSys 2022, use a power of the frequency, by default the first). An item
    that occurs twice counts twice.

    Args:
        length: Items of a history.
        dim: Width of an item and of the vector [floats].
        negative_weight: The weight w.
        regularisation: The weight λ.
        seed: Unused.
    """

    def __init__(
        self,
        length: int,
        dim: int,
        negative_weight: float = 6.0,
        regularisation: float = 0.6,
        seed: int = 0,
        **kwargs: Any,
    ) -> None:
        super().__init__(length, dim, seed, **kwargs)
        self.negative_weight, self.regularisation = negative_weight, regularisation

    def build(self, input_shape: Any = None) -> None:
        """Creates the Gramian `[dim, dim]`, which `settle` sets and training doesn't change."""
        self.gramian = self.add_weight(
            name="gramian", shape=(self.dim, self.dim), initializer="zeros", trainable=False
        )

    def settle(self, items: Iterable[np.ndarray]) -> None:
        """Sets the Gramian.

        Args:
            items: Vectors of the training items, in blocks `[n, dim]` float32.
        """
        total, count = np.zeros((self.dim, self.dim)), 0
        for block in items:
            total += block.T @ block
            count += len(block)
        self.gramian.assign((total / max(1, count)).astype(np.float32))

    def call(
        self, items: keras.KerasTensor, rows: keras.KerasTensor, training: bool = False
    ) -> keras.KerasTensor:
        """Returns the solutions `[batch, dim]` float32; 0 for an empty history.

        Args:
            items: Item vectors `[batch, length, dim]` float32.
            rows: Their rows `[batch, length]`; 0 for none.
            training: Ignored.
        """
        is_item = ops.cast(rows > 0, "float32")
        items = items * is_item[..., None]
        n = ops.maximum(ops.sum(is_item, axis=1), 1.0)[:, None, None]
        system = ops.matmul(ops.transpose(items, (0, 2, 1)), items)
        system = system + self.negative_weight * n * ops.convert_to_tensor(self.gramian)
        system = system + self.regularisation * ops.sqrt(n) * ops.eye(self.dim)
        return _solved(system, ops.sum(items, axis=1))

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        own = {name: getattr(self, name) for name in ("negative_weight", "regularisation")}
        return {**super().get_config(), **own}


def _solved(system: keras.KerasTensor, sums: keras.KerasTensor) -> keras.KerasTensor:
    """Returns the x `[batch, dim]` of `system` `[batch, dim, dim]` x = `sums` `[batch, dim]`."""
    if _lapack_can_hang():
        return _eliminated(system, sums)
    return ops.solve(system, sums[..., None])[..., 0]


def _lapack_can_hang() -> bool:
    """Returns whether several devices share the threads that LAPACK waits for.

    In jaxlib 0.10, each device's batch of systems holds a thread of the pool while it waits for
    other threads of the same pool. With as many devices as threads this is a deadlock.
    """
    if keras.backend.backend() != "jax":
        return False
    import jax

    return jax.default_backend() == "cpu" and jax.local_device_count() > 1


def _eliminated(system: keras.KerasTensor, sums: keras.KerasTensor) -> keras.KerasTensor:
    """Solves by Gauss-Jordan elimination, without pivoting: the systems are positive definite."""
    rows = ops.concatenate([system, sums[..., None]], axis=-1)
    places = ops.arange(system.shape[1])

    def eliminate(k: keras.KerasTensor, rows: keras.KerasTensor) -> keras.KerasTensor:
        row, column = ops.take(rows, k, axis=1), ops.take(rows, k, axis=2)
        row = row / ops.take(row, k, axis=1)[:, None]
        others = rows - column[..., None] * row[:, None]
        return ops.where((places == k)[None, :, None], row[:, None], others)

    return ops.fori_loop(0, system.shape[1], eliminate, rows)[..., -1]
