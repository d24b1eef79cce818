"""The rows of a store by user or by item, sorted by time, for statistics of earlier rows.

Users and items are divided into ranges whose rows fit into memory.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Collection, Iterable, Iterator, Sequence
from typing import Any

import numpy as np

from recsys.data.catalogue import Catalogue
from recsys.data.event_features.statistics import Statistic
from recsys.data.event_log import ShardedColumn
from recsys.data.statistics import TOKEN_BITS, keys_of
from recsys.data.store import PARTS, InteractionStore, event_order
from recsys.data.vocabulary import Vocabulary
from recsys.ragged import run_starts

ROWS_AT_ONCE = 1 << 22
"""Approximate number of rows of a range of users or items; more if a single one has more."""


@dataclasses.dataclass(frozen=True)
class RowRange:
    """The rows of a range of users or items, sorted by key and time.

    Attributes:
        key: Number of the user, or item row, of each row `[n]` int64.
        time: Time of each row `[n]` int64.
        row: Number of each row in the store `[n]` int64, training rows first.
    """

    key: np.ndarray
    time: np.ndarray
    row: np.ndarray


class StoreRows:
    """The rows of parts of a store, one after the other.

    Args:
        store: The store.
        catalogue: Features of the items.
        users, items: Vocabularies.
        parts: The parts: `train`, or `train` and `eval`.

    Attributes:
        item_row, time: Columns of the rows.
        n_trained: Number of training rows.
        features: Features of the items, by name.
        numbers: Number of each user of each part `[users of the part]`; users of training rows are
            numbered first.
        user_rows: Own row of each user number, -1 without one `[users]`.
    """

    def __init__(
        self,
        store: InteractionStore,
        catalogue: Catalogue,
        users: Vocabulary,
        items: Vocabulary,
        parts: Sequence[str] = PARTS,
    ) -> None:
        logs = (store.train_rows, store.eval_rows)[: len(parts)]
        self.logs = [log for log in logs if log is not None]
        self.item_row = joined(log.item_row for log in self.logs)
        self.time = joined(log.timestamp for log in self.logs)
        self.n_trained = len(self.logs[0])
        self.features = {one.name: one for one in catalogue.features}
        self._item_rows = items.first_own_row, items.n_rows
        rows = store.train_users.rows
        self.numbers = [np.arange(len(rows))]
        if len(self.logs) > 1:
            known = store.trained_user
            is_new = known < 0
            self.numbers.append(np.where(is_new, len(rows) - 1 + np.cumsum(is_new), known))
            rows = np.concatenate([rows, store.eval_users.rows[is_new]])
        self.user_rows = np.where(rows >= users.first_own_row, rows, -1)

    def __len__(self) -> int:
        return len(self.item_row)

    def label(self, name: str) -> ShardedColumn:
        """Returns a label."""
        columns = (log.labels.get(name) for log in self.logs)
        return joined(column for column in columns if column is not None)

    def own_keys(self, keys: np.ndarray) -> np.ndarray:
        """Returns keys of user numbers `[n]` with the users' own rows instead; -1 without one."""
        number, token = keys >> TOKEN_BITS, keys & ((1 << TOKEN_BITS) - 1)
        row = self.user_rows[number]
        return np.where(row >= 0, keys_of(row) | token, -1)

    def groups(
        self, statistics: Collection[Statistic], most: int = ROWS_AT_ONCE
    ) -> Iterator[tuple[RowGroups, list[Statistic]]]:
        """Yields the groups of ranges of users and items, in order, with their statistics.

        Args:
            statistics: The statistics.
            most: Approximate number of rows per range.
        """
        for is_of_users in (True, False):
            bys = dict.fromkeys(one.by for one in statistics if one.is_of_users == is_of_users)
            for part in self.ranges(most, is_of_users) if bys else ():
                for by in bys:
                    of_by = [one for one in statistics if one.by == by]
                    yield RowGroups.of(part, by, self), of_by

    def ranges(self, most: int, is_of_users: bool) -> Iterator[RowRange]:
        """Yields the rows of ranges of users or items; without items that have no row of their own.

        Args:
            most: Approximate number of rows per range.
            is_of_users: Whether the ranges are of users.
        """
        keys = [*self._users_of_rows()] if is_of_users else [*self.item_row.shards]
        first, n = (0, len(self.user_rows)) if is_of_users else self._item_rows
        counts = sum((np.bincount(one, minlength=n) for one in keys), np.zeros(n, np.int64))
        ends = np.cumsum(counts[first:])
        if not len(ends) or not ends[-1]:
            return
        n_ranges = -(-int(ends[-1]) // most)
        inside = np.searchsorted(ends, np.arange(1, n_ranges) * (ends[-1] / n_ranges)) + 1
        borders = np.unique([0, *inside, len(ends)]) + first
        for start, end in itertools.pairwise(borders.tolist()):
            yield self._range(keys, start, end)

    def _range(self, keys: Sequence[np.ndarray], start: int, end: int) -> RowRange:
        parts = []
        for key, time, first in zip(keys, self.time.shards, self.time.starts, strict=False):
            at = np.flatnonzero((key >= start) & (key < end))
            parts.append((key[at].astype(np.int64), time[at], at + first))
        key, time, row = map(np.concatenate, zip(*parts, strict=True))
        order = event_order(key - start, time, [row])
        return RowRange(key[order], time[order], row[order])

    def _users_of_rows(self) -> Iterator[np.ndarray]:
        """Yields the number of the user of each row of each shard `[rows]` int32."""
        for log, number in zip(self.logs, self.numbers, strict=True):
            first = 0
            for shard in log.shards:
                own = number[first : (first := first + len(shard.offsets) - 1)]
                yield np.repeat(own.astype(np.int32), np.diff(shard.offsets))


@dataclasses.dataclass(frozen=True)
class RowGroups:
    """The entries of groups, sorted by group and time: rows, or their tokens.

    Attributes:
        part: The rows.
        place: Index in `part` of the row of each entry `[m]` int64; None: the entries are the rows.
        starts: Index of each group's first entry `[groups]` int64.
        keys: Key of each group `[groups]` int64, ascending; see `keys_of`, with the number of a
            user in place of the row.
        n_trained: Number of training rows of the store.
    """

    part: RowRange
    place: np.ndarray | None
    starts: np.ndarray
    keys: np.ndarray
    n_trained: int

    @classmethod
    def of(cls, part: RowRange, by: str | tuple[str, str], rows: StoreRows) -> RowGroups:
        """Returns the entries of rows, grouped by `Statistic.by`."""
        code, place, token = part.key, None, None
        if isinstance(by, tuple):
            feature = rows.features[by[1]]
            bags = np.asarray(feature.bags[rows.item_row[part.row]])
            place, column = np.nonzero(bags)
            token = bags[place, column].astype(np.int64)
            code = (part.key - part.key[:1])[place] * feature.rows + token
            order = np.argsort(code, kind="stable")  # The rows of a key are in order of time.
            code, place, token = code[order], place[order], token[order]
        starts = np.flatnonzero(run_starts(code))
        keys = keys_of(part.key[starts if place is None else place[starts]])
        keys = keys if token is None else keys | token[starts]
        return cls(part, place, starts, keys, rows.n_trained)

    @functools.cached_property
    def group(self) -> np.ndarray:
        """Group of each entry `[m]` int64."""
        n = len(self.part.row if self.place is None else self.place)
        return np.repeat(np.arange(len(self.starts)), np.diff(self.starts, append=n))

    def of_entries(self, column: np.ndarray) -> np.ndarray:
        """Returns a column of the rows for each entry `[m]`."""
        return column if self.place is None else column[self.place]

    @functools.cached_property
    def is_trained(self) -> np.ndarray:
        """Which entries are of training rows `[m]` bool."""
        return self.of_entries(self.part.row < self.n_trained)

    def is_shown(self, rows: StoreRows) -> np.ndarray:
        """Returns which rows show what is known of their users `[n]` bool.

        Training rows of users without a row of their own don't: a bundle has no states of theirs,
        so a model learns from these rows what it is to know nothing of a user.
        """
        return (rows.user_rows[self.part.key] >= 0) | (self.part.row >= self.n_trained)

    def ends_seen(self, delay_s: int) -> np.ndarray:
        """Returns the index after the last entry that each entry sees in its group `[m]`."""
        if delay_s not in self._ends_seen:
            until = end_seen(self.of_entries(self.part.time), delay_s)
            self._ends_seen[delay_s] = self.ends(self.group, until)
        return self._ends_seen[delay_s]

    @functools.cached_property
    def _ends_seen(self) -> dict[int, np.ndarray]:
        return {}

    def ends(self, group: np.ndarray, until: np.ndarray) -> np.ndarray:
        """Returns the index after the last entry of groups `[k]` before times `[k]`."""
        return np.searchsorted(self._ordinals, self._ordinal(group, until))

    @functools.cached_property
    def _ordinals(self) -> np.ndarray:
        return self._ordinal(self.group, self.of_entries(self.part.time))

    def _ordinal(self, group: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Returns numbers that are sorted like groups and times."""
        first, span = self._times
        return group * span + np.clip(time - first, 0, span - 1)

    @functools.cached_property
    def _times(self) -> tuple[int, int]:
        first, last = int(self.part.time.min()), int(self.part.time.max())
        return first, last - first + 2


def end_seen(time: Any, delay_s: int) -> Any:
    """Returns the end, exclusive, of the times of the rows that are seen at times [s].

    Args:
        time: A time, or several `[…]`.
        delay_s: Age from which labels are known.
    """
    return time - max(delay_s - 1, 0)


def known(labels: np.ndarray) -> np.ndarray:
    """Returns labels as float64, NaN if unknown."""
    numbers = labels.astype(np.float64)
    return np.where(labels < 0, np.nan, numbers) if labels.dtype == np.int8 else numbers


def joined(columns: Iterable[ShardedColumn]) -> ShardedColumn:
    """Returns columns one after the other."""
    columns = list(columns)
    return ShardedColumn([shard for one in columns for shard in one.shards], columns[0].dtype)
