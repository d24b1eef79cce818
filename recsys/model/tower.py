"""A tower: all that is known of one side, in one vector."""

from __future__ import annotations

from typing import Any

import keras
from keras import ops

from recsys.model.linear import Dropout, Linear


@keras.saving.register_keras_serializable(package="recsys")
class Tower(keras.layers.Layer):
    """Maps what is known of one side to a vector; replicated on every device.

    Args:
        widths: Hidden widths [floats]; empty for a linear layer, None for no layer: the
            vector is the anchor.
        dim: Width of the output [floats].
        seed: Seed of the initial weights and of the dropout.
        activation: Activation of the hidden layers, as Keras calls it.
        dropout: Share of the inputs and activations that training drops [0..1).
        is_unit: Whether vectors are scaled to length 1.
        training_dtype: What training computes in; all else computes in float32.
    """

    def __init__(
        self,
        widths: tuple[int, ...] | None,
        dim: int,
        seed: int = 0,
        activation: str = "silu",
        dropout: float = 0.0,
        is_unit: bool = True,
        training_dtype: str = "float32",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.widths = None if widths is None else tuple(widths)
        self.dim, self.seed, self.activation = dim, seed, activation
        self.dropout, self.is_unit, self.training_dtype = dropout, is_unit, training_dtype
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
            anchor: A first guess `[batch, dim]`; the tower learns what to add.
            inputs: All that is known `[batch, in]`; not read by a tower without layers.
            training: Whether entries are dropped, and `training_dtype` counts.
        """
        vector = self._drop(anchor, training)
        if self.out is not None:
            x = ops.cast(inputs, self.training_dtype if training else "float32")
            x = self._drop(x, training)
            for layer in self.hidden:
                x = self._drop(self._activate(layer(x)), training)
            vector = vector + ops.cast(self.out(x), "float32")
        return _normalized(vector) if self.is_unit else vector

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        names = ("widths", "dim", "seed", "activation", "dropout", "is_unit", "training_dtype")
        return {**super().get_config(), **{name: getattr(self, name) for name in names}}


def _normalized(x: keras.KerasTensor) -> keras.KerasTensor:
    # An epsilon inside the root: a zero vector stays zero, with a finite gradient.
    return x / ops.sqrt(ops.sum(ops.square(x), axis=-1, keepdims=True) + 1e-12)
