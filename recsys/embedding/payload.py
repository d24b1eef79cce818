"""Collectives that move rows in fewer bytes than they are computed in.

In `bfloat16` a number takes two bytes instead of four. Two of them travel as one integer of
32 bits: XLA would widen bfloat16 on a CPU, and NCCL has no integers of 16 bits. Nothing is
summed in bfloat16: what is to be summed over devices is moved, and summed in float32.

Everything here runs inside a `shard_map` and is differentiable: a gradient goes back by the
reverse collective, in the same payload.
"""

from __future__ import annotations

import functools

import jax
import jax.numpy as jnp

PAYLOADS = ("float32", "bfloat16")


def packed_width(width: int, payload: str) -> int:
    """Returns the numbers of four bytes that a row of `width` floats travels as."""
    return width if payload == "float32" else -(-width // 2)


def _packed(x: jax.Array, payload: str) -> jax.Array:
    """Returns `x` `[..., width]` float32 as it travels, `[..., packed_width]`."""
    if payload == "float32":
        return x
    halves = jnp.pad(x.astype(jnp.bfloat16), [(0, 0)] * (x.ndim - 1) + [(0, x.shape[-1] % 2)])
    return jax.lax.bitcast_convert_type(halves.reshape(*x.shape[:-1], -1, 2), jnp.uint32)


def _unpacked(x: jax.Array, width: int, payload: str) -> jax.Array:
    if payload == "float32":
        return x
    halves = jax.lax.bitcast_convert_type(x, jnp.bfloat16).reshape(*x.shape[:-1], -1)
    return halves[..., :width].astype(jnp.float32)


def swap_chunks(x: jax.Array, axis: str, payload: str) -> jax.Array:
    """Returns the chunks that all devices have for this one.

    Args:
        x: A chunk for each device `[devices, n, width]` float32.
        axis: Name of the mesh axis.
        payload: `float32` or `bfloat16`.
    """
    moved = jax.lax.all_to_all(_packed(x, payload), axis, 0, 0, tiled=True)
    return _unpacked(moved, x.shape[-1], payload)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def rows_to_columns(x: jax.Array, axis: str, payload: str) -> jax.Array:
    """Returns whole rows `[n / devices, width * devices]` of columns `[n, width]`."""
    if payload == "float32":
        return jax.lax.all_to_all(x, axis, 0, 1, tiled=True)
    parts = swap_chunks(x.reshape(jax.lax.axis_size(axis), -1, x.shape[1]), axis, payload)
    return jnp.moveaxis(parts, 0, 1).reshape(parts.shape[1], -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def columns_to_rows(x: jax.Array, axis: str, payload: str) -> jax.Array:
    """Returns columns `[n * devices, width / devices]` of whole rows `[n, width]`."""
    if payload == "float32":
        return jax.lax.all_to_all(x, axis, 1, 0, tiled=True)
    parts = jnp.moveaxis(x.reshape(x.shape[0], jax.lax.axis_size(axis), -1), 1, 0)
    return swap_chunks(parts, axis, payload).reshape(-1, parts.shape[2])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def reduce_scatter(x: jax.Array, axis: str, payload: str) -> jax.Array:
    """Returns this device's part `[n / devices, width]` of the sum of all `x` `[n, width]`."""
    if payload == "float32":
        return jax.lax.psum_scatter(x, axis, scatter_dimension=0, tiled=True)
    parts = x.reshape(jax.lax.axis_size(axis), -1, x.shape[1])
    return swap_chunks(parts, axis, payload).sum(axis=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def all_gather(x: jax.Array, axis: str, payload: str) -> jax.Array:
    """Returns the `x` `[n, width]` of all devices, one after the other."""
    moved = jax.lax.all_gather(_packed(x, payload), axis, tiled=True)
    return _unpacked(moved, x.shape[-1], payload)


for forward, backward in (
    (rows_to_columns, columns_to_rows),
    (columns_to_rows, rows_to_columns),
    (reduce_scatter, all_gather),
    (all_gather, reduce_scatter),
):
    forward.defvjp(
        functools.partial(lambda move, x, *options: (move(x, *options), None), forward),
        functools.partial(lambda move, axis, payload, _, g: (move(g, axis, payload),), backward),
    )
