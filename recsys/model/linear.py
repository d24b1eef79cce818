"""Layers that compute in the type of their inputs, over weights that stay float32.

Keras binds a layer's type of computation to the layer. Here it is a matter of the call:
training may compute in bfloat16, and the same weights serve in float32.
"""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

_EPSILON = 1e-6


@keras.saving.register_keras_serializable(package="recsys")
class Linear(keras.layers.Layer):
    """A linear map of the last axis.

    Args:
        units: Width of the output [floats].
        use_bias: Whether a vector is added.
        seed: Seed of the initial weights, which are Glorot's uniform ones.
    """

    def __init__(self, units: int, use_bias: bool = True, seed: int = 0, **kwargs: Any) -> None:
        super().__init__(**kwargs, autocast=False)
        self._convert_input_args = False
        self.units, self.use_bias, self.seed = units, use_bias, seed

    def build(self, input_shape: Any) -> None:
        """Creates the weights for inputs `[..., in]`."""
        glorot = keras.initializers.GlorotUniform(seed=self.seed)
        self.kernel = self.add_weight(
            name="kernel", shape=(input_shape[-1], self.units), initializer=glorot
        )
        self.bias: Any = None
        if self.use_bias:
            self.bias = self.add_weight(name="bias", shape=(self.units,), initializer="zeros")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns `[..., units]` of `x` `[..., in]`, in its type."""
        out = ops.matmul(x, ops.cast(self.kernel, x.dtype))
        return out if self.bias is None else out + ops.cast(self.bias, x.dtype)

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        config = {"units": self.units, "use_bias": self.use_bias, "seed": self.seed}
        return {**super().get_config(), **config}


@keras.saving.register_keras_serializable(package="recsys")
class Norm(keras.layers.Layer):
    """Layer normalisation of the last axis (Ba et al., 2016), reckoned in float32."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs, autocast=False)
        self._convert_input_args = False

    def build(self, input_shape: Any) -> None:
        """Creates the weights for inputs `[..., width]`."""
        width = input_shape[-1]
        self.gamma = self.add_weight(name="gamma", shape=(width,), initializer="ones")
        self.beta = self.add_weight(name="beta", shape=(width,), initializer="zeros")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns `x` `[..., width]` with mean 0 and variance 1, scaled and moved, in its type."""
        wide = ops.cast(x, "float32")
        off = wide - ops.mean(wide, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(off), axis=-1, keepdims=True)
        # The epsilon keeps a vector of equal entries, and its gradient, finite.
        out = off * ops.rsqrt(variance + _EPSILON) * self.gamma + self.beta
        return ops.cast(out, x.dtype)


class Dropout:
    """Drops entries in training, and scales the others up (Srivastava et al., JMLR 2014).

    Its random state is a variable of the layer that makes it in its `build`, so that a
    checkpoint holds it: what is dropped follows from seed and step.

    Args:
        rate: Share of the entries that are dropped [0..1).
        seed: Seed of the random numbers.
    """

    def __init__(self, rate: float, seed: int) -> None:
        self.rate = rate
        # Keras names variables by their order of creation if we don't.
        self.generator = keras.random.SeedGenerator(seed, name="dropout") if rate else None

    def __call__(self, x: keras.KerasTensor, training: bool) -> keras.KerasTensor:
        """Returns `x`, with entries dropped if `training`."""
        if self.generator is None or not training:
            return x
        return keras.random.dropout(x, self.rate, seed=self.generator)
