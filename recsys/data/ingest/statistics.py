"""Statistics of earlier events of all rows of a store, and their states at two moments.

The value of a row at time t comes from the rows before t with a label that was known at t: rows up
to t minus `label_after`. Training rows see training rows only, so no split gives held-out labels
away. The rows of a range of users, or of items, are sorted by key and time; what a row sees is then
the difference of two cumulative sums. Memory is bounded by the size of these ranges.
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
import shutil
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any, cast

import numpy as np
import pyarrow as pa

from recsys.data.catalogue import Catalogue
from recsys.data.event_features import (
    FOLDER,
    LearnedFeature,
    labels_of,
    load_event_features,
    save_event_features,
    time_column_of,
)
from recsys.data.event_features.statistics import Statistic, with_prior_mean
from recsys.data.event_log import ShardedColumn
from recsys.data.ingest.event_values import SAMPLE, smallest
from recsys.data.ingest.late_labels import read_late_labels, remove_late_labels
from recsys.data.statistics import FOLDER as STATISTICS
from recsys.data.statistics import MOMENTS, Moment, States, keys_of, numbers_of
from recsys.data.store import InteractionStore, add_row_features, event_order
from recsys.data.vocabulary import Vocabulary
from recsys.ragged import slices
from recsys.system.events import emit

ROWS_AT_ONCE = 1 << 22
"""Approximate number of rows of a range of users or items; more if a single one has more."""
_BLOCK = 1 << 20
_STEP = "InteractionEncoder"


def write_statistics(folder: Path, label_after_s: int = 0, most: int = ROWS_AT_ONCE) -> None:
    """Adds the statistics of earlier events to a data folder, if its config has some.

    Writes `rows/feature.<name>.npy` of the store, `statistics/`, and what the statistics learned
    from the training rows in `event_features/`.

    Args:
        folder: The data folder, with its store, vocabularies and catalogue.
        label_after_s: Age from which labels are known [s].
        most: Approximate number of rows per range of users or items.
    """
    features = load_event_features(folder / FOLDER)
    if not any(isinstance(one.feature, Statistic) for one in features):
        return
    shutil.rmtree(folder / STATISTICS, ignore_errors=True)  # Of an attempt that was interrupted.
    rows, work = _Rows(folder), folder / STATISTICS / "work"
    work.mkdir(parents=True)
    writers = {
        one.name: _Writer(one, rows, label_after_s, work)
        for one in features
        if isinstance(one.feature, Statistic)
    }
    for is_of_users in (True, False):
        same = [one for one in writers.values() if one.statistic.is_of_users == is_of_users]
        for part in rows.ranges(most, is_of_users) if same else ():
            for by in dict.fromkeys(one.statistic.by for one in same):
                grouped = _Grouped.of(part, by, rows)
                for one in same:
                    if one.statistic.by == by:
                        one.add(grouped)
    learned = {}
    for done, (name, writer) in enumerate(writers.items()):
        learned[name] = writer.finish(folder)
        text = f"statistic {name} written"
        emit("progress", step=_STEP, done=done + 1, total=len(writers), text=text)
    shutil.rmtree(work)
    remove_late_labels(folder / "store")
    now = tuple(learned.get(one.name, one) for one in features)
    column, labels = time_column_of(folder / FOLDER), labels_of(folder / FOLDER)
    save_event_features(folder / FOLDER, now, column, labels)


@dataclasses.dataclass(frozen=True)
class _Range:
    """The rows of a range of users or items, sorted by key and time.

    Attributes:
        key: Number of the user, or item row, of each row `[n]` int64.
        time: Time of each row `[n]` int64.
        row: Number of each row in the store `[n]` int64, training rows first.
    """

    key: np.ndarray
    time: np.ndarray
    row: np.ndarray


class _Rows:
    """All rows of a data folder's store, training rows first.

    Args:
        folder: The data folder.

    Attributes:
        item_row, time: Columns of the rows.
        n_trained: Number of training rows.
        cut, newest: End of the training data, and newest time [seconds since 1970, UTC].
        is_split_by_time: Whether all held-out rows are after the training rows.
        features: Features of the items, by name.
        user_rows: Own row of each user number, -1 without one `[users]`; users of training rows
            are numbered first.
    """

    def __init__(self, folder: Path) -> None:
        self._store = store = InteractionStore.open(folder / "store")
        self._folder = folder
        self._logs = [log for log in (store.train_rows, store.eval_rows) if log is not None]
        self.item_row = _joined(log.item_row for log in self._logs)
        self.time = _joined(log.timestamp for log in self._logs)
        self.n_trained = len(self._logs[0])
        self.cut, self.is_split_by_time = store.cut, store.split.split == "time"
        self.newest = max((int(times.max()) for times in self.time.shards if len(times)), default=0)
        self.features = {one.name: one for one in Catalogue.open(folder / "catalogue").features}
        users, items = (
            Vocabulary.load(folder / "vocabulary" / f"{name}.parquet")
            for name in ("users", "items")
        )
        self._item_rows = items.first_own_row, items.n_rows
        known, n = store.trained_user, len(store.train_users.rows)
        is_new = known < 0
        self._numbers = np.arange(n), np.where(is_new, n - 1 + np.cumsum(is_new), known)
        rows = np.concatenate([store.train_users.rows, store.eval_users.rows[is_new]])
        self.user_rows = np.where(rows >= users.first_own_row, rows, -1)

    def __len__(self) -> int:
        return len(self.item_row)

    def label(self, name: str) -> ShardedColumn:
        """Returns a label; in training rows, also values that were not known at the cut."""
        trained, held_out = (log.labels.get(name) for log in self._logs)
        late = read_late_labels(self._folder / "store", name)
        columns = [ShardedColumn(late) if late else trained, held_out]
        return _joined(column for column in columns if column is not None)

    def mean_label(self, name: str) -> float:
        """Returns the mean label of the training rows whose label was known at the cut."""
        total, n = 0.0, 0
        for values in self._logs[0].labels[name].shards:
            known = _numbers(values)
            known = known[~np.isnan(known)]
            total, n = total + float(known.sum()), n + len(known)
        return total / max(n, 1)

    def ranges(self, most: int, is_of_users: bool) -> Iterator[_Range]:
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

    def _range(self, keys: Sequence[np.ndarray], start: int, end: int) -> _Range:
        parts = []
        for key, time, first in zip(keys, self.time.shards, self.time.starts, strict=False):
            at = np.flatnonzero((key >= start) & (key < end))
            parts.append((key[at].astype(np.int64), time[at], at + first))
        key, time, row = map(np.concatenate, zip(*parts, strict=True))
        order = event_order(key - start, time, [row])
        return _Range(key[order], time[order], row[order])

    def _users_of_rows(self) -> Iterator[np.ndarray]:
        """Yields the number of the user of each row of each shard `[rows]` int32."""
        for log, numbers in zip(self._logs, self._numbers, strict=True):
            first = 0
            for shard in log.shards:
                own = numbers[first : (first := first + len(shard.offsets) - 1)]
                yield np.repeat(own.astype(np.int32), np.diff(shard.offsets))


@dataclasses.dataclass(frozen=True)
class _Grouped:
    """The entries of groups, sorted by group and time: rows, or their tokens.

    Attributes:
        part: The rows.
        place: Index in `part` of the row of each entry `[m]` int64; None: the entries are the rows.
        starts: Index of each group's first entry `[groups]` int64.
        keys: Key of each group `[groups]` int64, -1 without a row of its own; see `keys_of`.
        n_trained: Number of training rows of the store.
    """

    part: _Range
    place: np.ndarray | None
    starts: np.ndarray
    keys: np.ndarray
    n_trained: int

    @classmethod
    def of(cls, part: _Range, by: str | tuple[str, str], rows: _Rows) -> _Grouped:
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
        starts = np.flatnonzero(np.append(True, code[1:] != code[:-1])[: len(code)])
        first = part.key[starts if place is None else place[starts]]
        row = first if by == "item" else rows.user_rows[first]
        keys = keys_of(row) if token is None else keys_of(row) | token[starts]
        return cls(part, place, starts, np.where(row >= 0, keys, -1), rows.n_trained)

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

    def is_shown(self, rows: _Rows) -> np.ndarray:
        """Returns which rows show what is known of their users `[n]` bool.

        Training rows of users without a row of their own don't: a bundle has no states of theirs,
        so a model learns from these rows what it is to know nothing of a user.
        """
        return (rows.user_rows[self.part.key] >= 0) | (self.part.row >= self.n_trained)

    def ends_seen(self, delay_s: int) -> np.ndarray:
        """Returns the index after the last entry that each entry sees in its group `[m]`."""
        if delay_s not in self._ends_seen:
            until = _end_seen(self.of_entries(self.part.time), delay_s)
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


class _Writer:
    """Computes and writes a statistic.

    Args:
        one: The statistic.
        rows: All rows.
        label_after_s: Age from which labels are known [s].
        work: Folder for temporary files.

    Attributes:
        statistic: Its options.
    """

    def __init__(self, one: LearnedFeature, rows: _Rows, label_after_s: int, work: Path) -> None:
        self.statistic, self._rows = cast(Statistic, one.feature), rows
        label = self.statistic.label
        self._labels = None if label is None else rows.label(label)
        self._delay_s = 0 if label is None else label_after_s
        self._mean = 0.0 if label is None else rows.mean_label(label)
        self._states: dict[Moment, list[States]] = {which: [] for which in MOMENTS}
        shape = (len(rows), self.statistic.n_values)
        self._numbers = np.lib.format.open_memmap(work / f"{one.name}.npy", "w+", np.float32, shape)
        empty = np.full((1, self.statistic.n_states), self.statistic.empty)
        self._numbers[:] = numbers_of(self.statistic, empty, self._mean)

    def add(self, grouped: _Grouped) -> None:
        """Computes the numbers of rows, and the states of their groups."""
        row, is_trained = grouped.part.row, grouped.is_trained
        labels = np.ones(len(row)) if self._labels is None else _numbers(self._labels[row])
        labels = grouped.of_entries(labels)
        starts, ends = grouped.starts[grouped.group], grouped.ends_seen(self._delay_s)
        of_trained = of_all = self.statistic.reader(labels, np.ones(len(labels), bool))
        state = of_all(starts, ends)
        if not self._rows.is_split_by_time:
            of_trained = self.statistic.reader(labels, is_trained)
            state = np.where(is_trained[:, None], of_trained(starts, ends), state)
        if grouped.place is not None:
            sums = [np.bincount(grouped.place, column, len(row)) for column in state.T]
            state = np.stack(sums, axis=1)
        is_shown = slice(None) if self.statistic.by == "item" else grouped.is_shown(self._rows)
        self._numbers[row[is_shown]] = numbers_of(self.statistic, state[is_shown], self._mean)
        at_cut = _end_seen(self._rows.cut, self._delay_s)
        at_newest = self._rows.newest + 1 - self._delay_s
        group = np.arange(len(grouped.starts))
        moments = (at_cut, of_trained), (at_newest, of_all)
        for which, (moment, read) in zip(MOMENTS, moments, strict=True):
            ends = grouped.ends(group, np.full(len(group), moment))
            is_kept = (grouped.keys >= 0) & (ends > grouped.starts)
            states = read(grouped.starts[is_kept], ends[is_kept])
            self._states[which].append(States(grouped.keys[is_kept], states))

    def finish(self, folder: Path) -> LearnedFeature:
        """Writes the statistic into a data folder; returns it with what it learned."""
        name, n = self.statistic.name, self._rows.n_trained
        for which, parts in self._states.items():
            (folder / STATISTICS / which).mkdir(exist_ok=True)
            States.joined(parts, self.statistic.n_states).save(folder / STATISTICS / which, name)
        sample = np.asarray(self._numbers[: n : max(1, -(-n // SAMPLE))]).ravel()
        value, count = np.unique(sample[~np.isnan(sample)], return_counts=True)
        learned = self.statistic.learn(pa.table({"value": value, "count": count}), None)
        one = LearnedFeature(self.statistic, with_prior_mean(learned, self._mean))
        borders = itertools.pairwise(self._rows.item_row.starts.tolist())
        columns = (self._encoded(one, self._numbers[slice(*border)]) for border in borders)
        add_row_features(folder / "store", name, columns)
        return one

    def _encoded(self, one: LearnedFeature, numbers: np.ndarray) -> np.ndarray:
        blocks = slices(len(numbers), _BLOCK) or [slice(0)]
        parts = (one.encode(np.asarray(numbers[block])) for block in blocks)
        return np.concatenate([smallest(part, one.rows) for part in parts])


def _end_seen(time: Any, delay_s: int) -> Any:
    """Returns the end, exclusive, of the times of the rows that are seen at times [s].

    Args:
        time: A time, or several `[…]`.
        delay_s: Age from which labels are known.
    """
    return time - max(delay_s - 1, 0)


def _numbers(labels: np.ndarray) -> np.ndarray:
    """Returns labels as float64, NaN if unknown."""
    numbers = labels.astype(np.float64)
    return np.where(labels < 0, np.nan, numbers) if labels.dtype == np.int8 else numbers


def _joined(columns: Iterable[ShardedColumn]) -> ShardedColumn:
    """Returns columns one after the other."""
    columns = list(columns)
    return ShardedColumn([shard for one in columns for shard in one.shards], columns[0].dtype)
