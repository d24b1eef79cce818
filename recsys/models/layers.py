"""The layers of the models, which compute in the dtype of their inputs with float32 weights.

In Keras the compute dtype belongs to the layer. Here it depends on the call: training may compute
in bfloat16, while serving uses the same weights in float32.
"""

from __future__ import annotations

import contextlib
import math
import random
import re
from collections.abc import Iterator
from typing import Any

import keras
from keras import ops

from recsys.models.config import LEARNED_TEMPERATURE

_EPSILON = 1e-6


class InputDtypeLayer(keras.layers.Layer):
    """A layer that computes in the dtype of its inputs, which Keras must not cast."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs, autocast=False)
        self._convert_input_args = False


@keras.saving.register_keras_serializable(package="recsys")
class Linear(InputDtypeLayer):
    """A linear map of the last axis.

    Args:
        units: Width of the output [floats].
        use_bias: Whether to add a bias vector.
        seed: Seed of the initial weights (Glorot uniform).
        starts_at_zero: Whether all weights are initially 0.
        copies: Number of maps, each with its own weights; `(2, 3)` for 2 groups of 3. They are the
            leading axes of the output, and of inputs that differ between the maps.
    """

    def __init__(
        self,
        units: int,
        use_bias: bool = True,
        seed: int = 0,
        starts_at_zero: bool = False,
        copies: tuple[int, ...] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.units, self.use_bias, self.seed = units, use_bias, seed
        self.starts_at_zero, self.copies = starts_at_zero, tuple(copies)

    def build(self, input_shape: Any) -> None:
        """Creates the weights for inputs `[..., in]`."""
        # Keras divides the variance by the number of copies, as by a convolution's window.
        scale = float(math.prod(self.copies))
        glorot = keras.initializers.VarianceScaling(scale, "fan_avg", "uniform", seed=self.seed)
        self.kernel = self.add_weight(
            name="kernel",
            shape=(*self.copies, input_shape[-1], self.units),
            initializer="zeros" if self.starts_at_zero else glorot,
        )
        self.bias: Any = None
        if self.use_bias:
            shape = (*self.copies, 1, self.units) if self.copies else (self.units,)
            self.bias = self.add_weight(name="bias", shape=shape, initializer="zeros")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns `[*copies, ..., units]` of `x` `[..., in]`, in its dtype."""
        out = ops.matmul(x, ops.cast(self.kernel, x.dtype))
        return out if self.bias is None else out + ops.cast(self.bias, x.dtype)


