"""Layers by which the features of an example interact: DLRM, DCN-v2 and FinalMLP.

All compute in the dtype of their inputs, with float32 weights.
"""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
from keras import ops

from recsys.models.layers import InputDtypeLayer, Linear, Mlp


@keras.saving.register_keras_serializable(package="recsys")
class DotInteraction(InputDtypeLayer):
    """Dot products of all pairs of feature vectors (DLRM: Naumov et al., 2019, section 2.1.3).

    For the vectors x_1 … x_n of an example they are `x_i · x_j`, i > j: the strict lower triangle
    of `X Xᵀ`, row by row. The layer has no weights.
    """

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns products `[batch, n * (n - 1) / 2]` of `x` `[batch, n, dim]`, in its dtype."""
        return _pair_products(x.shape[1])(x)


def _pair_products(n: int) -> Any:
    """Returns the function from `[batch, n, dim]` to the products of the pairs.

    It has its own gradient: of a gather at fixed indices, JAX's is a scatter, and of `X Xᵀ` two
    products. Here the gradient of the pairs is gathered into a symmetric matrix G, and that of x is
    `G X`. On a CPU this takes half the time.
    """
    rows, columns = np.tril_indices(n, -1)
    n_pairs = len(rows)
    pair_of = np.full((n, n), n_pairs)  # The diagonal reads a zero after the pairs.
    pair_of[rows, columns] = pair_of[columns, rows] = np.arange(n_pairs)

    def products(x: keras.KerasTensor) -> Any:
        square = ops.matmul(x, ops.transpose(x, (0, 2, 1)))
        pairs = ops.take(ops.reshape(square, (-1, n * n)), rows * n + columns, axis=1)

        def gradient(upstream: keras.KerasTensor) -> keras.KerasTensor:
            padded = ops.pad(upstream, ((0, 0), (0, 1)))
            square = ops.take(padded, pair_of.reshape(-1), axis=1)
            return ops.matmul(ops.reshape(square, (-1, n, n)), x)

        return pairs, gradient

    return ops.custom_gradient(products)


@keras.saving.register_keras_serializable(package="recsys")
class CrossNetwork(InputDtypeLayer):
    """Explicit crosses of features (DCN-v2: Wang et al., WWW 2021, eq. 1 and 2).

    Layer l is `x_{l+1} = x_0 * (W_l x_l + b_l) + x_l`: l layers make the products of up to l + 1
    features. With a rank, `W_l` is `U_l V_lᵀ`.

    Args:
        layers: Number of layers.
        rank: Rank of the matrices; None for full matrices `[in, in]`.
        seed: Seed of the initial weights.
    """

    def __init__(
        self, layers: int = 3, rank: int | None = None, seed: int = 0, **kwargs: Any
    ) -> None:
        super().__init__(**kwargs)
        self.n_layers, self.rank, self.seed = layers, rank, seed

    def build(self, input_shape: Any) -> None:
        """Creates the weights for inputs `[batch, in]`."""
        width, rank, seed = input_shape[-1], self.rank, self.seed
        numbers = range(self.n_layers)
        self.narrow = [
            Linear(rank, use_bias=False, seed=seed + 2 * i, name=f"narrow_{i}")
            for i in numbers
            if rank is not None
        ]
        self.cross = [Linear(width, seed=seed + 2 * i + 1, name=f"cross_{i}") for i in numbers]
        for layer in self.narrow:
            layer.build((None, width))
        for layer in self.cross:
            layer.build((None, rank or width))

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns crosses `[batch, in]` of `x` `[batch, in]`, in its dtype."""
        crossed = x
        for i, cross in enumerate(self.cross):
            inner = self.narrow[i](crossed) if self.narrow else crossed
            crossed = x * cross(inner) + crossed
        return crossed


