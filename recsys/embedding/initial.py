"""Initial values of a table, as a function of the row.

A row has the same initial values on every mesh, with any padding and any number of rows after
it. Each device computes its own part, without the whole table.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp
import keras
from jax.sharding import NamedSharding, PartitionSpec

from recsys.distributed.collectives import on_each_device
from recsys.embedding.sharding import TableSharding
from recsys.errors import UsageError
from recsys.kernels.rounding import noise

Values = Callable[[jax.Array], jax.Array]
"""Maps physical rows `[n]` int32 to their initial values `[n, width]` float32."""

_BLOCK_BYTES = 2**22
_TRUNCATED_STD = 0.87962566103423978  # Standard deviation of a normal cut at ±2.

Where = Callable[[], tuple[TableSharding, PartitionSpec]]
"""Returns a table's sharding, and the partition of one of its variables."""


class Filled(keras.initializers.Initializer):
    """Fills a slot of a table with one value, on its devices.

    Args:
        value: The value.
        where: Returns the sharding.
    """

    def __init__(self, value: float, where: Where) -> None:
        self._value, self._where = value, where

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        """Returns the initial value `shape`."""
        if keras.backend.backend() != "jax":
            return keras.ops.full(shape, self._value, dtype)
        sharding, spec = self._where()
        device = None if sharding.mesh is None else NamedSharding(sharding.mesh, spec)
        return jnp.full(shape, self._value, dtype, device=device)


class InPlace(keras.initializers.Initializer):
    """Initializes a variable of a table on its devices, each its own part, block by block.

    Keras creates a variable below 250 MiB per device as a whole on one device, then splits it.

    Args:
        values: Initial values of physical rows.
        where: Returns the sharding.
    """

    def __init__(self, values: Values, where: Where) -> None:
        self._values, self._where = values, where

    def __call__(self, shape: Any, dtype: Any = None) -> Any:
        """Returns the initial value `shape`."""
        if keras.backend.backend() != "jax":
            # Other backends only read tables, whose values are loaded later.
            return keras.ops.zeros(shape, dtype)
        sharding, spec = self._where()
        if sharding.mesh is None:
            return jax.jit(functools.partial(self._part, shape, dtype, 0))()
        if sharding.split == "columns":
            # Partial rows are computed in another order, which changes the last bits.
            whole = functools.partial(self._part, shape, dtype, 0)
            return jax.jit(whole, out_shardings=NamedSharding(sharding.mesh, spec))()

        rows = shape[0] // sharding.n_shards

        def own() -> jax.Array:
            axis = sharding.table_axis
            first = 0 if axis is None else jax.lax.axis_index(axis) * rows
            return self._part((rows, shape[1]), dtype, first)

        return jax.jit(on_each_device(own, sharding.mesh, (), spec))()

    def _part(self, shape: tuple[int, int], dtype: Any, first: int | jax.Array) -> jax.Array:
        """Returns the physical rows from `first` on, computed block by block."""
        rows, width = shape
        size = min(rows, max(1, _BLOCK_BYTES // (4 * width)))

        def write(i: jax.Array, out: jax.Array) -> jax.Array:
            start = jnp.minimum(i * size, rows - size)  # The last blocks may overlap.
            block = self._values(first + start + jnp.arange(size, dtype=jnp.int32))
            return jax.lax.dynamic_update_slice_in_dim(out, block.astype(dtype), start, axis=0)

        return jax.lax.fori_loop(0, -(-rows // size), write, jnp.zeros(shape, dtype))


def initial_rows(initializer: Any, rows: jax.Array, dim: int, seed: int) -> jax.Array:
    """Returns the initial values `[n, dim]` float32 of `rows` `[n]` int32.

    Args:
        initializer: A Keras initializer or its name: zeros, ones, constant, random uniform,
            random normal, truncated normal or variance scaling (with the width as fan).
        rows: Logical rows.
        dim: Width [floats].
        seed: Seed if the initializer has none.

    Raises:
        UsageError: The initializer isn't supported (R352).
    """
    initializer = keras.initializers.get(initializer)
    config = initializer.get_config()
    kind = type(initializer).__name__
    own = config.get("seed")
    seed = int(own) if isinstance(own, int) else seed
    if kind in ("Zeros", "Ones", "Constant"):
        value = {"Zeros": 0.0, "Ones": 1.0}.get(kind, config.get("value"))
        return jnp.full((rows.shape[0], dim), value, jnp.float32)
    draw, shift, scale = _distribution(initializer, kind, config, dim)
    bits = noise(rows, dim, jnp.uint32(seed & 0xFFFFFFFF))  # A hash of row, column and seed.
    return shift + scale * draw(_between_0_and_1(bits))


def _distribution(initializer: Any, kind: str, config: dict[str, Any], dim: int) -> Any:
    """Returns the map from uniform to standard variables, its shift and its scale."""
    if kind == "RandomUniform":
        low, high = config["minval"], config["maxval"]
        return (lambda u: u), low, high - low
    if kind == "RandomNormal":
        return _normal, config["mean"], config["stddev"]
    if kind == "TruncatedNormal":
        return _truncated_normal, config["mean"], config["stddev"]
    if isinstance(initializer, keras.initializers.VarianceScaling):
        return _variance_scaling(initializer, dim)
    raise UsageError(
        "R352",
        "A table's initializer must be one whose values don't depend on the table's size.",
        "Use zeros, constant, random_uniform, random_normal, truncated_normal or a"
        " variance_scaling initializer.",
        kind,
    )


def _variance_scaling(initializer: Any, dim: int) -> Any:
    variance = initializer.scale / max(1.0, dim)
    if initializer.distribution == "uniform":
        limit = math.sqrt(3.0 * variance)
        return (lambda u: u), -limit, 2.0 * limit
    if initializer.distribution == "truncated_normal":
        return _truncated_normal, 0.0, math.sqrt(variance) / _TRUNCATED_STD
    return _normal, 0.0, math.sqrt(variance)


def _between_0_and_1(bits: jax.Array) -> jax.Array:
    """Maps `bits`, uint32, to numbers strictly between 0 and 1.

    Uses 23 bits: with 24, adding a half would round up to 1 once in 2²⁴ times, and the normal
    variable would be infinite.
    """
    return ((bits >> 9).astype(jnp.float32) + 0.5) * (2.0**-23)


def _normal(u: jax.Array) -> jax.Array:
    return math.sqrt(2.0) * jax.lax.erf_inv(2.0 * u - 1.0)


def _truncated_normal(u: jax.Array) -> jax.Array:
    edge = math.erf(math.sqrt(2.0))  # P(|x| < 2)
    return math.sqrt(2.0) * jax.lax.erf_inv(edge * (2.0 * u - 1.0))
