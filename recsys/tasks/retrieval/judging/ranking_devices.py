"""Ranking in JAX, with the candidates spread over devices of one or several processes.

For accelerators, hosts without a C compiler, and candidates on the devices of several processes.
A device holds consecutive item rows, in tiles, and scores a block of queries against all of them.
Tiles and blocks have the same shapes on any number of devices, so that scores have the same
bits. Devices exchange the scores of the positives, counts, and top lists. Rows of other processes
are fetched from their devices.

Scores are `[tiles, queries, tile]`: a tile is a fixed number of item rows, and a device has
consecutive rows. NaN marks scores that aren't ranked: it is neither greater than nor equal to
any score.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Callable, Iterator
from typing import Any, NamedTuple

import jax
import jax.numpy as jnp
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from recsys.distributed.collectives import on_each_device
from recsys.distributed.coordination import ending_after
from recsys.kernels.rank_jobs import RankResults
from recsys.models.inference import Inference
from recsys.models.inputs import ModelInputs
from recsys.ragged import RaggedRows, slices
from recsys.tasks.judging_side import Progress
from recsys.tasks.retrieval.judging.scores import DotProducts, Scorer, as_scores, check_scores

# Maximum number of scores in a block; a device holds its share of them up to three times.
_CPU_SCORES = 2**24
_SCORES = 2**27
_FEWEST_QUERIES = 8


def rank_on_devices(
    scorer: Scorer,
    bias: np.ndarray,
    positives: RaggedRows,
    seen: RaggedRows,
    k: int,
    progress: Progress,
) -> RankResults:
    """Ranks in JAX; see `ranking.rank`. NaN in `bias` means no candidate."""
    mesh, table = Mesh(np.array(jax.local_devices()), ("items",)), None
    if isinstance(scorer, DotProducts):
        candidates = scorer.candidates
        if isinstance(candidates, np.ndarray):
            candidates = ShardedCandidates.of(candidates, mesh)
        mesh, table = candidates.mesh, candidates.table
    job = _Job.of(bias, positives, seen, k, mesh)
    size = job.shapes.block

    def run(block: slice, *pairs: Pairs) -> BlockResult:
        if isinstance(scorer, DotProducts):
            scores, query = table, padded(scorer.query[block], size)
        else:
            rows = padded(as_scores(scorer.scores(block), block, len(bias)), size)
            scores, query = tiled(rows, mesh, axis=1), np.zeros((size, 0), np.float32)
        with ending_after():
            return program(job.shapes, mesh, table is None)(scores, job.bias, query, *pairs)

    out = RankResults.empty(len(positives.rows), len(positives), k)
    # The same size in all blocks, for a single program.
    most = job.most_pairs(seen), job.most_pairs(positives)
    waiting: list[tuple[slice, BlockResult]] = []
    for block in slices(len(positives), size):
        waiting.append((block, run(block, *_pairs(job, block, most, out))))
        # The devices compute it while the results of the previous block are stored.
        if len(waiting) > 1:
            _store_block(job, *waiting.pop(0), out, progress)
    for block, result in waiting:
        _store_block(job, block, result, out, progress)
    return out


class _Job(NamedTuple):
    """The inputs of a ranking, and their partition into blocks and tiles.

    Attributes:
        k: Length of the top lists.
        positives: Item rows of each query.
        seen: Item rows to leave out for each query; a positive among them ranks last.
        is_candidate: `[item rows]` bool.
        shapes: Sizes of blocks and tiles.
        mesh: The devices.
        bias: `[all tiles, tile]` float32 on the devices; NaN: not a candidate.
    """

    k: int
    positives: RaggedRows
    seen: RaggedRows
    is_candidate: np.ndarray
    shapes: Shapes
    mesh: Mesh
    bias: jax.Array

    def most_pairs(self, lists: RaggedRows) -> int:
        """Returns the maximum number of rows of `lists` in a block, as a power of two."""
        starts = np.arange(0, len(lists), self.shapes.block)
        ends = np.minimum(starts + self.shapes.block, len(lists))
        most = (lists.offsets[ends] - lists.offsets[starts]).max(initial=POSITIVES_STEP)
        return power(int(most))

    @classmethod
    def of(
        cls, bias: np.ndarray, positives: RaggedRows, seen: RaggedRows, k: int, mesh: Mesh
    ) -> _Job:
        """Returns the job, divided for the devices of `mesh`."""
        shapes = _shapes(len(positives), len(bias), k, mesh.size)
        placed = tiled(bias, mesh, fill=np.nan)
        return cls(k, positives, seen, ~np.isnan(bias), shapes, mesh, placed)


def _shapes(n_queries: int, n_rows: int, k: int, n_devices: int) -> Shapes:
    # Everything except the number of tiles is the same on any number of devices.
    tile, each = tile_rows(n_rows), tiles_of_device(n_rows, n_devices)
    tiles = -(-n_rows // tile)
    most = (_CPU_SCORES if jax.default_backend() == "cpu" else _SCORES) // (tiles * tile)
    block = min(max(power(most + 1) // 2, _FEWEST_QUERIES), power(n_queries))
    # Balances the number of maxima and the number of members in the selected groups.
    group = min(power(int((n_rows / max(k, 1)) ** 0.5)), tile)
    # Powers of two, so that few programs are compiled.
    return Shapes(block, tile, each, group, min(power(k), each * n_devices * tile))


def _pairs(job: _Job, block: slice, most: tuple[int, int], out: RankResults) -> tuple[Pairs, Pairs]:
    """Returns the pairs to mask and the positives; records the number of ranked items."""
    n_rows, wanted = len(job.is_candidate), _keys(job, job.positives, block)
    hidden = np.unique(_keys(job, job.seen, block))
    hidden = hidden[job.is_candidate[hidden % n_rows]]
    n_hidden = np.bincount(hidden // n_rows, minlength=block.stop - block.start)
    out.n_ranked[block] = job.is_candidate.sum() - n_hidden
    beyond = job.shapes.tiles * job.mesh.size * job.shapes.tile
    most_hidden, most_wanted = most
    return (
        _pairs_of(hidden, n_rows, beyond, most_hidden),
        _pairs_of(wanted, n_rows, beyond, most_wanted),
    )


def _keys(job: _Job, lists: RaggedRows, block: slice) -> np.ndarray:
    """Returns a number for each pair of a query of the block and an item row in its list."""
    part = lists.part(block)
    return np.asarray(part.owner() * len(job.is_candidate) + part.rows)


def _pairs_of(keys: np.ndarray, n_rows: int, beyond: int, size: int) -> Pairs:
    query, row = (keys // n_rows).astype(np.int32), (keys % n_rows).astype(np.int32)
    return Pairs(padded(query, size), padded(row, size, fill=beyond))


def _store_block(
    job: _Job, block: slice, result: BlockResult, out: RankResults, progress: Progress
) -> None:
    positives, n = job.positives.part(block), block.stop - block.start
    with ending_after():
        before, top, scores, bad = (np.asarray(x) for x in result)
    check_scores(bad[:n], block.start)
    ranks = before[: len(positives.rows)].astype(np.int64) + 1
    last = out.n_ranked[block][positives.owner()] + 1
    first = job.positives.offsets[block.start]
    is_seen = np.isin(_keys(job, job.positives, block), _keys(job, job.seen, block))
    ranks = np.where(job.is_candidate[positives.rows] & ~is_seen, ranks, last)
    out.ranks[first : first + len(ranks)] = ranks
    out.top_scores[block] = scores[:n, : job.k]
    out.top[block] = np.where(out.top_scores[block] > -np.inf, top[:n, : job.k], 0)
    progress(block.stop, len(job.positives))


POSITIVES_STEP = 16
"""Number of positives that are counted at a time."""


class Shapes(NamedTuple):
    """The static sizes of a program.

    Attributes:
        block: Number of queries.
        tile: Number of item rows in a tile.
        tiles: Number of tiles per device.
        group: Number of item rows with a common maximum; a divisor of `tile`.
        k: Length of the top lists.
    """

    block: int
    tile: int
    tiles: int
    group: int
    k: int


class Pairs(NamedTuple):
    """Queries of the block and item rows, padded with rows after the last.

    Attributes:
        query: `[pairs]` int32.
        row: `[pairs]` int32.
    """

    query: Any
    row: Any


class BlockResult(NamedTuple):
    """The merged results of all devices for a block.

    Attributes:
        before: Number of items before each positive `[positives]` int32.
        top: Best item rows `[block, k]` int32.
        top_scores: Their scores `[block, k]` float32, padded with -inf.
        not_a_number: An item row whose score is NaN `[block]` int32, or -1.
    """

    before: jax.Array
    top: jax.Array
    top_scores: jax.Array
    not_a_number: jax.Array


@functools.lru_cache(maxsize=64)
def program(shapes: Shapes, mesh: Mesh, is_given: bool) -> Callable[..., BlockResult]:
    """Returns the compiled program of all devices of `mesh`.

    Its arguments:
        table: Candidates `[all tiles, tile, dim]` float32; or scores
            `[all tiles, block, tile]` if `is_given`. Split over the devices.
        bias: Added to the scores `[all tiles, tile]` float32; NaN: not a candidate. Split.
        query: Query embeddings `[block, dim]` float32; unused if `is_given`.
        hidden: `Pairs` that aren't ranked.
        positives: `Pairs` to rank, a multiple of `POSITIVES_STEP`.
    """
    own, all_ = split(mesh).spec, PartitionSpec()
    part = functools.partial(_part, shapes, mesh.axis_names, is_given)
    specs = (own, own, all_, all_, all_)
    return jax.jit(on_each_device(part, mesh, specs, all_))


def _part(
    shapes: Shapes,
    axes: tuple[str, ...],
    is_given: bool,
    table: jax.Array,
    bias: jax.Array,
    query: jax.Array,
    hidden: Pairs,
    positives: Pairs,
) -> BlockResult:
    first = jax.lax.axis_index(axes) * shapes.tiles
    scores = table if is_given else products(query, table)
    # Scores of row 0 and of padding are arbitrary.
    bad = jnp.isnan(scores) & ~jnp.isnan(bias)[:, None, :]
    scores = scores + bias[:, None, :]
    scores = scores.at[_places(shapes, first, hidden)].set(jnp.nan, mode="drop")
    own = scores.at[_places(shapes, first, positives)].get(mode="fill", fill_value=-jnp.inf)
    own = jax.lax.pmax(own, axes)
    rows = _rows(shapes, first)
    before = jax.lax.psum(_before(scores, rows, own, positives), axes)
    top, top_scores = _merged(shapes, axes, *_top(shapes, scores, first))
    worst = jnp.where(bad, rows[:, None, :], -1).max(axis=(0, 2))
    return BlockResult(before, top, top_scores, jax.lax.pmax(worst, axes))


def _places(shapes: Shapes, first: jax.Array, pairs: Pairs) -> tuple[jax.Array, ...]:
    """Returns the indices of pairs in the scores of this device; others are out of range."""
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
    """Returns the best rows of this device and their scores `[block, up to k]`.

    The k best scores are in the k groups with the greatest maxima: a score in another group comes
    after all of these maxima, as it is lower, or equal with a higher row.
    """
    groups_a_tile = shapes.tile // shapes.group
    ranked = jnp.where(jnp.isnan(scores), -jnp.inf, scores)
    ranked = ranked.reshape(shapes.tiles, shapes.block, groups_a_tile, shapes.group)
    most = jnp.moveaxis(ranked.max(axis=3), 1, 0).reshape(shapes.block, -1)
    _, groups = jax.lax.top_k(most, min(shapes.k, most.shape[1]))
    # In the order of rows, since `top_k` takes the first of equal scores.
    groups = jnp.sort(groups, axis=1)
    query = jnp.arange(shapes.block)[:, None]
    members = ranked[groups // groups_a_tile, query, groups % groups_a_tile]
    members = members.reshape(shapes.block, -1)
    values, places = jax.lax.top_k(members, min(shapes.k, members.shape[1]))
    group = jnp.take_along_axis(groups, places // shapes.group, axis=1)
    rows = first * shapes.tile + group * shapes.group + places % shapes.group
    return rows.astype(jnp.int32), values


def _merged(
    shapes: Shapes, axes: tuple[str, ...], rows: jax.Array, values: jax.Array
) -> tuple[jax.Array, jax.Array]:
    # Concatenated in the order of devices, so that of equal scores the lower row comes first.
    rows, values = (jax.lax.all_gather(x, axes, axis=1, tiled=True) for x in (rows, values))
    values, places = jax.lax.top_k(values, shapes.k)
    return jnp.take_along_axis(rows, places, axis=1), values


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
