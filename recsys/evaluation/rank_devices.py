"""Ranking in JAX alone, with the candidates spread over all local devices.

For accelerators, and where there is no C compiler. A device holds its own tiles of the
catalogue and scores a block of queries against all of them; tiles and blocks have the
same shapes on any number of devices, and so each score has the same bits. What devices
tell each other is the scores of the positives, counts, and top lists.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, NamedTuple

import jax
import numpy as np
from jax.sharding import Mesh, NamedSharding, PartitionSpec

from recsys.evaluation.rank_numbers import check_given, given_block
from recsys.evaluation.rank_program import AXIS, POSITIVES_STEP, Found, Pairs, Shapes, program
from recsys.native.rank import Results
from recsys.ragged import Ragged

Tell = Callable[[int, int], None]

# Most scores of a block; a device holds its share of them up to three times.
_CPU_SCORES = 2**24
_SCORES = 2**27
_TILES = 16
"""Tiles of a small catalogue; a large one has more, of the largest size."""
_SMALLEST_TILE, _LARGEST_TILE = 128, 2**17
_FEWEST_QUERIES = 8


def rank_products(
    query: np.ndarray,
    candidates: np.ndarray,
    bias: np.ndarray,
    positives: Ragged,
    seen: Ragged,
    k: int,
    tell: Tell,
) -> Results:
    """Ranks by dot products; the arguments are those of `rank_host.rank_products`."""
    job = _Job.of(bias, positives, seen, k)
    table = job.put(candidates, axis=0)

    def run(block: slice, *pairs: Pairs) -> Found:
        own = _padded(query[block], job.shapes.block, 0)
        return program(job.shapes, job.mesh, False)(table, job.bias, own, *pairs)

    return _rank(job, run, tell)


def rank_given(
    scores: Callable[[slice], np.ndarray],
    bias: np.ndarray,
    positives: Ragged,
    seen: Ragged,
    k: int,
    tell: Tell,
) -> Results:
    """Ranks by given scores; arguments and errors are those of `rank_host.rank_given`."""
    job = _Job.of(bias, positives, seen, k)
    no_query = np.zeros((job.shapes.block, 0), np.float32)

    def run(block: slice, *pairs: Pairs) -> Found:
        given = given_block(scores(block), block, len(bias))
        table = job.put(_padded(given, job.shapes.block, 0), axis=1)
        return program(job.shapes, job.mesh, True)(table, job.bias, no_query, *pairs)

    return _rank(job, run, tell)


class _Job(NamedTuple):
    """What is ranked, and how it is cut.

    Attributes:
        k: Length of the top lists.
        positives: Item rows of each query.
        seen: Item rows of each query that are left out; a positive among them ranks last.
        is_candidate: `[item rows]` bool.
        shapes: Sizes of blocks and tiles.
        mesh: The local devices.
        bias: `[all tiles, tile]` float32 on the devices; NaN: no candidate.
    """

    k: int
    positives: Ragged
    seen: Ragged
    is_candidate: np.ndarray
    shapes: Shapes
    mesh: Mesh
    bias: Any = None

    @classmethod
    def of(cls, bias: np.ndarray, positives: Ragged, seen: Ragged, k: int) -> _Job:
        """Returns the job, cut for the local devices."""
        mesh = Mesh(np.array(jax.local_devices()), (AXIS,))
        shapes = _shapes(len(positives), len(bias), k, mesh.size)
        job = cls(k, positives, seen, ~np.isnan(bias), shapes, mesh)
        return job._replace(bias=job.put(bias, axis=0, fill=np.nan))

    def put(self, x: np.ndarray, axis: int, fill: float = 0) -> Any:
        """Spreads `x`, whose `axis` are item rows, in tiles that are cut from that axis."""
        size, own = self.shapes.tile, self.shapes.tiles
        before, after = x.shape[:axis], x.shape[axis + 1 :]
        shape = (own * self.mesh.size, *before, size, *after)

        def part(index: Any) -> np.ndarray:
            first = (index[0].start or 0) * size
            rows = x[(slice(None),) * axis + (slice(first, first + own * size),)]
            rows = _padded(rows, own * size, axis, fill)
            return np.moveaxis(rows.reshape(*before, own, size, *after), axis, 0)

        sharding = NamedSharding(self.mesh, PartitionSpec(AXIS))
        return jax.make_array_from_callback(shape, sharding, part)


def _shapes(n_queries: int, n_rows: int, k: int, n_devices: int) -> Shapes:
    # All but the number of tiles is the same on any number of devices.
    tile = min(max(_power(-(-n_rows // _TILES)), _SMALLEST_TILE), _LARGEST_TILE)
    tiles = -(-n_rows // tile)
    most = (_CPU_SCORES if jax.default_backend() == "cpu" else _SCORES) // (tiles * tile)
    block = min(max(_power(most + 1) // 2, _FEWEST_QUERIES), _power(n_queries))
    # As many maxima as members of the groups that are looked at.
    group = min(_power(int((n_rows / max(k, 1)) ** 0.5)), tile)
    each = -(-tiles // n_devices)
    # Powers of two, so that few programs are compiled.
    return Shapes(block, tile, each, group, min(_power(k), each * n_devices * tile))


def _rank(job: _Job, run: Callable[..., Found], tell: Tell) -> Results:
    n_queries, size = len(job.positives), job.shapes.block
    out = Results.empty(len(job.positives.rows), n_queries, job.k)
    waiting: list[tuple[slice, Found]] = []
    for start in range(0, n_queries, size):
        block = slice(start, min(start + size, n_queries))
        waiting.append((block, run(block, *_pairs(job, block, out))))
        # The devices work on it while the results of the block before are taken.
        if len(waiting) > 1:
            _take(job, *waiting.pop(0), out, tell)
    for block, found in waiting:
        _take(job, block, found, out, tell)
    return out


def _pairs(job: _Job, block: slice, out: Results) -> tuple[Pairs, Pairs]:
    """Returns what is hidden and what is counted for; notes how many items are ranked."""
    n_rows, wanted = len(job.is_candidate), _keys(job, job.positives, block)
    hidden = np.unique(_keys(job, job.seen, block))
    hidden = hidden[job.is_candidate[hidden % n_rows]]
    n_hidden = np.bincount(hidden // n_rows, minlength=block.stop - block.start)
    out.n_ranked[block] = job.is_candidate.sum() - n_hidden
    beyond = job.shapes.tiles * job.mesh.size * job.shapes.tile
    return _pairs_of(hidden, n_rows, beyond), _pairs_of(wanted, n_rows, beyond)


def _keys(job: _Job, lists: Ragged, block: slice) -> np.ndarray:
    """Returns one number for each query of the block and item row of its list."""
    part = lists.part(block)
    return np.asarray(part.owner() * len(job.is_candidate) + part.rows)


def _pairs_of(keys: np.ndarray, n_rows: int, beyond: int) -> Pairs:
    size = _power(max(len(keys), POSITIVES_STEP))
    query, row = (keys // n_rows).astype(np.int32), (keys % n_rows).astype(np.int32)
    return Pairs(_padded(query, size, 0), _padded(row, size, 0, beyond))


def _take(job: _Job, block: slice, found: Found, out: Results, tell: Tell) -> None:
    positives, n = job.positives.part(block), block.stop - block.start
    before, top, scores, bad = (np.asarray(x) for x in found)
    check_given(bad[:n], block.start)
    ranks = before[: len(positives.rows)].astype(np.int64) + 1
    last = out.n_ranked[block][positives.owner()] + 1
    first = job.positives.offsets[block.start]
    is_seen = np.isin(_keys(job, job.positives, block), _keys(job, job.seen, block))
    ranks = np.where(job.is_candidate[positives.rows] & ~is_seen, ranks, last)
    out.ranks[first : first + len(ranks)] = ranks
    out.top_scores[block] = scores[:n, : job.k]
    out.top[block] = np.where(out.top_scores[block] > -np.inf, top[:n, : job.k], 0)
    tell(block.stop, len(job.positives))


def _padded(x: np.ndarray, size: int, axis: int, fill: float = 0) -> np.ndarray:
    widths = [(0, 0)] * x.ndim
    widths[axis] = (0, size - x.shape[axis])
    return np.pad(x, widths, constant_values=fill)


def _power(n: int) -> int:
    """Returns the smallest power of two that is not below `n`."""
    return 1 << max(n - 1, 0).bit_length()
