"""Embeddings of a whole catalogue, split by item rows over devices of one or several processes.

A device has consecutive rows, in tiles that `ranking_devices` scores one by one. A process only
holds the rows of its devices; other rows are fetched from their devices.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from recsys.distributed.collectives import on_each_device
from recsys.distributed.ending import ending_after
from recsys.models.inference import Inference
from recsys.models.inputs import ModelInputs
from recsys.ragged import slices

_TILES = 16
"""Number of tiles of a small catalogue; a large one has more tiles of the largest size."""
_SMALLEST_TILE, _LARGEST_TILE = 128, 2**17
_EMBEDDED_ROWS = 1024
"""Number of rows to embed at a time on each device."""
_GATHERED_ROWS = 8192

EmbedRows = Callable[[np.ndarray], jax.Array]
"""Returns the embeddings `[n, dim]` float32 of rows `[n]`, distributed evenly over devices."""

_dot = functools.partial(
    jax.lax.dot_general, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
)


def tile_rows(n_rows: int) -> int:
    """Returns the number of item rows in a tile, a power of two, for any number of devices."""
    return min(max(power(-(-n_rows // _TILES)), _SMALLEST_TILE), _LARGEST_TILE)


def tiles_of_device(n_rows: int, n_devices: int) -> int:
    """Returns the number of tiles per device."""
    tiles = -(-n_rows // tile_rows(n_rows))
    return -(-tiles // n_devices)


def power(n: int) -> int:
    """Returns the smallest power of two that is at least `n`."""
    return 1 << max(n - 1, 0).bit_length()


def split(mesh: Mesh) -> NamedSharding:
    """Returns the sharding of tiles over all devices of a mesh, for any axes."""
    return NamedSharding(mesh, PartitionSpec(mesh.axis_names))


def products(query: jax.Array, table: jax.Array) -> jax.Array:
    """Returns the dot products, computed tile by tile with a fixed shape.

    Args:
        query: Query embeddings `[queries, dim]` float32.
        table: Tiles of candidates `[tiles, tile, dim]` float32.

    Returns:
        Scores `[tiles, queries, tile]` float32.
    """
    return jax.lax.map(lambda tile: _dot(query, tile, (((1,), (1,)), ((), ()))), table)


def tiled(x: np.ndarray, mesh: Mesh, axis: int = 0, fill: float = 0) -> jax.Array:
    """Returns an array divided into tiles along the axis of the item rows, on devices.

    Args:
        x: An array with an axis of item rows.
        mesh: The devices.
        axis: That axis; the result has the axes `[all tiles, …, tile, …]`.
        fill: Padding after the last row.
    """
    size, own = tile_rows(x.shape[axis]), tiles_of_device(x.shape[axis], mesh.size)
    before, after = x.shape[:axis], x.shape[axis + 1 :]
    shape = (own * mesh.size, *before, size, *after)

    def part(index: Any) -> np.ndarray:
        first = (index[0].start or 0) * size
        rows = x[(slice(None),) * axis + (slice(first, first + own * size),)]
        rows = padded(rows, own * size, axis, fill)
        return np.moveaxis(rows.reshape(*before, own, size, *after), axis, 0)

    return jax.make_array_from_callback(shape, split(mesh), part)


def padded(x: np.ndarray, size: int, axis: int = 0, fill: float = 0) -> np.ndarray:
    """Returns `x` with an axis padded to a size."""
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return np.pad(x, widths, constant_values=fill)


@dataclasses.dataclass(frozen=True)
class ShardedCandidates:
    """Candidate embeddings `[item rows, dim]` float32 on the devices of a mesh.

    With several processes, each must call the same methods in the same order.

    Attributes:
        table: `[all tiles, tile, dim]` float32, the tiles split over the devices; rows after
            the last one are arbitrary.
        n_rows: Number of item rows.
        mesh: The devices.
        width: Number of an embedding's entries to return; None: all.
    """

    table: jax.Array
    n_rows: int
    mesh: Mesh
    width: int | None = None

    @classmethod
    def of(cls, embeddings: np.ndarray, mesh: Mesh) -> ShardedCandidates:
        """Splits embeddings `[item rows, dim]` float32 over devices."""
        return cls(tiled(embeddings, mesh), len(embeddings), mesh)

    @classmethod
    def embedded(cls, embed: EmbedRows, n_rows: int, mesh: Mesh) -> ShardedCandidates:
        """Embeds a catalogue directly on its devices, some rows of each device at a time.

        Args:
            embed: Embeds item rows.
            n_rows: Number of item rows.
            mesh: The devices.
        """
        tile, tiles = tile_rows(n_rows), tiles_of_device(n_rows, mesh.size)
        n = min(tile, _EMBEDDED_ROWS)
        first = (np.arange(mesh.size)[:, None] * tiles * tile + np.arange(n)).ravel()
        table: Any = None
        started: Any = ()
        for before in range(0, tiles * tile, n):
            block = embed(np.minimum(first + before, n_rows - 1))
            with ending_after():  # One block ahead, so that devices needn't wait for the host.
                jax.block_until_ready(started)
            if table is None:
                table = _zeros((mesh.size * tiles, tile, block.shape[1]), mesh)
            table = _stored(table, block, *divmod(np.int32(before), np.int32(tile)), mesh=mesh)
            started = block
        return cls(table, n_rows, mesh)

    def taken(self, rows: np.ndarray) -> ShardedCandidates:
        """Returns the embeddings of rows `[n]`, on the same devices."""
        rows = rows.astype(np.int32)

        def embed(own: np.ndarray) -> jax.Array:
            return jax.device_put(_gathered(self.table, rows[own], self.mesh), split(self.mesh))

        return self.embedded(embed, len(rows), self.mesh)

    def without(self, is_left_out: np.ndarray) -> ShardedCandidates:
        """Returns the candidates with zeros in masked rows `[item rows]` bool; consumes itself."""
        mask = tiled(is_left_out, self.mesh)
        return dataclasses.replace(self, table=_zeroed(self.table, mask))

    def own_parts(self) -> Iterator[tuple[slice, np.ndarray]]:
        """Yields slices of the rows on this process' devices and their embeddings, by tile."""
        tile = self.table.shape[1]
        for shard in self.table.addressable_shards:
            index: Any = shard.index
            for n, part in enumerate(shard.data, index[0].start or 0):
                rows = slice(n * tile, min((n + 1) * tile, self.n_rows))
                if rows.start < self.n_rows:
                    yield rows, np.asarray(part)[: rows.stop - rows.start]

    @property
    def shape(self) -> tuple[int, int]:
        """Number of item rows, and of entries per embedding."""
        return self.n_rows, self.table.shape[2] if self.width is None else self.width

    def __len__(self) -> int:
        """Returns the number of item rows."""
        return self.n_rows

    def __getitem__(self, rows: np.ndarray) -> np.ndarray:
        """Returns the embeddings `[…, dim]` float32 of item rows `[…]`, in every process."""
        wanted = np.asarray(rows, np.int32)
        out = np.empty((wanted.size, self.shape[1]), np.float32)
        for part in slices(wanted.size, _GATHERED_ROWS):
            n = part.stop - part.start
            own = padded(wanted.ravel()[part], _GATHERED_ROWS)
            with ending_after():
                gathered = np.asarray(_gathered(self.table, own, self.mesh))
            out[part] = gathered[:n, : self.shape[1]]
        return out.reshape(*wanted.shape, self.shape[1])

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        """Returns all embeddings in memory; a large catalogue may not fit."""
        return np.asarray(self[np.arange(self.n_rows)], dtype)

    @functools.cached_property
    def largest_of_rows(self) -> np.ndarray:
        """The largest magnitude of each row `[item rows]` float64, or NaN if it contains one."""
        with ending_after():
            largest = np.asarray(_largest(self.table, self.mesh))
        return largest.reshape(-1)[: self.n_rows].astype(np.float64)

    def scores(self, query: np.ndarray) -> np.ndarray:
        """Returns the dot products `[queries, item rows]` of queries `[queries, dim]`."""
        with ending_after():
            scores = np.asarray(_scores(query, self.table, self.mesh))
        return scores[:, : self.n_rows]