@keras.saving.register_keras_serializable(package="recsys")
class Norm(InputDtypeLayer):
    """Layer normalisation of the last axis (Ba et al., 2016), computed in float32.

    Args:
        scale: Initial value of the scale.
    """

    def __init__(self, scale: float = 1.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.scale = scale

    def build(self, input_shape: Any) -> None:
        """Creates the weights for inputs `[..., width]`."""
        width = input_shape[-1]
        initial = keras.initializers.Constant(self.scale)
        self.gamma = self.add_weight(name="gamma", shape=(width,), initializer=initial)
        self.beta = self.add_weight(name="beta", shape=(width,), initializer="zeros")

    def call(self, x: keras.KerasTensor) -> keras.KerasTensor:
        """Returns `x` `[..., width]` normalised, then scaled and shifted, in its dtype."""
        wide = ops.cast(x, "float32")
        off = wide - ops.mean(wide, axis=-1, keepdims=True)
        variance = ops.mean(ops.square(off), axis=-1, keepdims=True)
        # The epsilon keeps the output and the gradient of a constant vector finite.
        out = off * ops.rsqrt(variance + _EPSILON) * self.gamma + self.beta
        return ops.cast(out, x.dtype)


class Dropout:
    """Dropout with a checkpointed random state (Srivastava et al., JMLR 2014).

    The random state is a variable of the layer that creates the dropout in its `build`, so a
    checkpoint contains it: the dropped entries are a function of seed and step.

    Args:
        rate: Share of entries to drop [0..1).
        seed: Seed of the random numbers.
        name: Name of the variable.
    """

    def __init__(self, rate: float, seed: int, name: str = "dropout") -> None:
        self.rate = rate
        # Without a name, Keras names variables by their order of creation.
        self.generator = keras.random.SeedGenerator(seed, name=name) if rate else None

    def __call__(self, x: keras.KerasTensor, training: bool) -> keras.KerasTensor:
        """Returns `x`; if `training`, with entries dropped and the others scaled up."""
        if self.generator is None or not training:
            return x
        return keras.random.dropout(x, self.rate, seed=self.generator)


@keras.saving.register_keras_serializable(package="recsys")
class Mlp(InputDtypeLayer):
    """Linear layers, each followed by an activation and dropout.

    Args:
        widths: Widths of the layers [floats]; empty for no layer.
        seed: Seed of the initial weights and of the dropout.
        activation: Keras name of the activation.
        dropout: Dropout rate of the activations [0..1).
        copies: Number of networks, each with its own weights; see `Linear`.
    """

    def __init__(
        self,
        widths: tuple[int, ...],
        seed: int = 0,
        activation: str = "relu",
        dropout: float = 0.0,
        copies: tuple[int, ...] = (),
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.widths, self.seed, self.dropout = tuple(widths), seed, dropout
        self.hidden = [
            Linear(width, seed=seed + i, copies=copies, name=f"hidden_{i}")
            for i, width in enumerate(self.widths)
        ]
        self._activate = keras.activations.get(activation)

    def build(self, input_shape: Any) -> None:
        """Creates the weights for inputs `[..., in]`."""
        self._drop = Dropout(self.dropout, self.seed)
        self._random = self._drop.generator  # Keras tracks attributes.
        for layer, width_in in zip(self.hidden, (input_shape[-1], *self.widths), strict=False):
            layer.build((None, width_in))

    def call(self, x: keras.KerasTensor, training: bool = False) -> keras.KerasTensor:
        """Returns `[*copies, ..., widths[-1]]` of `x` `[..., in]`, in its dtype."""
        for layer in self.hidden:
            x = self._drop(self._activate(layer(x)), training)
        return x


@keras.saving.register_keras_serializable(package="recsys")
class Tower(keras.layers.Layer):
    """Maps the features of one side to a vector; replicated on every device.

    Args:
        widths: Hidden widths [floats]; empty for one linear layer; None for no layer, so that the
            output is `anchor`.
        dim: Width of the output [floats].
        seed: Seed of the initial weights and of the dropout.
        activation: Keras name of the activation of the hidden layers.
        dropout: Dropout rate of the inputs and activations [0..1).
        training_dtype: Dtype in which training computes; inference computes in float32.
    """

    def __init__(
        self,
        widths: tuple[int, ...] | None,
        dim: int,
        seed: int = 0,
        activation: str = "silu",
        dropout: float = 0.0,
        training_dtype: str = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.widths = None if widths is None else tuple(widths)
        self.dim, self.seed, self.activation = dim, seed, activation
        self.dropout, self.training_dtype = dropout, training_dtype
        self.hidden = [
            Linear(width, seed=seed + i, name=f"hidden_{i}")
            for i, width in enumerate(self.widths or ())
        ]
        self.out = (
            None
            if self.widths is None
            else Linear(dim, use_bias=False, seed=seed + len(self.widths), name="out")
        )
        self._activate = keras.activations.get(activation)

    def build(self, input_shape: Any) -> None:
        """Creates the weights for inputs `[batch, in]`."""
        self._drop = Dropout(self.dropout, self.seed)
        self._random = self._drop.generator  # Keras tracks attributes.
        width_in = input_shape[-1]
        for layer in (*self.hidden, *([] if self.out is None else [self.out])):
            layer.build((None, width_in))
            width_in = layer.units

    def call(
        self, anchor: keras.KerasTensor, inputs: keras.KerasTensor, training: bool = False
    ) -> keras.KerasTensor:
        """Returns vectors `[batch, dim]` float32.

        Args:
            anchor: Vectors to which the output of the layers is added `[batch, dim]`.
            inputs: Concatenated inputs `[batch, in]`; ignored without layers.
            training: Whether to apply dropout and compute in `training_dtype`.
        """
        vector = self._drop(anchor, training)
        if self.out is not None:
            x = ops.cast(inputs, self.training_dtype if training else "float32")
            x = self._drop(x, training)
            for layer in self.hidden:
                x = self._drop(self._activate(layer(x)), training)
            vector = vector + ops.cast(self.out(x), "float32")
        return vector


@keras.saving.register_keras_serializable(package="recsys")
class LogTemperature(keras.layers.Layer):
    """A learned temperature, stored as its logarithm.

    After each step it is clipped to `LEARNED_TEMPERATURE`. Clipping in the loss instead would give
    it a zero gradient for good once it exceeds a bound.

    Args:
        start: Initial temperature, within `LEARNED_TEMPERATURE`.
    """

    def __init__(self, start: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.start = start

    def build(self, input_shape: Any = None) -> None:
        """Creates the logarithm, a scalar."""
        start = keras.initializers.Constant(math.log(self.start))
        low, high = (math.log(bound) for bound in LEARNED_TEMPERATURE)
        self.log = self.add_weight(
            name="log", shape=(), initializer=start, constraint=lambda x: ops.clip(x, low, high)
        )

    def temperature(self) -> keras.KerasTensor:
        """Returns the temperature, a scalar float32."""
        return ops.exp(self.log)


@keras.saving.register_keras_serializable(package="recsys")
class Latest(keras.metrics.Metric):
    """Metric that reports the last value."""

    def __init__(self, name: str = "latest", **kwargs: Any) -> None:
        super().__init__(name=name, **kwargs)
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, value: Any, *_: Any, **__: Any) -> None:
        """Sets the metric to `value`, a scalar."""
        self.value.assign(value)

    def result(self) -> Any:
        """Returns the last value, a scalar float32."""
        return ops.convert_to_tensor(self.value)


_OF_KERAS = {"_layers", "_metrics", "_tracker", "_inbound_nodes", "_outbound_nodes"}


@contextlib.contextmanager
def keras_seeds(seed: int) -> Iterator[None]:
    """Seeds Python's random numbers in the block: Keras draws the seeds of layers from them."""
    state = random.getstate()
    random.seed(seed)
    try:
        yield
    finally:
        random.setstate(state)


def name_attributes(layer: keras.layers.Layer) -> None:
    """Names the layers of a layer or a model by their attributes.

    Saved weights are found by the names of layers; by default Keras numbers layers per process.
    """
    for name, value in list(vars(layer).items()):
        if name not in _OF_KERAS and not name.startswith("_self_"):  # As TensorFlow's are.
            _name_layers(name, value)


def _name_layers(name: str, value: Any) -> None:
    """Names the layers of an attribute that have no explicit name."""
    if isinstance(value, list | tuple):
        for place, part in enumerate(value):
            _name_layers(f"{name}_{place}", part)
    elif isinstance(value, dict):
        for key, part in value.items():
            _name_layers(f"{name}_{key}", part)
    elif isinstance(value, keras.layers.Layer) and not value.built:
        if re.fullmatch(rf"{_snake_case(type(value).__name__)}(_\d+)?", value.name):
            value.name = name.strip("_")
        if isinstance(value, keras.Sequential):
            _name_layers("layer", value.layers)
        else:
            name_attributes(value)


def _snake_case(name: str) -> str:
    """Returns the default Keras name of a layer of this class."""
    name = re.sub(r"\W+", "", name)
    name = re.sub(r"(.)([A-Z][a-z]+)", r"\1_\2", name)
    return re.sub(r"([a-z])([A-Z])", r"\1_\2", name).lower()
