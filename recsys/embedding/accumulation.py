"""Gradient accumulation for tables: what each step read is kept until the update.

A table has no gradient of its size that could be added up. So the readings of the
last steps are kept, with the gradients of what they returned, and the update takes
all of them as if one step had read them.
"""

from __future__ import annotations

from typing import Any

import jax
import jax.numpy as jnp
import keras

from recsys.errors import UsageError

Arrays = list[jax.Array]


class GradientBuffers(keras.layers.Layer):
    """Keeps the arrays of `steps` training steps; built when the first step's are known."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.parts: list[Any] = []
        self.built = True  # Most models never need it.

    def build_for(self, arrays: list[jax.ShapeDtypeStruct], steps: int) -> None:
        """Creates room `[steps, *shape]` for each of `arrays`, split as the batch is."""
        for number, array in enumerate(arrays):
            self._add(number, (steps, *array.shape), str(array.dtype))

    def _add(self, number: int, shape: tuple[int, ...], dtype: str) -> None:
        distribution = keras.distribution.distribution()
        layout = None
        if distribution is not None and len(shape) > 1:
            axes = (None, distribution.batch_dim_name, *(None for _ in shape[2:]))
            layout = keras.distribution.TensorLayout(axes, distribution.device_mesh)
        variable = keras.Variable(
            keras.initializers.Zeros(),
            shape,
            dtype,
            trainable=False,
            autocast=False,
            name=f"part_{number}",
            layout=layout,
        )
        setattr(self, f"part_{number}", variable)
        self.parts.append(variable)

    def save_own_variables(self, store: Any) -> None:
        """Saves a half-filled buffer too, so that a resumed run goes on exactly."""
        for number, variable in enumerate(self.parts):
            store[str(number)] = keras.ops.convert_to_numpy(variable)

    def load_own_variables(self, store: Any) -> None:
        """Loads what was saved, of whatever shape it is."""
        for number in range(len(store.keys())):
            array = store[str(number)]
            if number >= len(self.parts):
                self._add(number, tuple(array.shape), str(array.dtype))
            self.parts[number].assign(array)


def kept(buffers: Arrays, arrays: Arrays, at: jax.Array) -> Arrays:
    """Returns `buffers` with the arrays of a step at place `at`, a scalar int32.

    Raises:
        UsageError: The batch has another length than the first one.
    """
    lengths = [(b.shape[1:], a.shape) for b, a in zip(buffers, arrays, strict=True)]
    if any(room != shape for room, shape in lengths):
        raise UsageError(
            "R308",
            "Batches must be equally long where gradients are accumulated.",
            "Drop the last batch if it is shorter, or pad it with weight 0.",
            next(pair for pair in lengths if pair[0] != pair[1]),
        )
    return [
        jax.lax.dynamic_update_index_in_dim(buffer, array.astype(buffer.dtype), at, 0)
        for buffer, array in zip(buffers, arrays, strict=True)
    ]


def only_if(condition: jax.Array, update: Any, values: Arrays) -> Arrays:
    """Returns `update(values)` if `condition`, a scalar bool, else `values`.

    A loop of at most one turn: XLA changes what it carries in place, where it would
    copy what the branches of a conditional change.
    """

    def turn(carry: tuple[jax.Array, Arrays]) -> tuple[jax.Array, Arrays]:
        return jnp.zeros((), bool), update(carry[1])

    return jax.lax.while_loop(lambda carry: carry[0], turn, (condition, values))[1]
