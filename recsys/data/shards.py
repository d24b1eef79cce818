"""Which shard of the store an event goes into; all events of a user go into one.

The users with a row of their own are spread by ranges of rows. Of those who share a
row, one row may have more events than a shard should hold, so they have shards of their
own, before the others, into which they are spread by the hash of their id.
"""

from __future__ import annotations

import dataclasses

import numpy as np
import pyarrow as pa

from recsys.data.buckets import hash_buckets
from recsys.data.vocabulary import Vocabulary

EVENTS_OF_A_SHARD = 4_000_000
"""Events that a shard holds at the most, but for chance and a user with more."""


@dataclasses.dataclass(frozen=True)
class TrainShards:
    """The plan of the training shards.

    Attributes:
        n_shared: Shards of the users who share a row.
        first_rows: First user row of each of the other shards, ascending.
    """

    n_shared: int
    first_rows: tuple[int, ...]

    @property
    def n_shards(self) -> int:
        """Shards in all."""
        return self.n_shared + len(self.first_rows)


def n_shards(n_events: int, most: int = EVENTS_OF_A_SHARD) -> int:
    """Returns in how many shards `n_events` are laid so that each holds at most `most`."""
    return max(1, -(-n_events // most))


def plan_train_shards(users: Vocabulary, most: int = EVENTS_OF_A_SHARD) -> TrainShards:
    """Returns shards of about equally many events, as the vocabulary counts them.

    Args:
        users: Vocabulary of the users, with the training positives of each row.
        most: Events of a shard at the most.
    """
    first, counts = users.first_own_row, users.row_counts
    n_shared_events = int(counts[:first].sum())
    ends = np.cumsum(counts[first:])
    n_own = n_shards(int(ends[-1]) if len(ends) else 0, most)
    shares = np.arange(1, n_own) * (ends[-1] / n_own) if len(ends) else []
    borders = np.unique(np.searchsorted(ends, shares, side="left") + 1)
    inside = borders[borders < len(ends)]
    n_shared = n_shards(n_shared_events, most) if n_shared_events else 0
    return TrainShards(n_shared, tuple(int(row) + first for row in (0, *inside)))


def train_buckets(events: pa.RecordBatch, shards: TrainShards) -> np.ndarray:
    """Returns the training shard `[n]` int64 of each event (`user_id`, `user_row`)."""
    rows = events.column("user_row").to_numpy()
    own = np.searchsorted(np.array(shards.first_rows), rows, side="right") - 1
    buckets = own + shards.n_shared
    is_shared = own < 0
    if is_shared.any():
        ids = events.column("user_id").filter(pa.array(is_shared))
        buckets[is_shared] = hash_buckets(ids, max(1, shards.n_shared))
    return buckets


def eval_buckets(events: pa.RecordBatch, n_buckets: int) -> np.ndarray:
    """Returns the evaluation shard `[n]` int64 of each event, by its `user_id`."""
    return hash_buckets(events.column("user_id"), n_buckets)
