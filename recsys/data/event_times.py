"""The times of events, or the order that replaces missing timestamps.

Histories, hold-outs and newest events are all based on the times of events. For rows in file
order, the position among the rows of the same user serves as the time. Rows without any order
get a random number each, a function of user and item: which events are "newest" is then a
random but reproducible choice, and the order of a history means nothing.
"""

from __future__ import annotations

import numpy as np
import pyarrow as pa

from recsys.data.config import Order
from recsys.data.farmhash import fingerprints
from recsys.errors import RecsysError

TIME = pa.field("timestamp", pa.int64())
"""Time of an event [seconds since 1970, UTC]."""
PLACE = pa.field("place", pa.int64())
"""Position of a row among its user's, counted from the end: 0 is the last, -1 the one before."""

COLUMN: dict[Order, pa.Field | None] = {"time": TIME, "file": PLACE, "none": None}
"""Column of the examples that defines their order."""

_FILE_BITS, _EVENT_BITS = 46, 20
"""Bits for the index of a file, and for the index of an event in its row's list."""
_MOST_FILES = 1 << (63 - _FILE_BITS)
_SHORT = np.uint64(33)
"""Leaves 31 bits, so that user and time are sorted as one number."""


def file_positions(
    file_index: int, line: np.ndarray, element: np.ndarray | None = None
) -> pa.Array:
    """Returns the positions among the rows of all files `[n]` int64 of rows of one file.

    Args:
        file_index: Index of the file.
        line: Line of each row `[n]`, from 1 on.
        element: Index of each event in its row's list `[n]`; `None`: a row is an event.

    Raises:
        RecsysError: There are too many files for distinct positions.
    """
    if file_index >= _MOST_FILES:
        raise RecsysError(
            "R266",
            f"The places in at most {_MOST_FILES:,} files can order the events.",
            "Join the files, in their order; or split at random, without an order.",
            f"file {file_index + 1:,}",
        )
    place = line if element is None else (line << _EVENT_BITS) + element
    return pa.array((file_index << _FILE_BITS) + place, PLACE.type)


def positions_of_users(table: pa.Table) -> pa.Table:
    """Replaces the positions among all files by the positions among the user's rows (`PLACE`).

    Only positions of the same user can be compared: files may hold one user after the other,
    so a later row isn't newer than another user's.

    Args:
        table: All rows of their users, with `user_id` and `place`.
    """
    at = table.column_names.index(PLACE.name)
    codes = codes_of(table["user_id"])
    order = np.lexsort((table[PLACE.name].to_numpy(), codes))
    n_of_users = np.bincount(codes)
    ends = np.cumsum(n_of_users)
    back = np.empty(len(codes), np.int64)
    back[order] = np.arange(len(codes)) + 1 - np.repeat(ends, n_of_users)
    return table.set_column(at, PLACE, pa.array(back))


def codes_of(column: pa.ChunkedArray) -> np.ndarray:
    """Returns a code `[n]` for each value `[n]`, from 0 on; equal values have equal codes."""
    return column.combine_chunks().dictionary_encode().indices.to_numpy()


def event_times(examples: pa.Table) -> pa.Array:
    """Returns the times `[n]` int64 of examples, or the numbers that replace them."""
    for field in (TIME, PLACE):
        if field.name in examples.column_names:
            return examples[field.name].combine_chunks()
    draws = pair_hashes(examples["user_id"], examples["item_id"], salt=1) >> _SHORT
    return pa.array(draws.astype(np.int64))


def pair_hashes(users: pa.ChunkedArray, items: pa.ChunkedArray, salt: int) -> np.ndarray:
    """Returns a reproducible random number `[n]` uint64 for each pair of ids.

    `mix` is the finalizer of SplitMix64 (Steele, Lea and Flood, OOPSLA 2014).

    Args:
        users: Ids `[n]`, text.
        items: Ids `[n]`, text.
        salt: Different salts give independent numbers.
    """
    mixed = np.full(len(users), salt, np.uint64)
    for ids in (users, items):
        mixed = mix(mixed + np.uint64(0x9E3779B97F4A7C15)) ^ fingerprints(ids.combine_chunks())
    return mix(mixed)


def mix(numbers: np.ndarray) -> np.ndarray:
    """Returns a hash `[n]` uint64 of each of `numbers` `[n]` uint64; a bijection."""
    numbers = (numbers ^ (numbers >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    numbers = (numbers ^ (numbers >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    return numbers ^ (numbers >> np.uint64(31))
