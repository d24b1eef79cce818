"""The best items of queries by a rough look in 8 bits, and an exact one at few of them.

The answer is that of `recsys.native.rank`, to the last bit, and comes several times
sooner; see rank_top.c. Like that kernel this one reads arrays where they lie, and lets
go of the interpreter while it works.
"""

from __future__ import annotations

import ctypes
import functools
import math
from typing import Any, NamedTuple

import numpy as np

from recsys import native
from recsys.errors import RecsysError
from recsys.ragged import Ragged

QUERIES_OF_A_JOB = 96
"""With more of them what is kept of each leaves the caches, with fewer items come more often."""

_PANEL_ROWS, _GROUP = 48, 4  # Of rank_bytes.h.
_GOLDEN = 0.6180339887
_SHARE = 16
"""Items for each item of an answer, at least: of fewer too many would be looked at twice."""


class _Items(ctypes.Structure):
    """`RoundedItems` of rank_top.c."""

    _fields_ = (
        ("n_rows", ctypes.c_int64),
        ("dim", ctypes.c_int64),
        ("leap", ctypes.c_int64),
        ("table", ctypes.c_void_p),
        ("stride", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in ("bytes", "steps", "missed", "length")),
    )


_POINTERS = ("query", "steps", "seen_offsets", "seen", "top", "top_scores", "is_given_up")


class _Job(ctypes.Structure):
    """`TopJob` of rank_top.c."""

    _fields_ = (
        ("n_queries", ctypes.c_int64),
        ("k", ctypes.c_int64),
        *((name, ctypes.c_void_p) for name in _POINTERS),
    )


class Best(NamedTuple):
    """What jobs write, each for its own queries.

    Attributes:
        top: Best item rows of each query `[queries, k]` int32, then 0.
        top_scores: Their scores `[queries, k]` float32, then -inf.
        is_given_up: Whether the query must be ranked otherwise `[queries]` bool; its rows
            and scores say nothing.
    """

    top: np.ndarray
    top_scores: np.ndarray
    is_given_up: np.ndarray

    @classmethod
    def empty(cls, n_queries: int, k: int) -> Best:
        """Returns memory for the results of so many queries."""
        return cls(
            np.empty((n_queries, k), np.int32),
            np.empty((n_queries, k), np.float32),
            np.empty(n_queries, bool),
        )


def is_fast() -> bool:
    """Returns whether there is such a kernel, and a processor that it is made for."""
    found = native.status()
    return found.available and bool(_library().recsys_top_is_fast())


class RoundedItems:
    """Items rounded to 8 bits, beside what they were. Asked from any number of threads.

    Args:
        table: Item embeddings `[item rows, dim]` float32, contiguous; kept.
        is_item: Which rows are items `[item rows]` bool.

    Raises:
        ValueError: They can't be rounded: a number isn't finite or above 1e15, or there
            are too many dimensions.
        RecsysError: The kernel can't be had (R343).
    """

    def __init__(self, table: np.ndarray, is_item: np.ndarray) -> None:
        n_rows, dim = table.shape
        panels = -(-n_rows // _PANEL_ROWS)
        groups = -(-dim // _GROUP)
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
        """Returns whether it is worth to look for the best `k` here."""
        return 0 < k * _SHARE <= len(self._table)

    def allowing(self, allowed: np.ndarray | None) -> np.ndarray:
        """Returns what `best` needs to know of the rows that may be among the best.

        Args:
            allowed: These rows `[item rows]` bool; None: all items.
        """
        if allowed is None:
            return self._steps
        return np.where(self._by_panel(allowed), self._steps, np.float32(np.nan))

    def _by_panel(self, flags: np.ndarray) -> np.ndarray:
        """Returns flags of item rows `[panels, 48]`, where these rows are; see row_of."""
        panels = -(-len(self._table) // _PANEL_ROWS)
        padded = np.zeros(panels * _PANEL_ROWS, bool)
        padded[: len(flags)] = flags
        order = np.arange(panels) * self._leap % panels
        return np.ascontiguousarray(padded.reshape(_PANEL_ROWS, panels).T[order])

    def best(
        self, block: slice, query: np.ndarray, hidden: Ragged, steps: np.ndarray, out: Best
    ) -> None:
        """Finds the best of the queries of `block`, and fills in their part of `out`.

        Args:
            block: Which queries of `hidden` and `out`; about `QUERIES_OF_A_JOB`.
            query: Their embeddings `[block, dim]` float32, contiguous.
            hidden: Item rows that each query leaves out, all within `item rows`, int32
                and int64.
            steps: As `allowing` returned it.
            out: Where results go; of `k` items that it `takes`.

        Raises:
            MemoryError: There is no memory for the queries of the block.
        """
        start = block.start
        pointers = (
            query,
            steps,
            hidden.offsets[start:],
            hidden.rows,
            *(x[start:] for x in out),
        )
        job = _Job(block.stop - start, out.top.shape[1], *(x.ctypes.data for x in pointers))
        if _library().recsys_top(ctypes.byref(self._items), ctypes.byref(job)):
            raise MemoryError(f"no memory to rank {job.n_queries} queries")


def _leap(panels: int) -> int:
    """Returns steps that come to each panel before they repeat, spread evenly all the time."""
    leap = max(1, round(panels * _GOLDEN))
    while math.gcd(leap, panels) > 1:
        leap += 1
    return leap


@functools.lru_cache(maxsize=1)
def _library() -> Any:
    found = native.status()
    if not found.available:
        raise RecsysError(
            "R343",
            f"The C kernels can't be had here: {found.reason}.",
            "Ask native.status() first, as recsys.evaluation.ranking does.",
        )
    library = ctypes.CDLL(str(found.library))
    items = ctypes.POINTER(_Items)
    library.recsys_round_items.argtypes = [items]
    library.recsys_top.argtypes = [items, ctypes.POINTER(_Job)]
    return library
