"""Ranks and top lists by the C kernel, a job of queries at a time.

Unlike the other kernels this one isn't called through XLA: it reads arrays where they
lie, so nothing is copied, padded or compiled. It lets go of the interpreter while it
works; whoever has several cores calls it from as many threads.
"""

from __future__ import annotations

import ctypes
import functools
from typing import Any, NamedTuple

import numpy as np

from recsys import native
from recsys.errors import RecsysError
from recsys.ragged import Ragged

QUERIES_STEP = 24
"""Jobs of a multiple of so many queries waste nothing."""

_LENGTHS = ("n_queries", "n_rows", "dim", "k")
_LISTS = ("positive_offsets", "seen_offsets", "positives", "seen")
_RESULTS = ("ranks", "n_ranked", "top", "top_scores", "not_a_number")


class _Job(ctypes.Structure):
    """`RankJob` of rank_job.h."""

    _fields_ = (
        *((name, ctypes.c_int64) for name in _LENGTHS),
        ("query", ctypes.c_void_p),
        ("table", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        ("bias", ctypes.c_void_p),
        *((name, ctypes.c_void_p) for name in _LISTS + _RESULTS),
    )


class Results(NamedTuple):
    """What jobs write, each for its own queries.

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
    def empty(cls, n_positives: int, n_queries: int, k: int) -> Results:
        """Returns memory for the results of so many queries."""
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
    positives: Ragged,
    seen: Ragged,
    out: Results,
) -> None:
    """Ranks the positives of the queries of `block`, and fills in their part of `out`.

    The score of a query and an item is `query · table[item] + bias[item]`, or
    `table[query, item] + bias[item]` without `query`.

    Args:
        block: Which queries of `positives`, `seen` and `out`.
        query: Their embeddings `[block, dim]` float32, contiguous; None: scores are given.
        table: Candidates `[item rows, dim]`, or scores `[block, item rows]`, of which rows
            may lie apart; float32.
        bias: `[item rows]` float32; NaN: the row is no candidate.
        positives: Item rows of each query, all within `item rows`, int32 and int64.
        seen: Item rows that are left out, likewise; a positive among them ranks last.
        out: Where results go.

    Raises:
        RecsysError: The kernel can't be had (R343).
        MemoryError: There is no memory for the queries of the block.
    """
    start = block.start
    job = _Job(
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
    if _kernel()(ctypes.byref(job)):
        raise MemoryError(f"no memory to rank {job.n_queries} queries")


@functools.lru_cache(maxsize=1)
def _kernel() -> Any:
    found = native.status()
    if not found.available:
        raise RecsysError(
            "R343",
            f"The C kernels can't be had here: {found.reason}.",
            "Ask native.status() first, as recsys.evaluation.ranking does.",
        )
    function = ctypes.CDLL(str(found.library)).recsys_rank
    function.argtypes, function.restype = [ctypes.POINTER(_Job)], ctypes.c_int
    return function
