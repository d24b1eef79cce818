"""The interaction store: columns sorted by (user, time), memory-mapped.

A training example is an index into the columns; the user's history is the slice
before it. Layout of a store:

    store.json                       what is in it
    train/  user_row item_row timestamp tied   .npy, one value an event
            offsets.npy              events of user row r: offsets[r] … offsets[r + 1]
    eval/   the same; `user_row` is 0 for users without training events
            users.parquet            id and user_row of each user of this part, in order
"""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq

from recsys.errors import RecsysError

_COLUMNS = {"user_row": np.int32, "item_row": np.int32, "timestamp": np.int64, "tied": np.int32}


@dataclasses.dataclass(frozen=True)
class EventLog:
    """Events of many users, sorted by (user, time, item row).

    Attributes:
        user_row: Row of the user of each event `[n]` int32.
        item_row: Row of the item of each event `[n]` int32.
        timestamp: Time of each event `[n]` int64 [seconds since 1970, UTC].
        tied: Events of the same user and the same second directly before each
            event `[n]` int32; they are no history of it.
        offsets: First event of each user, and the end `[users + 1]` int64.
    """

    user_row: np.ndarray
    item_row: np.ndarray
    timestamp: np.ndarray
    tied: np.ndarray
    offsets: np.ndarray

    def __len__(self) -> int:
        return len(self.item_row)

    def user_index(self, events: np.ndarray) -> np.ndarray:
        """Returns which user of the log `[b]` int64 each of `events` `[b]` belongs to."""
        return np.searchsorted(self.offsets, events, side="right") - 1

    def histories(self, events: np.ndarray, length: int) -> np.ndarray:
        """Returns what each event's user did before it.

        Args:
            events: Indices of events `[b]` int64.
            length: Items of a history at the most.

        Returns:
            Item rows `[b, length]` int32, the newest first, padded with 0.
            Events of the same second are left out.
        """
        start = self.offsets[self.user_index(events)]
        end = events - self.tied[events]
        return newest_first(self.item_row, start, end, length)

    def save(self, folder: Path) -> None:
        """Writes the columns into `folder`."""
        folder.mkdir(parents=True, exist_ok=True)
        for name, dtype in _COLUMNS.items():
            np.save(folder / f"{name}.npy", getattr(self, name).astype(dtype, copy=False))
        np.save(folder / "offsets.npy", self.offsets.astype(np.int64, copy=False))

    @classmethod
    def open(cls, folder: Path) -> EventLog:
        """Maps the columns that `save` wrote into memory, read-only."""
        columns = {name: _map_column(folder / f"{name}.npy") for name in (*_COLUMNS, "offsets")}
        log = cls(**columns)
        lengths = {name: len(getattr(log, name)) for name in _COLUMNS}
        if set(lengths.values()) != {int(log.offsets[-1])}:
            raise RecsysError(
                "R221",
                f"The columns of {str(folder)!r} must have the length that the offsets end with.",
                "The store is damaged: delete it and run again.",
                {**lengths, "offsets[-1]": int(log.offsets[-1])},
            )
        return log

    @classmethod
    def from_events(
        cls,
        user_index: np.ndarray,
        user_row: np.ndarray,
        item_row: np.ndarray,
        timestamp: np.ndarray,
        n_users: int,
    ) -> EventLog:
        """Sorts events into a log.

        Args:
            user_index: User of each event `[n]`, in 0 … `n_users` - 1.
            user_row: Row of the user of each event `[n]`.
            item_row: Row of the item of each event `[n]`.
            timestamp: Time of each event `[n]` [seconds since 1970, UTC].
            n_users: Users of the log.
        """
        order = np.lexsort((item_row, timestamp, user_index))
        user_index, timestamp = user_index[order], timestamp[order]
        offsets = np.zeros(n_users + 1, np.int64)
        np.cumsum(np.bincount(user_index, minlength=n_users), out=offsets[1:])
        return cls(
            user_row=user_row[order].astype(np.int32),
            item_row=item_row[order].astype(np.int32),
            timestamp=timestamp.astype(np.int64),
            tied=_count_tied(user_index, timestamp),
            offsets=offsets,
        )


