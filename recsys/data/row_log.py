"""All good rows of the users of a log, with their labels; positives and other rows.

Rows exist if the config has `data.interactions.labels`. The users are those of the
`recsys.data.event_log.EventLog` of the same part, in its order.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping, Sequence
from typing import ClassVar

import numpy as np

from recsys.data.event_log import UserLog

ROW_COLUMNS = {"item_row": np.int32, "timestamp": np.int64, "history_end": np.int64}
OPTIONAL_ROW_COLUMNS = {
    "rate": np.float32,
    "impression": np.int32,
    "position": np.int32,
    "weight": np.float32,
    "valid": np.bool_,
}
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
        impression: Number of the impression within its user `[n]` int32, from 1 on, 0 if
            there is none; None: the data have no impressions.
        position: Position in the impression `[n]` int32, from 0 on, -1 if unknown; None: the data
            have no positions.
        weight: Weight of each row in the loss `[n]` float32; None: all are 1.
        valid: Whether the data mark a row for validation `[n]` bool; None: no marks.
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
    weight: np.ndarray | None = None
    valid: np.ndarray | None = None
    features: Mapping[str, np.ndarray] = dataclasses.field(default_factory=dict)

    def __len__(self) -> int:
        return len(self.item_row)


class RowLog(UserLog[RowShard]):
    """All good rows of many users, in the order of the log's.

    Attributes:
        history_end, labels, rate, impression, position, weight, valid: Columns of the shards,
            concatenated; see `RowShard`.
    """

    has_others: ClassVar[bool] = False
    """Rows hold no histories of their own."""

    def __init__(self, shards: Sequence[RowShard]) -> None:
        super().__init__(shards)
        self.history_end = self._column("history_end", ROW_COLUMNS["history_end"])
        self.rate, self.impression, self.position, self.weight, self.valid = map(
            self._optional, OPTIONAL_ROW_COLUMNS
        )
        self.labels = self._columns("labels")
