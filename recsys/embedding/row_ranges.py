"""The rows of an interleaved table in logical order: each device is brought a range of them.

A device holds every so many rows of a table (`recsys.embedding.sharding`); a file holds
rows that follow each other. So the devices exchange rows by all-to-all, some of every range
at a time. All bits stay as they are, and no device or host ever holds more than its part.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any, cast

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from recsys.collectives import on_each_device
from recsys.embedding.sharding import SLOTS, logical_rows, physical_rows

_CHUNK_BYTES = 1 << 24
"""Rows that a device is brought at a time."""


def range_of(rows: int, part: int, n_parts: int) -> tuple[int, int]:
    """Returns the first row, and the one after the last, of one of several even ranges."""
    return rows * part // n_parts, rows * (part + 1) // n_parts


def in_ranges(value: jax.Array, rows: int) -> Iterator[tuple[int, jax.Array]]:
    """Yields the rows of a table by ranges, one of `range_of` a device along its axis.

    Every process of a run goes through it.

    Args:
        value: Weights or a slot `[places, width]` of an interleaved table, split by rows over
            an axis of n devices.
        rows: Logical rows.

    Yields:
        How many rows of each range came before, and the next ones `[n · c, width]`, split
        over the same axis. At the end of a range nothing is said of the rows past it.
    """
    sharding = cast(NamedSharding, value.sharding)
    n = devices_of(sharding)
    longest = -(-rows // n)
    width = value.shape[1]
    n_rows = max(1, _CHUNK_BYTES // (value.dtype.itemsize * width) // SLOTS) * SLOTS
    n_rows = min(n_rows, -(-longest // SLOTS) * SLOTS)
    bring = _bring(sharding, rows, n_rows)
    for before in range(0, longest, n_rows):
        yield before, bring(value, np.int32(before))


def devices_of(sharding: NamedSharding) -> int:
    """Returns how many devices share the rows of a table."""
    return int(sharding.mesh.shape[sharding.spec[0]])


@functools.lru_cache(maxsize=16)
def _bring(
    sharding: NamedSharding, rows: int, n_rows: int
) -> Callable[[jax.Array, np.int32], jax.Array]:
    """Returns a function that brings each device the next `n_rows` of its range."""
    axis, n = sharding.spec[0], devices_of(sharding)
    # Of `SLOTS` rows that follow each other each device holds as many, or one more or less.
    capacity = (n_rows // SLOTS + 1) * (-(-SLOTS // n) + (SLOTS % n > 0))
    bounds = np.array([range_of(rows, part, n) for part in range(n)], np.int32)

    def own(value: jax.Array, before: jax.Array) -> jax.Array:
        first, end = jnp.asarray(bounds)[jax.lax.axis_index(axis)]
        row = first + before + jnp.arange(n_rows, dtype=jnp.int32)
        place = physical_rows(jnp.minimum(row, rows - 1), n * value.shape[0])
        return _fetched(value, place, row < end, axis, n, capacity)

    specs = (sharding.spec, PartitionSpec())
    mapped = on_each_device(own, sharding.mesh, specs, sharding.spec)
    bring: Callable[[jax.Array, np.int32], jax.Array] = jax.jit(mapped)
    return bring


def _fetched(
    value: jax.Array, place: jax.Array, is_wanted: jax.Array, axis: str, n: int, capacity: int
) -> jax.Array:
    """Returns the rows at some places `[c, width]`, from all devices; inside a `shard_map`.

    Args:
        value: This device's rows `[places, width]`.
        place: Places in the whole table `[c]` int32.
        is_wanted: Which of them count `[c]` bool; nothing is said of the other rows.
        axis: The axis that the table is split over.
        n: Devices along it.
        capacity: The most rows that a device wants of another one.
    """
    n_places, width = value.shape
    owner = jnp.where(is_wanted, place // n_places, n)
    order = jnp.argsort(owner)  # Stable; those that don't count come last.
    owner = owner[order]
    at = jnp.arange(len(owner)) - jnp.searchsorted(owner, jnp.arange(n + 1))[owner]
    wanted = jnp.zeros((n, capacity), jnp.int32)
    wanted = wanted.at[owner, at].set(place[order] % n_places, mode="drop")
    requested = jax.lax.all_to_all(wanted, axis, 0, 0)
    got = jax.lax.all_to_all(value[requested], axis, 0, 0)
    ordered = got.at[owner, at].get(mode="clip")
    return jnp.zeros((len(owner), width), value.dtype).at[order].set(ordered)


def padded_otherwise(value: jax.Array, rows: int, places: int, n_places: int) -> jax.Array:
    """Returns a table's variable `[n_places, width]` in another number of places.

    Args:
        value: Weights or a slot, split by rows over an axis; behind its places there may be
            more, so that the devices divide them.
        rows: Logical rows.
        places: Places of `value` that are the table's.
        n_places: Places of what is returned; its padding is zero.
    """
    sharding = cast(NamedSharding, value.sharding)
    n, width = devices_of(sharding), value.shape[1]
    # All that a device wants may lie on one other.
    n_rows = max(1, _CHUNK_BYTES // (value.dtype.itemsize * width * n))
    n_rows = min(n_rows, n_places // n)
    move = _move(sharding, rows, places, n_places, n_rows)
    zeros = jax.jit(lambda: jnp.zeros((n_places, width), value.dtype), out_shardings=sharding)
    out = zeros()
    for before in range(0, n_places // n, n_rows):
        out = move(out, value, np.int32(before))
    return out


@functools.lru_cache(maxsize=16)
def _move(
    sharding: NamedSharding, rows: int, places: int, n_places: int, n_rows: int
) -> Callable[[jax.Array, jax.Array, np.int32], jax.Array]:
    """Returns a function that gives each device the next `n_rows` of its new places."""
    axis, n = sharding.spec[0], devices_of(sharding)

    def own(out: jax.Array, value: jax.Array, before: jax.Array) -> jax.Array:
        own_place = before + jnp.arange(n_rows, dtype=jnp.int32)
        new = jax.lax.axis_index(axis) * len(out) + own_place
        row = logical_rows(jnp.minimum(new, n_places - 1), n_places)
        is_wanted = (row < rows) & (own_place < len(out))
        place = physical_rows(jnp.minimum(row, rows - 1), places)
        got = _fetched(value, place, is_wanted, axis, n, n_rows)
        return out.at[own_place].set(jnp.where(is_wanted[:, None], got, 0), mode="drop")

    specs = (sharding.spec, sharding.spec, PartitionSpec())
    mapped = on_each_device(own, sharding.mesh, specs, sharding.spec)
    move: Callable[[jax.Array, jax.Array, np.int32], jax.Array] = jax.jit(mapped, donate_argnums=0)
    return move


def padded_on_host(
    table: np.ndarray, shape: tuple[int, ...], rows: int
) -> Callable[[Any], np.ndarray]:
    """Returns a function from an index to that part of `table` in physical rows of `shape`.

    Args:
        table: Values `[physical rows, width]`.
        shape: The other shape `[other physical rows, width]`; its padding is zero.
        rows: Logical rows.
    """

    def part(index: Any) -> np.ndarray:
        row = logical_rows(np.arange(shape[0])[index[0]], shape[0])
        columns = table[:, index[1]]
        out = np.zeros((len(row), columns.shape[1]), table.dtype)
        inside = row < rows
        out[inside] = columns[physical_rows(row[inside], len(table))]
        return out

    return part
