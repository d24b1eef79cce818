"""Held-out events that repeat an item which their user had seen before.

A model that leaves out what users have seen, as the served one does by default, can never
give them: they are counted, and are answers of a query only where `repeats` is `include`.
"""

from __future__ import annotations

import dataclasses

import numpy as np

from recsys.errors import RecsysError
from recsys.evaluation.queries import Queries
from recsys.ragged import Ragged

_BLOCK_ROWS = 2**22


@dataclasses.dataclass(frozen=True)
class Repeats:
    """How many positives repeat an item.

    Attributes:
        users: Users with some.
        queries: Queries with some.
        positives: All of them.
        share: Their share of all positives [0..1].
        only: Queries whose positives all repeat an item.
    """

    users: int
    queries: int
    positives: int
    share: float
    only: int

    @classmethod
    def of(cls, queries: Queries, is_repeated: np.ndarray) -> Repeats:
        """Counts the positives `is_repeated` `[positives]` bool of `queries`."""
        n_positives = np.diff(queries.positives.offsets)
        owner = queries.positives.owner()[is_repeated]
        n_repeated = np.bincount(owner, minlength=len(queries))
        return cls(
            users=len(np.unique(queries.user[owner])),
            queries=len(np.unique(owner)),
            positives=len(owner),
            share=len(owner) / max(1, len(is_repeated)),
            only=int((n_repeated == n_positives).sum()),
        )


def repeated(queries: Queries, is_item: np.ndarray) -> np.ndarray:
    """Returns which positives `[positives]` bool are of an item that is in the query's `seen`.

    Args:
        queries: The queries.
        is_item: Which item rows are items `[item rows]` bool; items that share one of the
            other rows can't be told apart, and count as new.
    """
    is_repeated = np.zeros(len(queries.positives.rows), bool)
    for block in queries.seen.blocks(_BLOCK_ROWS):
        positives, seen = queries.positives.part(block), queries.seen.part(block)
        keys, seen_keys = (part.owner() * len(is_item) + part.rows for part in (positives, seen))
        first = queries.positives.offsets[block.start]
        is_repeated[first : first + len(keys)] = np.isin(keys, seen_keys) & is_item[positives.rows]
    return is_repeated


def without(queries: Queries, is_repeated: np.ndarray) -> Queries:
    """Returns the queries with the other positives alone; those that have none are left out.

    Args:
        queries: The queries.
        is_repeated: Which positives are left out `[positives]` bool.
    """
    if not is_repeated.any():
        return queries
    kept = ~is_repeated
    counts = np.bincount(queries.positives.owner()[kept], minlength=len(queries))
    offsets = np.concatenate([[0], np.cumsum(counts)])
    positives = Ragged(queries.positives.rows[kept], offsets)
    return dataclasses.replace(queries, positives=positives).select(counts > 0)


def nothing_new(n_repeated: int, n_all: int) -> RecsysError:
    """Returns the error that no held-out event is of an item new to its user (R412)."""
    return RecsysError(
        "R412",
        "While repeats is `exclude`, some held-out event must be of an item that its user has"
        " not seen before, else there is nothing to find.",
        "Where users may be recommended what they have seen, write `repeats: include` (or"
        " --set repeats=include); else hold out more events.",
        f"{n_repeated:,} of {n_all:,} held-out events repeat an item",
    )
