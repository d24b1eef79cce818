"""What each device does with its part of the catalogue for a block of queries.

Scores are `[tiles, queries, tile]`: a tile is so many item rows, and the rows of a
device follow each other. NaN stands for what isn't ranked: it is neither above nor equal
to any score.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
from jax.sharding import Mesh, PartitionSpec

AXIS = "items"
POSITIVES_STEP = 16
"""Positives that are counted at a time."""

_dot = functools.partial(
    jax.lax.dot_general, precision=jax.lax.Precision.HIGHEST, preferred_element_type=jnp.float32
)


class Shapes(NamedTuple):
    """Sizes that a program is compiled for.

    Attributes:
        block: Queries.
        tile: Item rows of a tile.
        tiles: Tiles of each device.
        group: Item rows of which one maximum is taken; they divide a tile.
        k: Length of the top lists.
    """

    block: int
    tile: int
    tiles: int
    group: int
    k: int


class Pairs(NamedTuple):
    """Queries of the block and item rows, filled up with rows beyond the last.

    Attributes:
        query: `[pairs]` int32.
        row: `[pairs]` int32.
    """

    query: Any
    row: Any


class Found(NamedTuple):
    """What all devices found together.

    Attributes:
        before: Items that come before each positive `[positives]` int32.
        top: Best item rows `[block, k]` int32.
        top_scores: Their scores `[block, k]` float32, -inf where nothing is left.
        not_a_number: An item row whose score is NaN `[block]` int32, or -1.
    """

    before: jax.Array
    top: jax.Array
    top_scores: jax.Array
    not_a_number: jax.Array


@functools.lru_cache(maxsize=64)
def program(shapes: Shapes, mesh: Mesh, is_given: bool) -> Callable[..., Found]:
    """Returns the compiled program of all devices of `mesh`.

    Its arguments:
        table: Candidates `[all tiles, tile, dim]` float32; or scores
            `[all tiles, block, tile]` if `is_given`. Split over the devices.
        bias: Added to the scores `[all tiles, tile]` float32; NaN: no candidate. Split.
        query: Query embeddings `[block, dim]` float32; not used if `is_given`.
        hidden: `Pairs` that aren't ranked.
        positives: `Pairs` that are counted for, a multiple of `POSITIVES_STEP`.
    """
    own, all_ = PartitionSpec(AXIS), PartitionSpec()
    part = functools.partial(_part, shapes, is_given)
    specs = (own, own, all_, all_, all_)
    mapped = jax.shard_map(part, mesh=mesh, in_specs=specs, out_specs=all_, check_vma=False)
    return jax.jit(mapped)


def _part(
    shapes: Shapes,
    is_given: bool,
    table: jax.Array,
    bias: jax.Array,
    query: jax.Array,
    hidden: Pairs,
    positives: Pairs,
) -> Found:
    first = jax.lax.axis_index(AXIS) * shapes.tiles
    scores = table if is_given else _products(query, table)
    # Those of row 0 or of no row at all may be anything.
    bad = jnp.isnan(scores) & ~jnp.isnan(bias)[:, None, :]
    scores = scores + bias[:, None, :]
    scores = scores.at[_places(shapes, first, hidden)].set(jnp.nan, mode="drop")
    own = scores.at[_places(shapes, first, positives)].get(mode="fill", fill_value=-jnp.inf)
    own = jax.lax.pmax(own, AXIS)
    rows = _rows(shapes, first)
    before = jax.lax.psum(_before(scores, rows, own, positives), AXIS)
    top, top_scores = _merged(shapes, *_top(shapes, scores, first))
    worst = jnp.where(bad, rows[:, None, :], -1).max(axis=(0, 2))
    return Found(before, top, top_scores, jax.lax.pmax(worst, AXIS))


def _products(query: jax.Array, table: jax.Array) -> jax.Array:
    """Returns the dot products, each tile's by an operation of one shape."""
    return jax.lax.map(lambda tile: _dot(query, tile, (((1,), (1,)), ((), ()))), table)


def _places(shapes: Shapes, first: jax.Array, pairs: Pairs) -> tuple[jax.Array, ...]:
    """Returns where pairs are among the scores of this device; others are past the end."""
    tile = pairs.row // shapes.tile - first
    return jnp.where(tile < 0, shapes.tiles, tile), pairs.query, pairs.row % shapes.tile


def _rows(shapes: Shapes, first: jax.Array) -> jax.Array:
    """Returns the item rows of this device `[tiles, tile]`."""
    rows = jnp.arange(shapes.tiles * shapes.tile, dtype=jnp.int32)
    return first * shapes.tile + rows.reshape(shapes.tiles, shapes.tile)


def _before(scores: jax.Array, rows: jax.Array, own: jax.Array, positives: Pairs) -> jax.Array:
    def some(args: tuple[jax.Array, jax.Array, jax.Array]) -> jax.Array:
        query, row, own = (x[None, :, None] for x in args)
        theirs = scores[:, query[0, :, 0], :]
        before = (theirs > own) | ((theirs == own) & (rows[:, None, :] < row))
        return jnp.sum(before, axis=(0, 2), dtype=jnp.int32)

    split = [x.reshape(-1, POSITIVES_STEP) for x in (positives.query, positives.row, own)]
    return jax.lax.map(some, tuple(split)).reshape(-1)


def _top(shapes: Shapes, scores: jax.Array, first: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Returns the best rows of this device, and their scores, `[block, up to k]`.

    The k best are in the k groups whose maxima are best: what is in another group has the
    maxima of all of these before it, or equal and with smaller rows.
    """
    groups_a_tile = shapes.tile // shapes.group
    ranked = jnp.where(jnp.isnan(scores), -jnp.inf, scores)
    ranked = ranked.reshape(shapes.tiles, shapes.block, groups_a_tile, shapes.group)
    most = jnp.moveaxis(ranked.max(axis=3), 1, 0).reshape(shapes.block, -1)
    _, groups = jax.lax.top_k(most, min(shapes.k, most.shape[1]))
    # In the order of their rows: of equal scores `top_k` takes the one that comes first.
    groups = jnp.sort(groups, axis=1)
    query = jnp.arange(shapes.block)[:, None]
    members = ranked[groups // groups_a_tile, query, groups % groups_a_tile]
    members = members.reshape(shapes.block, -1)
    values, places = jax.lax.top_k(members, min(shapes.k, members.shape[1]))
    group = jnp.take_along_axis(groups, places // shapes.group, axis=1)
    rows = first * shapes.tile + group * shapes.group + places % shapes.group
    return rows.astype(jnp.int32), values


def _merged(shapes: Shapes, rows: jax.Array, values: jax.Array) -> tuple[jax.Array, jax.Array]:
    # One device's after the other's: of equal scores the smaller rows come first.
    rows, values = (jax.lax.all_gather(x, AXIS, axis=1, tiled=True) for x in (rows, values))
    values, places = jax.lax.top_k(values, shapes.k)
    return jnp.take_along_axis(rows, places, axis=1), values
