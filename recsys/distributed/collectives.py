"""Collectives in groups of devices, optionally with a compressed payload.

`bfloat16` takes two bytes per number instead of four, rounded to the nearest. `int8` takes one,
plus a float32 scale per row that maps its largest magnitude to 127. It is rounded
stochastically: with rounding to the nearest, numbers of a gradient below 1/254 of its largest
would always become 0; now they are right on average. The random bits are a hash of the number
and its column, so they are the same in every run.

Payloads are packed into 32-bit integers: XLA would widen bfloat16 on a CPU, and NCCL has no
16-bit integers. Sums are never computed in the payload's type: the summands are moved, and
summed in float32.

The functions run inside a `shard_map` and are differentiable: a gradient takes the reverse
collective with the same payload.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable
from typing import Any

import jax
import jax.numpy as jnp

from recsys.kernels.rounding import mixed

PAYLOADS = ("float32", "bfloat16", "int8")
_LEVELS = 127
_COLUMN = 0x9E3779B1


def on_each_device(
    function: Callable[..., Any], mesh: Any, in_specs: Any, out_specs: Any
) -> Callable[..., Any]:
    """Returns `function` mapped over the devices of a mesh, each with its part of the arguments.

    Args:
        function: Function of a device's parts; it may use collectives.
        mesh: The devices.
        in_specs: Partition of the arguments, as for `jax.shard_map`.
        out_specs: Partition of the results.
    """
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


@dataclasses.dataclass(frozen=True)
class Group:
    """A group of devices that exchange with each other, seen from one of them.

    An axis of the mesh is divided into groups of equal size. Groups of stride 1 consist of
    neighbours, such as the devices of a node. With nodes of d devices, a group of stride d has
    the device at the same position in every node.

    Attributes:
        axis: Name of the axis.
        n_devices: Number of devices along the axis.
        size: Number of devices in a group.
        stride: Distance along the axis between the devices of a group.
    """

    axis: str
    n_devices: int
    size: int
    stride: int = 1

    @property
    def index_groups(self) -> list[list[int]] | None:
        """Indices along the axis of each group's devices; None if there is one group."""
        if self.size == self.n_devices:
            return None
        block = self.size * self.stride
        firsts = (b + s for b in range(0, self.n_devices, block) for s in range(self.stride))
        return [list(range(first, first + block, self.stride)) for first in firsts]

    def index(self) -> jax.Array:
        """Returns the index of this device in its group, a scalar int32."""
        index = jax.lax.axis_index(self.axis)
        return index if self.size == self.n_devices else index // self.stride % self.size

    def members(self) -> jax.Array:
        """Returns the indices along the axis of the devices of this one's group `[size]` int32."""
        numbers = jnp.arange(self.size, dtype=jnp.int32)
        if self.size == self.n_devices:
            return numbers
        first = jax.lax.axis_index(self.axis) - self.index() * self.stride
        return first + numbers * self.stride


def over_gloo() -> bool:
    """Returns whether collectives run over gloo, whose reduce-scatter loses numbers.

    The end of the first device's result may be wrong: others write their sums into buffers
    that are still being sent (jax-ml/jax#40830). So no step may use reduce-scatter there.
    """
    return jax.default_backend() == "cpu" and jax.distributed.is_initialized()


