"""Initial values of a table, a function of the row alone.

A row starts with the same values whatever the mesh, the padding, and the number of
rows after it; and every device makes its own shard without the whole table.
"""

from __future__ import annotations

import math
from typing import Any

import jax
import jax.numpy as jnp
import keras

from recsys.errors import UsageError
from recsys.rounding import noise

_TRUNCATED_STD = 0.87962566103423978  # Standard deviation of a normal cut at ±2.


def initial_rows(initializer: Any, rows: jax.Array, dim: int, seed: int) -> jax.Array:
    """Returns the initial values `[n, dim]` float32 of `rows` `[n]` int32.

    Args:
        initializer: A Keras initializer of the families zeros, ones, constant, random
            uniform, random normal, truncated normal, variance scaling (with the width
            as fan), or its name.
        rows: Rows.
        dim: Width [floats].
        seed: Used where the initializer has none of its own.

    Raises:
        UsageError: Another initializer.
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
    """Returns the draw of a standard variable from a uniform one, its shift and its scale."""
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
    """Returns numbers strictly between 0 and 1 for all of `bits`, uint32.

    Of 23 bits: with one more, adding a half would round, once in 2²⁴ times up to 1,
    where a normal variable is infinite.
    """
    return ((bits >> 9).astype(jnp.float32) + 0.5) * (2.0**-23)


def _normal(u: jax.Array) -> jax.Array:
    return math.sqrt(2.0) * jax.lax.erf_inv(2.0 * u - 1.0)


def _truncated_normal(u: jax.Array) -> jax.Array:
    edge = math.erf(math.sqrt(2.0))  # P(|x| < 2)
    return math.sqrt(2.0) * jax.lax.erf_inv(edge * (2.0 * u - 1.0))
