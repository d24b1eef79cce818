"""How deep JSON is nested, told from its bytes: Arrow's parser dies of a deep line."""

from __future__ import annotations

import re

import numpy as np

from recsys.data.sources.csv_rows import Rows

MOST_DEEP = 64
TOO_DEEP = f"nested more than {MOST_DEEP} deep"

# Also one that the line leaves open, so that the search goes over each byte once.
_TEXT = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)', re.DOTALL)
_STEP = np.zeros(256, np.int8)
_STEP[[ord("["), ord("{")]] = 1
_STEP[[ord("]"), ord("}")]] = -1
_BRACE, _CASE = ord("{"), ord("{") ^ ord("[")


def is_deep(line: bytes) -> bool:
    """Returns whether a line is nested more than `MOST_DEEP` deep."""
    if line.count(b"{") + line.count(b"[") <= MOST_DEEP:
        return False
    steps = _STEP[np.frombuffer(_TEXT.sub(b"", line), np.uint8)]
    return bool(np.cumsum(steps, dtype=np.int64).max(initial=0) > MOST_DEEP)


def has_deep(rows: Rows) -> bool:
    """Returns whether a row is nested more than `MOST_DEEP` deep.

    Only rows where so many brackets stand close are looked at; good data has few of them.

    Args:
        rows: Rows that begin with a brace each.
    """
    data = np.frombuffer(rows.block, np.uint8)
    is_bracket = (data | _CASE) == _BRACE
    if np.count_nonzero(is_bracket) < len(rows) + MOST_DEEP:
        return False
    places = np.flatnonzero(is_bracket)
    longest = (rows.stops - rows.starts).max()
    near = np.flatnonzero(places[MOST_DEEP:] - places[:-MOST_DEEP] < longest)
    dense = np.unique(np.searchsorted(rows.starts, places[near], "right") - 1)
    return any(map(is_deep, rows.raw(np.maximum(dense, 0))))