def packed_width(width: int, payload: str) -> int:
    """Returns the number of 32-bit words for a row of `width` floats."""
    return {"float32": width, "bfloat16": -(-width // 2), "int8": -(-width // 4) + 1}[payload]


def _packed(x: jax.Array, payload: str) -> jax.Array:
    """Returns `x` `[..., width]` float32 packed for transport, `[..., packed_width]`."""
    if payload == "float32":
        return x
    if payload == "int8":
        return _as_bytes(x)
    halves = jnp.pad(x.astype(jnp.bfloat16), [(0, 0)] * (x.ndim - 1) + [(0, x.shape[-1] % 2)])
    return jax.lax.bitcast_convert_type(halves.reshape(*x.shape[:-1], -1, 2), jnp.uint32)


def _unpacked(x: jax.Array, width: int, payload: str) -> jax.Array:
    if payload == "float32":
        return x
    if payload == "int8":
        scale = jax.lax.bitcast_convert_type(x[..., :1], jnp.float32)
        numbers = jax.lax.bitcast_convert_type(x[..., 1:], jnp.int8).reshape(*x.shape[:-1], -1)
        return numbers[..., :width].astype(jnp.float32) * scale
    halves = jax.lax.bitcast_convert_type(x, jnp.bfloat16).reshape(*x.shape[:-1], -1)
    return halves[..., :width].astype(jnp.float32)


def _as_bytes(x: jax.Array) -> jax.Array:
    """Returns rows `[..., width]` as a scale and bytes `[..., 1 + width / 4]` uint32."""
    scale = jnp.max(jnp.abs(x), axis=-1, keepdims=True) / _LEVELS
    steps = x / jnp.where(scale > 0, scale, 1.0)
    column = jnp.arange(x.shape[-1], dtype=jnp.uint32) * jnp.uint32(_COLUMN)
    bits = mixed(jax.lax.bitcast_convert_type(x, jnp.uint32) ^ column)
    chance = (bits >> 8).astype(jnp.float32) * 2.0**-24
    numbers = jnp.clip(jnp.floor(steps + chance), -_LEVELS, _LEVELS).astype(jnp.int8)
    room = [(0, 0)] * (x.ndim - 1) + [(0, -x.shape[-1] % 4)]
    fours = jnp.pad(numbers, room).reshape(*x.shape[:-1], -1, 4)
    parts = [jax.lax.bitcast_convert_type(part, jnp.uint32) for part in (scale, fours)]
    return jnp.concatenate(parts, axis=-1)


def to_bits(x: jax.Array, payload: str) -> jax.Array:
    """Returns `x` `[..., width]` float32 packed for transport, `[..., packed_width]` uint32."""
    return jax.lax.bitcast_convert_type(_packed(x, payload), jnp.uint32)


def from_bits(bits: jax.Array, width: int, payload: str) -> jax.Array:
    """Returns the `[..., width]` float32 that `to_bits` packed."""
    is_whole = payload == "float32"
    packed = jax.lax.bitcast_convert_type(bits, jnp.float32) if is_whole else bits
    return _unpacked(packed, width, payload)


def gather_parts(x: jax.Array, group: Group) -> jax.Array:
    """Returns the `x` `[n, ...]` of all devices, of any type, one after the other."""
    return all_gather(x, group) if jnp.issubdtype(x.dtype, jnp.floating) else _gather(x, group)


def _gather(x: jax.Array, group: Group) -> jax.Array:
    # JAX would take a gradient back by psum_scatter.
    return jax.lax.all_gather(x, group.axis, axis_index_groups=group.index_groups, tiled=True)


def all_to_all(x: jax.Array, group: Group, split: int = 0, joined: int = 0) -> jax.Array:
    """Returns the parts that all devices have for this one, of any dtype, concatenated.

    Args:
        x: A part for each device along the dimension `split`.
        group: The devices.
        split: Dimension that is split.
        joined: Dimension along which the parts are concatenated.
    """
    if group.size == 1:
        return x
    groups = group.index_groups
    return jax.lax.all_to_all(x, group.axis, split, joined, axis_index_groups=groups, tiled=True)


def swap_chunks(x: jax.Array, group: Group, payload: str = "float32") -> jax.Array:
    """Returns the chunks that all devices have for this one.

    Args:
        x: A chunk for each device `[size, n, ..., width]` float32.
        group: The devices.
        payload: Dtype in transport.
    """
    return _unpacked(all_to_all(_packed(x, payload), group), x.shape[-1], payload)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def rows_to_columns(x: jax.Array, group: Group, payload: str = "float32") -> jax.Array:
    """Exchanges columns of all rows `[n, width]` for whole rows `[n / size, width * size]`."""
    if payload == "float32":
        return all_to_all(x, group, 0, 1)
    parts = swap_chunks(x.reshape(group.size, -1, x.shape[1]), group, payload)
    return jnp.moveaxis(parts, 0, 1).reshape(parts.shape[1], -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def columns_to_rows(x: jax.Array, group: Group, payload: str = "float32") -> jax.Array:
    """Exchanges whole rows `[n, width]` for columns of all rows `[n * size, width / size]`."""
    if payload == "float32":
        return all_to_all(x, group, 1, 0)
    parts = jnp.moveaxis(x.reshape(x.shape[0], group.size, -1), 1, 0)
    return swap_chunks(parts, group, payload).reshape(-1, parts.shape[2])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def reduce_scatter(x: jax.Array, group: Group, payload: str = "float32") -> jax.Array:
    """Returns this device's part `[n / size, ...]` of the sum of all `x` `[n, ...]`.

    With gloo or a compressed payload it is an all-to-all, and a sum in the order of the devices.
    """
    if payload == "float32" and not over_gloo():
        groups = group.index_groups
        return jax.lax.psum_scatter(x, group.axis, axis_index_groups=groups, tiled=True)
    parts = x.reshape(group.size, -1, *x.shape[1:])
    return swap_chunks(parts, group, payload).sum(axis=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def all_gather(x: jax.Array, group: Group, payload: str = "float32") -> jax.Array:
    """Returns the `x` `[n, ...]` of all devices, concatenated."""
    return _unpacked(_gather(_packed(x, payload), group), x.shape[-1], payload)


for forward, backward in (
    (rows_to_columns, columns_to_rows),
    (columns_to_rows, rows_to_columns),
    (reduce_scatter, all_gather),
    (all_gather, reduce_scatter),
):
    forward.defvjp(
        functools.partial(lambda move, x, *options: (move(x, *options), None), forward),
        functools.partial(lambda move, group, payload, _, g: (move(g, group, payload),), backward),
    )
