"""Ranks and top-k lists by the C kernels, one job of queries at a time.

`rank_queries` scores all items in float32. `RoundedItems` scores all items with int8 and a few
of them exactly, with bitwise the same results, several times as fast (see rank_top.c). Unlike
the other kernels, these aren't called through XLA: they read arrays in place, so nothing is
copied, padded or compiled. They release the interpreter's lock, so callers use one thread per
core.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import NamedTuple

import numpy as np

from recsys import kernels
from recsys.ragged import RaggedRows

QUERIES_STEP = 24
"""Jobs should have a multiple of this number of queries, the height of a tile."""

_RESULTS = ("ranks", "n_ranked", "top", "top_scores", "not_a_number")


def _numbers(*names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_int64) for name in names]


def _pointers(*names: str) -> list[tuple[str, type]]:
    return [(name, ctypes.c_void_p) for name in names]


class _RankJob(ctypes.Structure):
    """`RankJob` of rank_job.h."""

    _fields_ = (
        *_numbers("n_queries", "n_rows", "dim", "k"),
        *_pointers("query", "table"),
        *_numbers("stride"),
        *_pointers("bias", "positive_offsets", "seen_offsets", "positives", "seen", *_RESULTS),
    )


class RankResults(NamedTuple):
    """Output arrays; each job writes the part of its own queries.

    Attributes:
        ranks: Rank of each positive `[positives]` int64, from 1.
        n_ranked: Items that are ranked for each query `[queries]` int64.
        top: Best item rows of each query `[queries, k]` int32, then 0.
        top_scores: Their scores `[queries, k]` float32, then -inf.
        not_a_number: An item row whose given score is NaN `[queries]` int32, else -1.
    """

    ranks: np.ndarray
    n_ranked: np.ndarray
    top: np.ndarray
    top_scores: np.ndarray
    not_a_number: np.ndarray

    @classmethod
    def empty(cls, n_positives: int, n_queries: int, k: int) -> RankResults:
        """Returns uninitialised arrays for the results of `n_queries` queries."""
        return cls(
            np.empty(n_positives, np.int64),
            np.empty(n_queries, np.int64),
            np.empty((n_queries, k), np.int32),
            np.empty((n_queries, k), np.float32),
            np.full(n_queries, -1, np.int32),
        )


def rank_queries(
    block: slice,
    query: np.ndarray | None,
    table: np.ndarray,
    bias: np.ndarray,
    positives: RaggedRows,
    seen: RaggedRows,
    out: RankResults,
) -> None:
    """Ranks the positives of the queries of `block`, and fills in their part of `out`.

    The score of a query and an item is `query · table[item] + bias[item]`, or
    `table[query, item] + bias[item]` without `query`.

    Args:
        block: Queries of `positives`, `seen` and `out` to rank.
        query: Their embeddings `[block, dim]` float32, contiguous; None if `table` has scores.
        table: Candidates `[item rows, dim]`, or scores `[block, item rows]`, float32; rows may
            be strided.
        bias: Bias of each item row `[item rows]` float32; NaN if the row is not a candidate.
        positives: Item rows of each query, int32 with int64 offsets, all in range.
        seen: Item rows that each query leaves out, likewise; a positive among them ranks last.
        out: Output arrays.

    Raises:
        RecsysError: The kernel isn't available (R343).
        MemoryError: There is no memory for the queries of the block.
    """
    start = block.start
    job = _RankJob(
        n_queries=block.stop - start,
        n_rows=len(bias),
        dim=0 if query is None else query.shape[1],
        k=out.top.shape[1],
        query=None if query is None else query.ctypes.data,
        table=table.ctypes.data,
        stride=table.strides[0] // table.itemsize,
        bias=bias.ctypes.data,
        positive_offsets=positives.offsets[start:].ctypes.data,
        seen_offsets=seen.offsets[start:].ctypes.data,
        positives=positives.rows.ctypes.data,
        seen=seen.rows.ctypes.data,
        ranks=out.ranks.ctypes.data,
        **{name: getattr(out, name)[start:].ctypes.data for name in _RESULTS[1:]},
    )
    if _library().recsys_rank(ctypes.byref(job)):
        raise MemoryError(f"no memory to rank {job.n_queries} queries")


# --- approximate top-k with int8 scores

QUERIES_OF_A_JOB = 96
"""Larger batches exceed the cache; smaller ones read the items more often."""

_PANEL_ROWS, _GROUP = 48, 4  # Of rank_bytes.h.
_GOLDEN = 0.6180339887
_SHARE = 16
"""Smallest ratio of items to k: with fewer items too many would be scored twice."""


class _Items(ctypes.Structure):
    """`RoundedItems` of rank_top.c."""

    _fields_ = (
        *_numbers("n_rows", "dim", "leap"),
        *_pointers("table"),
        *_numbers("stride"),
        *_pointers("bytes", "steps", "missed", "length"),
    )


class _TopJob(ctypes.Structure):
    """`TopJob` of rank_top.c."""

    _fields_ = (
        *_numbers("n_queries", "k"),
        *_pointers("query", "steps", "seen_offsets", "seen", "top", "top_scores", "is_given_up"),
    )


class TopResults(NamedTuple):
    """Output arrays; each job writes the part of its own queries.

    Attributes:
        top: Best item rows of each query `[queries, k]` int32, then 0.
        top_scores: Their scores `[queries, k]` float32, then -inf.
        is_given_up: Whether the query must be ranked with `rank_queries` instead `[queries]`
            bool; its rows and scores are undefined.
    """

    top: np.ndarray
    top_scores: np.ndarray
    is_given_up: np.ndarray

    @classmethod
    def empty(cls, n_queries: int, k: int) -> TopResults:
        """Returns uninitialised arrays for the results of `n_queries` queries."""
        return cls(
            np.empty((n_queries, k), np.int32),
            np.empty((n_queries, k), np.float32),
            np.empty(n_queries, bool),
        )


def is_fast() -> bool:
    """Returns whether the kernel is available and supports this processor."""
    return kernels.status().available and bool(_library().recsys_top_is_fast())


class RoundedItems:
    """Items rounded to 8 bits, with the exact embeddings; thread-safe.

    Args:
        table: Item embeddings `[item rows, dim]` float32, contiguous; not copied.
        is_item: Whether each row is an item `[item rows]` bool.

    Raises:
        ValueError: They can't be rounded: a number isn't finite or exceeds 1e15, or there are
            too many dimensions.
        RecsysError: The kernel isn't available (R343).
    """

    def __init__(self, table: np.ndarray, is_item: np.ndarray) -> None:
        n_rows, dim = table.shape
        panels, groups = -(-n_rows // _PANEL_ROWS), -(-dim // _GROUP)
        self._table, self._leap = table, _leap(panels)
        self._bytes = np.empty(panels * groups * _PANEL_ROWS * _GROUP, np.uint8)
        self._steps = np.where(self._by_panel(is_item), np.float32(0), np.float32(np.nan))
        self._missed, self._length = np.empty((2, panels), np.float32)
        self._items = _Items(
            n_rows,
            dim,
            self._leap,
            table.ctypes.data,
            table.strides[0] // table.itemsize,
            *(x.ctypes.data for x in (self._bytes, self._steps, self._missed, self._length)),
        )
        if _library().recsys_round_items(ctypes.byref(self._items)):
            raise ValueError(f"[{n_rows}, {dim}] embeddings can't be rounded")

    def takes(self, k: int) -> bool:
        """Returns whether there are enough items for a faster top-k."""
        return 0 < k * _SHARE <= len(self._table)

    def masked(self, allowed: np.ndarray | None) -> np.ndarray:
        """Returns the argument `steps` of `best` for a mask of items.

        Args:
            allowed: Whether each row may be in the results `[item rows]` bool; None for all
                items.
        """
        if allowed is None:
            return self._steps
        return np.where(self._by_panel(allowed), self._steps, np.float32(np.nan))

    def _by_panel(self, flags: np.ndarray) -> np.ndarray:
        """Returns flags of item rows in the panels' order `[panels, 48]`; see row_of in C."""
        panels = -(-len(self._table) // _PANEL_ROWS)
        padded = np.zeros(panels * _PANEL_ROWS, bool)
        padded[: len(flags)] = flags
        order = np.arange(panels) * self._leap % panels
        return np.ascontiguousarray(padded.reshape(_PANEL_ROWS, panels).T[order])

    def best(
        self,
        block: slice,
        query: np.ndarray,
        hidden: RaggedRows,
        steps: np.ndarray,
        out: TopResults,
    ) -> None:
        """Finds the best of the queries of `block`, and fills in their part of `out`.

        Args:
            block: Queries of `hidden` and `out` to rank; about `QUERIES_OF_A_JOB`.
            query: Their embeddings `[block, dim]` float32, contiguous.
            hidden: Item rows that each query leaves out, int32 with int64 offsets, all in range.
            steps: Result of `masked`.
            out: Output arrays, with a `k` that it `takes`.

        Raises:
            MemoryError: There is no memory for the queries of the block.
        """
        start = block.start
        arrays = (query, steps, hidden.offsets[start:], hidden.rows, *(x[start:] for x in out))
        job = _TopJob(block.stop - start, out.top.shape[1], *(x.ctypes.data for x in arrays))
        if _library().recsys_top(ctypes.byref(self._items), ctypes.byref(job)):
            raise MemoryError(f"no memory to rank {job.n_queries} queries")


def _leap(panels: int) -> int:
    """Returns a stride that visits all panels, spread evenly at any time."""
    leap = max(1, round(panels * _GOLDEN))
    while math.gcd(leap, panels) > 1:
        leap += 1
    return leap


@functools.cache
def _library() -> ctypes.CDLL:
    library = kernels.library()
    items = ctypes.POINTER(_Items)
    library.recsys_rank.argtypes = [ctypes.POINTER(_RankJob)]
    library.recsys_round_items.argtypes = [items]
    library.recsys_top.argtypes = [items, ctypes.POINTER(_TopJob)]
    return library