def embedded_catalogue(
    inference: Inference, inputs: ModelInputs, mesh: Mesh | None
) -> np.ndarray | ShardedCandidates:
    """Returns the embedding of each item row, on the devices of a mesh; None: in memory."""
    if mesh is None:
        return inference.catalogue(inputs)
    embed = functools.partial(inference.candidates_in_place, inputs=inputs)
    return ShardedCandidates.embedded(embed, inputs.catalogue.n_rows, mesh)


def _zeros(shape: tuple[int, ...], mesh: Mesh) -> jax.Array:
    return jax.jit(lambda: jnp.zeros(shape, jnp.float32), out_shardings=split(mesh))()


@functools.partial(jax.jit, donate_argnums=0)
def _zeroed(table: jax.Array, mask: jax.Array) -> jax.Array:
    return jnp.where(mask[:, :, None], 0.0, table)


@functools.partial(jax.jit, static_argnames="mesh", donate_argnames="table")
def _stored(
    table: jax.Array, block: jax.Array, tile: np.int32, at: np.int32, mesh: Mesh
) -> jax.Array:
    """Writes rows of each device into one of its tiles, starting at a row of the tile."""

    def store(table: jax.Array, block: jax.Array, tile: jax.Array, at: jax.Array) -> jax.Array:
        return jax.lax.dynamic_update_slice(table, block[None], (tile, at, jnp.int32(0)))

    own, all_ = split(mesh).spec, PartitionSpec()
    return on_each_device(store, mesh, (own, own, all_, all_), own)(table, block, tile, at)


