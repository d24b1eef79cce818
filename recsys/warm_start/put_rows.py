"""Rows put into a table where it lies, chunk by chunk: no device and no host holds it twice."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from recsys.embedding.table import Table

_CHUNK_BYTES = 2**26


def chunk_rows(variable: Any) -> int:
    """Returns how many rows of a table's variable are put at a time."""
    return max(1, _CHUNK_BYTES // (4 * int(variable.shape[1])))


def put_rows(table: Table, variable: Any, chunks: Iterator[tuple[np.ndarray, np.ndarray]]) -> None:
    """Gives rows of a table their values; others keep what they have.

    Every process of a run calls it with the same chunks; each device takes its part of
    them. The arrays that the variable holds are freed as it goes.

    Args:
        table: The table.
        variable: Its weights, or one of its slots.
        chunks: Rows `[n]` and their values `[n, width]` float32; each row once, at most
            `chunk_rows` in a chunk.
    """
    value = variable.value
    put, on_all = _putter(value.sharding)
    n = min(chunk_rows(variable), table.rows)
    width = int(variable.shape[1])
    for rows, values in chunks:
        # A place behind the last one is none: all chunks are of one length, and compiled once.
        places = np.full(n, value.shape[0], np.int32)
        padded = np.zeros((n, width), np.float32)
        places[: len(rows)], padded[: len(rows)] = table.place(rows.astype(np.int64)), values
        value = put(value, on_all(places), on_all(padded))
    variable.assign(value)


def _putter(sharding: Any) -> tuple[Callable[..., jax.Array], Callable[[np.ndarray], Any]]:
    """Returns what puts values at places, and what brings both to all devices."""
    if not isinstance(sharding, NamedSharding):
        return _put_local, jnp.asarray
    everywhere = NamedSharding(sharding.mesh, PartitionSpec())

    def on_all(array: np.ndarray) -> jax.Array:
        return jax.make_array_from_callback(array.shape, everywhere, lambda index: array[index])

    return _put_on_mesh(sharding), on_all


@functools.partial(jax.jit, donate_argnums=0)
def _put_local(value: jax.Array, places: jax.Array, rows: jax.Array) -> jax.Array:
    return value.at[places].set(rows.astype(value.dtype), mode="drop")


@functools.lru_cache(maxsize=16)
def _put_on_mesh(sharding: NamedSharding) -> Callable[..., jax.Array]:
    row_axis, column_axis = (*sharding.spec, None, None)[:2]

    def own(value: jax.Array, places: jax.Array, rows: jax.Array) -> jax.Array:
        n_places, width = value.shape
        if row_axis is not None:
            places = places - jax.lax.axis_index(row_axis) * n_places
        if column_axis is not None:
            first = jax.lax.axis_index(column_axis) * width
            rows = jax.lax.dynamic_slice_in_dim(rows, first, width, axis=1)
        # What lies on another device comes before or behind; a negative place would wrap.
        places = jnp.where((places >= 0) & (places < n_places), places, n_places)
        return value.at[places].set(rows.astype(value.dtype), mode="drop")

    spec, all_of_it = sharding.spec, PartitionSpec()
    mapped = jax.shard_map(
        own,
        mesh=sharding.mesh,
        in_specs=(spec, all_of_it, all_of_it),
        out_specs=spec,
        check_vma=False,
    )
    return jax.jit(mapped, donate_argnums=0, out_shardings=sharding)
