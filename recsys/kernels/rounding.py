"""Stochastic rounding, which keeps small steps in a bfloat16 table.

Rounding to the nearest would drop every step shorter than half the distance between two
bfloat16 numbers. Rounding up with a probability in proportion to the step is right on average
(Gupta et al., ICML 2015). The random bits are a hash of the weight's row, column and step, so
they are the same on every mesh and after a restart.
"""

from __future__ import annotations

import jax
import jax.numpy as jnp

_ROW, _COLUMN = 0x9E3779B1, 0x85EBCA77


def mixed(x: jax.Array) -> jax.Array:
    """Returns the 32-bit finalizer of MurmurHash3 of `x`, uint32."""
    x = (x ^ (x >> 16)) * jnp.uint32(0x85EBCA6B)
    x = (x ^ (x >> 13)) * jnp.uint32(0xC2B2AE35)
    return x ^ (x >> 16)


def noise(
    rows: jax.Array, dim: int, seed: jax.Array, first_column: int | jax.Array = 0
) -> jax.Array:
    """Returns 32 random bits for each weight `[rows, dim]` uint32, a hash of row and column.

    Args:
        rows: Physical rows `[rows]` int32.
        dim: Number of columns.
        seed: Seed, uint32.
        first_column: First column.
    """
    columns = jnp.arange(dim, dtype=jnp.uint32) + jnp.asarray(first_column, jnp.uint32)
    by_column = mixed(columns * jnp.uint32(_COLUMN) ^ jnp.asarray(seed, jnp.uint32))
    by_row = rows.astype(jnp.uint32) * jnp.uint32(_ROW)
    return mixed(by_row[:, None] ^ by_column[None, :])


def round_stochastically(
    x: jax.Array,
    rows: jax.Array,
    seed: jax.Array,
    dtype: jnp.dtype,
    first_column: int | jax.Array = 0,
) -> jax.Array:
    """Rounds `x` `[rows, dim]` float32 to bfloat16, without bias.

    Args:
        x: Weights.
        rows: Their physical rows in the whole table `[rows]` int32.
        seed: Seed of the step, uint32.
        dtype: bfloat16.
        first_column: First column in the whole table.
    """
    bits = jax.lax.bitcast_convert_type(x, jnp.uint32)
    up = bits + (noise(rows, x.shape[-1], seed, first_column) >> 16)
    cut = jax.lax.bitcast_convert_type(up & jnp.uint32(0xFFFF0000), jnp.float32)
    return jnp.where(jnp.isfinite(x), cut, x).astype(dtype)
