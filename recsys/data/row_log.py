"""All good rows of the users of a log, with their labels; positives and other rows.

Rows exist if the config has `data.interactions.labels`. The users are those of the
`recsys.data.event_log.EventLog` of the same part, in its order.
"""

from __future__ import annotations

import dataclasses
import functools
from collections.abc import Mapping

import numpy as np

from recsys.data.event_log import ShardedColumn

ROW_COLUMNS = {"item_row": np.int32, "timestamp": np.int64, "history_end": np.int64}
OPTIONAL_ROW_COLUMNS = {"rate": np.float32, "impression": np.int32, "position": np.int32}
"""Columns that exist only if the data have them."""


@dataclasses.dataclass(frozen=True)
class RowShard:
    """All rows of some users, sorted by (user, time, item row).

    Attributes:
        item_row: Row of the item of each row `[n]` int32.
        timestamp: Time of each row `[n]` int64 [seconds since 1970, UTC].
        history_end: Index in `EventLog.history` of the end of the user's history, the events before
            the row's second `[n]` int64. The history starts at the user's first event there; that
            of a held-out row continues the user's training events.
        offsets: Index of each user's first row, and the end `[users + 1]` int64.
        labels: Labels of each row by name `[n]`: int8, 1, 0 or -1 if unknown; or amounts, float32,
            NaN if unknown.
        rate: Share of such rows that the source kept `[n]` float32 (0..1]; None: it kept all.
        impression: Number of the impression among those of the user `[n]` int32, from 1 on, 0 if
            there is none; None: the data have no impressions.
        position: Position in the impression `[n]` int32, from 0 on, -1 if unknown; None: the data
            have no positions.
        features: Features of each row by name, as in `recsys.data.event_log.EventShard`.
    """

    item_row: np.ndarray
    timestamp: np.ndarray
    history_end: np.ndarray
    offsets: np.ndarray
    labels: Mapping[str, np.ndarray]
    rate: np.ndarray | None = None
    impression: np.ndarray | None = None
    position: np.ndarray | None = None
    features: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.item_row)


class RowLog:
    """Concatenated shards of rows.

    Args:
        shards: The shards, with the users of the log's shards.

    Attributes:
        shards: The shards.
        item_row, timestamp, history_end, labels, rate, impression, position, features: The columns
            of the shards, concatenated; see `RowShard`.
    """

    def __init__(self, shards: tuple[RowShard, ...]) -> None:
        self.shards = shards
        self.item_row, self.timestamp, self.history_end = (
            ShardedColumn([getattr(shard, name) for shard in shards], dtype)
            for name, dtype in ROW_COLUMNS.items()
        )
        self.rate, self.impression, self.position = map(self._optional, OPTIONAL_ROW_COLUMNS)
        self.labels, self.features = (
            {
                name: ShardedColumn([getattr(shard, what)[name] for shard in shards])
                for name in (getattr(shards[0], what) if shards else ())
            }
            for what in ("labels", "features")
        )

    def __len__(self) -> int:
        return len(self.item_row)

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """Index of each user's first row, and the end `[users + 1]` int64; held in memory."""
        starts = self.item_row.starts
        parts = [s.offsets[:-1] + start for s, start in zip(self.shards, starts, strict=False)]
        return np.concatenate([*parts, starts[-1:]])

    def user_index(self, rows: np.ndarray) -> np.ndarray:
        """Returns the index in the log of each row's user `[b]` int64."""
        return np.searchsorted(self.offsets, rows, side="right") - 1

    def _optional(self, name: str) -> ShardedColumn | None:
        is_there = bool(self.shards) and getattr(self.shards[0], name) is not None
        return ShardedColumn([getattr(shard, name) for shard in self.shards]) if is_there else None