@functools.partial(jax.jit, static_argnames="mesh")
def _gathered(table: jax.Array, rows: np.ndarray, mesh: Mesh) -> jax.Array:
    """Returns the embeddings of rows `[n]`, on every device."""

    def gather(table: jax.Array, rows: jax.Array) -> jax.Array:
        own = table.reshape(-1, table.shape[2])
        at = rows - jax.lax.axis_index(mesh.axis_names) * len(own)
        here = jnp.where(at < 0, len(own), at)
        return jax.lax.psum(own.at[here].get(mode="fill", fill_value=0), mesh.axis_names)

    own, all_ = split(mesh).spec, PartitionSpec()
    return on_each_device(gather, mesh, (own, all_), all_)(table, rows)


@functools.partial(jax.jit, static_argnames="mesh")
def _largest(table: jax.Array, mesh: Mesh) -> jax.Array:
    """Returns the largest magnitude of each row `[all tiles, tile]`, or NaN."""
    # XLA's maximum isn't necessarily NaN if one of the numbers is.
    is_number = ~jnp.isnan(table).any(axis=2)
    largest = jnp.where(is_number, jnp.abs(table).max(axis=2), jnp.nan)
    return jax.lax.with_sharding_constraint(largest, NamedSharding(mesh, PartitionSpec()))


@functools.partial(jax.jit, static_argnames="mesh")
def _scores(query: np.ndarray, table: jax.Array, mesh: Mesh) -> jax.Array:
    """Returns the scores `[queries, all tiles · tile]` of queries."""

    def score(query: jax.Array, table: jax.Array) -> jax.Array:
        scores = jnp.moveaxis(products(query, table), 1, 0).reshape(len(query), -1)
        return jax.lax.all_gather(scores, mesh.axis_names, axis=1, tiled=True)

    own, all_ = split(mesh).spec, PartitionSpec()
    return on_each_device(score, mesh, (all_, own), all_)(query, table)
