"""Collectives among groups of devices, which may move numbers in fewer bytes than they have.

In `bfloat16` a number takes two bytes instead of four, rounded to the nearest. In `int8` it
takes one, and each row a scale of four: its largest number is 127 of them. There numbers are
rounded up with the probability of what they are short of: rounded to the nearest, a gradient's
numbers below 1/254 of its largest would never arrive, now they do on average. The random bits
are a hash of the number itself and its column, so they are the same on every run.

They travel as integers of 32 bits, two or four of them in one: XLA would widen bfloat16 on a
CPU, and NCCL has no integers of 16 bits. Nothing is summed in few bits: what is to be summed
over devices is moved, and summed in float32.

The functions run inside a `shard_map` and are differentiable: a gradient goes back by the
reverse collective, in the same payload.
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
    """Returns `function`, called on every device of a mesh with the device's part of each array.

    Args:
        function: What a device computes of its parts; it may exchange with others.
        mesh: The devices.
        in_specs: How the arguments are split, as of `jax.shard_map`.
        out_specs: How what it returns is put together.
    """
    return jax.shard_map(
        function, mesh=mesh, in_specs=in_specs, out_specs=out_specs, check_vma=False
    )


@dataclasses.dataclass(frozen=True)
class Group:
    """The devices that exchange with each other, seen from one of them.

    An axis of the mesh is cut into groups of one size, and each keeps to itself. Those of
    stride 1 are neighbours, such as the devices of a node; of n devices in nodes of d, groups
    of stride d have the devices of one place in every node.

    Attributes:
        axis: Name of the axis.
        n_devices: Devices along it.
        size: Devices of a group.
        stride: Distance along the axis between the devices of a group.
    """

    axis: str
    n_devices: int
    size: int
    stride: int = 1

    @property
    def index_groups(self) -> list[list[int]] | None:
        """Places along the axis of each group's devices; None if it is all of them."""
        if self.size == self.n_devices:
            return None
        block = self.size * self.stride
        firsts = (b + s for b in range(0, self.n_devices, block) for s in range(self.stride))
        return [list(range(first, first + block, self.stride)) for first in firsts]

    def place(self) -> jax.Array:
        """Returns the place of this device in its group, a scalar int32."""
        place = jax.lax.axis_index(self.axis)
        return place if self.size == self.n_devices else place // self.stride % self.size

    def members(self) -> jax.Array:
        """Returns the places along the axis of the devices of this one's group `[size]` int32."""
        numbers = jnp.arange(self.size, dtype=jnp.int32)
        if self.size == self.n_devices:
            return numbers
        first = jax.lax.axis_index(self.axis) - self.place() * self.stride
        return first + numbers * self.stride


def over_gloo() -> bool:
    """Returns whether collectives go over gloo, whose reduce-scatter loses numbers.

    The end of what the first device gets may be wrong: others write their sums over what
    they still send (jax-ml/jax#40830). So no step may hold a reduce-scatter there.
    """
    return jax.default_backend() == "cpu" and jax.distributed.is_initialized()


def packed_width(width: int, payload: str) -> int:
    """Returns the numbers of four bytes that a row of `width` floats travels as."""
    return {"float32": width, "bfloat16": -(-width // 2), "int8": -(-width // 4) + 1}[payload]


def _packed(x: jax.Array, payload: str) -> jax.Array:
    """Returns `x` `[..., width]` float32 as it travels, `[..., packed_width]`."""
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
    """Returns `x` `[..., width]` float32 as it travels, `[..., packed_width]` uint32."""
    return jax.lax.bitcast_convert_type(_packed(x, payload), jnp.uint32)


def from_bits(bits: jax.Array, width: int, payload: str) -> jax.Array:
    """Returns what `to_bits` made the bits of `[..., width]` float32."""
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
    """Returns the parts that all devices have for this one, of any type, laid end to end.

    Args:
        x: A part for each device along the dimension `split`.
        group: The devices.
        split: Dimension that is cut.
        joined: Dimension along which the parts are laid.
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
        payload: What numbers travel as.
    """
    return _unpacked(all_to_all(_packed(x, payload), group), x.shape[-1], payload)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def rows_to_columns(x: jax.Array, group: Group, payload: str = "float32") -> jax.Array:
    """Returns whole rows `[n / size, width * size]` of columns `[n, width]`."""
    if payload == "float32":
        return all_to_all(x, group, 0, 1)
    parts = swap_chunks(x.reshape(group.size, -1, x.shape[1]), group, payload)
    return jnp.moveaxis(parts, 0, 1).reshape(parts.shape[1], -1)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def columns_to_rows(x: jax.Array, group: Group, payload: str = "float32") -> jax.Array:
    """Returns columns `[n * size, width / size]` of whole rows `[n, width]`."""
    if payload == "float32":
        return all_to_all(x, group, 1, 0)
    parts = jnp.moveaxis(x.reshape(x.shape[0], group.size, -1), 1, 0)
    return swap_chunks(parts, group, payload).reshape(-1, parts.shape[2])


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def reduce_scatter(x: jax.Array, group: Group, payload: str = "float32") -> jax.Array:
    """Returns this device's part `[n / size, ...]` of the sum of all `x` `[n, ...]`.

    Over gloo it is an all-to-all and an addition in the order of the devices.
    """
    if payload == "float32" and not over_gloo():
        groups = group.index_groups
        return jax.lax.psum_scatter(x, group.axis, axis_index_groups=groups, tiled=True)
    parts = x.reshape(group.size, -1, *x.shape[1:])
    return swap_chunks(parts, group, payload).sum(axis=0)


@functools.partial(jax.custom_vjp, nondiff_argnums=(1, 2))
def all_gather(x: jax.Array, group: Group, payload: str = "float32") -> jax.Array:
    """Returns the `x` `[n, ...]` of all devices, one after the other."""
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