@dataclasses.dataclass(frozen=True)
class InteractionStore:
    """The positives of a run, split at one moment.

    Attributes:
        train: Events before the cut; user `r` of the log is user row `r`.
        eval: Events from the cut on; user `i` of the log is `eval_user_ids[i]`.
        eval_user_ids: Id of each user of `eval`.
        eval_user_rows: Row of each user of `eval` `[users]` int32; 0 without
            training events.
        cut: The moment of the split [seconds since 1970, UTC].
    """

    train: EventLog
    eval: EventLog
    eval_user_ids: list[str]
    eval_user_rows: np.ndarray
    cut: int

    def save(self, folder: Path) -> None:
        """Writes the store into `folder`; `store.json` comes last."""
        self.train.save(folder / "train")
        self.eval.save(folder / "eval")
        users = {"id": self.eval_user_ids, "user_row": self.eval_user_rows}
        pq.write_table(pa.table(users), folder / "eval" / "users.parquet")
        summary = {
            "cut": self.cut,
            "train_events": len(self.train),
            "eval_events": len(self.eval),
            "eval_users": len(self.eval_user_ids),
        }
        (folder / "store.json").write_text(json.dumps(summary, indent=1) + "\n")

    @classmethod
    def open(cls, folder: Path) -> InteractionStore:
        """Maps the store in `folder` into memory, read-only.

        Raises:
            RecsysError: The folder holds no store, or a damaged one.
        """
        try:
            summary = json.loads((folder / "store.json").read_text())
            users = pq.read_table(folder / "eval" / "users.parquet")
        except (OSError, ValueError) as error:
            raise RecsysError(
                "R220",
                f"{str(folder)!r} must hold an interaction store.",
                "Name the folder that the InteractionEncoder wrote.",
                str(error),
            ) from None
        return cls(
            train=EventLog.open(folder / "train"),
            eval=EventLog.open(folder / "eval"),
            eval_user_ids=users["id"].to_pylist(),
            eval_user_rows=users["user_row"].to_numpy(),
            cut=summary["cut"],
        )


def newest_first(
    item_row: np.ndarray, start: np.ndarray, end: np.ndarray, length: int
) -> np.ndarray:
    """Returns the last items of slices of a column, the newest first.

    Args:
        item_row: A column of item rows `[n]`.
        start: First event of each slice `[b]`.
        end: End of each slice `[b]`, exclusive.
        length: Items of a slice at the most.

    Returns:
        Item rows `[b, length]` int32, padded with 0.
    """
    positions = end[:, None] - 1 - np.arange(length)
    inside = positions >= start[:, None]
    if len(item_row) == 0:
        return np.zeros(positions.shape, np.int32)
    return np.where(inside, item_row[np.where(inside, positions, 0)], 0).astype(np.int32)


def _count_tied(user_index: np.ndarray, timestamp: np.ndarray) -> np.ndarray:
    """Returns for each sorted event how many before it share its user and second."""
    n = len(timestamp)
    position = np.arange(n)
    new = np.ones(n, bool)
    new[1:] = (user_index[1:] != user_index[:-1]) | (timestamp[1:] != timestamp[:-1])
    first = np.maximum.accumulate(np.where(new, position, 0)) if n else position
    return (position - first).astype(np.int32)


def _map_column(path: Path) -> np.ndarray:
    try:
        return np.load(path, mmap_mode="r", allow_pickle=False)
    except (OSError, ValueError, EOFError) as error:
        raise RecsysError(
            "R221",
            f"{str(path)!r} must be a whole .npy column.",
            "The store is damaged: delete it and run again.",
            str(error),
        ) from None