@keras.saving.register_keras_serializable(package="recsys")
class FeatureGate(InputDtypeLayer):
    """Weights the features that a stream reads (FinalMLP: Mao et al., AAAI 2023, eq. 5 and 6).

    For features x and a context c, such as the features of the user or of the item, it is
    `2 sigmoid(gate(c)) * x`, where `gate` is an MLP. All gates are initially 1. Without context,
    the gates are one learned vector, as is an MLP of the paper's learned context.

    Args:
        widths: Hidden widths of the MLP [floats].
        seed: Seed of the initial weights.
    """

    def __init__(self, widths: tuple[int, ...] = (), seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.hidden = Mlp(widths, seed=seed, name="hidden")

    def build(self, x_shape: Any, context_shape: Any = None) -> None:
        """Creates the weights for features `[batch, in]` and the context `[batch, any]`."""
        width = x_shape[-1]
        if context_shape is None:
            self.logit = self.add_weight(name="logit", shape=(width,), initializer="zeros")
            return
        self.hidden.build(context_shape)
        self.gate = Linear(width, starts_at_zero=True, name="gate")
        self.gate.build((None, (context_shape[-1], *self.hidden.widths)[-1]))

    def call(
        self, x: keras.KerasTensor, context: keras.KerasTensor | None = None
    ) -> keras.KerasTensor:
        """Returns the weighted features `[batch, in]`, in the dtype of `x`.

        Args:
            x: Features `[batch, in]`.
            context: What the gates depend on `[batch, any]`, in the dtype of `x`; None for gates
                that are equal for all examples.
        """
        if context is None:
            logit = ops.cast(self.logit, x.dtype)
        else:
            logit = self.gate(self.hidden(context))
        return 2.0 * ops.sigmoid(logit) * x


@keras.saving.register_keras_serializable(package="recsys")
class BilinearFusion(InputDtypeLayer):
    """Logits of two streams by bilinear products (FinalMLP: Mao et al., AAAI 2023, eq. 9 and 10).

    For the outputs p and q of the streams, each in as many chunks as heads, a logit is
    `b + w · p + v · q + Σ_h p_hᵀ W_h q_h`.

    Args:
        units: Number of logits.
        heads: Number of heads; must divide the widths of both streams.
        seed: Seed of the initial weights.
    """

    def __init__(self, units: int = 1, heads: int = 1, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units, self.heads, self.seed = units, heads, seed
        self.linear = Linear(units, seed=seed, name="linear")

    def build(self, first_shape: Any, second_shape: Any) -> None:
        """Creates the weights for streams `[batch, n]` and `[batch, m]`.

        Raises:
            ValueError: If `heads` doesn't divide both widths.
        """
        widths = (first_shape[-1], second_shape[-1])
        if any(width % self.heads for width in widths):
            raise ValueError(
                "The number of heads must divide the widths of both streams. "
                f"Received: heads={self.heads}, widths={widths}. Change `heads` or a width."
            )
        of_head, self.of_head = (width // self.heads for width in widths)
        self.linear.build((None, sum(widths)))
        self.pair = Linear(
            self.units * self.of_head,
            use_bias=False,
            seed=self.seed + 1,
            copies=(self.heads,),
            name="pair",
        )
        self.pair.build((None, of_head))

    def call(self, first: keras.KerasTensor, second: keras.KerasTensor) -> keras.KerasTensor:
        """Returns logits `[batch, units]` of streams `[batch, n]` and `[batch, m]`, same dtype."""
        mapped = self.pair(self._in_heads(first))  # [heads, batch, units * m / heads]
        mapped = ops.reshape(mapped, (self.heads, -1, self.units, self.of_head))
        products = ops.einsum("hbud,hbd->bu", mapped, self._in_heads(second))
        return self.linear(ops.concatenate([first, second], axis=-1)) + products

    def _in_heads(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns chunks `[heads, batch, width / heads]` of `x` `[batch, width]`."""
        shape = (-1, self.heads, x.shape[-1] // self.heads)
        return ops.transpose(ops.reshape(x, shape), (1, 0, 2))
