"""Statistics of earlier events of all rows of a store, and their states at two moments.

The value of a row at time t comes from the rows before t with a label that was known at t: rows up
to t minus `label_after`. Training rows see training rows only, so no split gives held-out labels
away. The rows of a range of users, or of items, are sorted by key and time; what a row sees is then
the difference of two cumulative sums. Memory is bounded by the size of these ranges.
"""

from __future__ import annotations

import itertools
import shutil
from pathlib import Path
from typing import cast

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
from recsys.data.event_features.statistics import Statistic, with_facts
from recsys.data.event_log import ShardedColumn
from recsys.data.ingest.event_values import SAMPLE, smallest
from recsys.data.ingest.late_labels import read_late_labels, remove_late_labels
from recsys.data.row_groups import ROWS_AT_ONCE, RowGroups, StoreRows, end_seen, joined, known
from recsys.data.statistics import FOLDER as STATISTICS
from recsys.data.statistics import MOMENTS, Moment, States, numbers_of
from recsys.data.store import InteractionStore, add_row_features
from recsys.data.vocabulary import Vocabulary
from recsys.ragged import slices
from recsys.system.events import emit

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
    rows, work = _AllRows(folder), folder / STATISTICS / "work"
    work.mkdir(parents=True)
    writers = {
        one.name: _Writer(one, rows, label_after_s, work)
        for one in features
        if isinstance(one.feature, Statistic)
    }
    for groups, statistics in rows.groups([one.statistic for one in writers.values()], most):
        for statistic in statistics:
            writers[statistic.name].add(groups)
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


class _AllRows(StoreRows):
    """All rows of a data folder's store, with labels that were not known at the cut.

    Args:
        folder: The data folder.

    Attributes:
        cut, newest: End of the training data, and newest time [seconds since 1970, UTC].
        is_split_by_time: Whether all held-out rows are after the training rows.
    """

    def __init__(self, folder: Path) -> None:
        store = InteractionStore.open(folder / "store")
        names = ("users", "items")
        users, items = (Vocabulary.load(folder / "vocabulary" / f"{n}.parquet") for n in names)
        super().__init__(store, Catalogue.open(folder / "catalogue"), users, items)
        self._folder = folder
        self.cut, self.is_split_by_time = store.cut, store.split.split == "time"
        self.newest = max((int(times.max()) for times in self.time.shards if len(times)), default=0)

    def label(self, name: str) -> ShardedColumn:
        """Returns a label; in training rows, also values that were not known at the cut."""
        if not (late := read_late_labels(self._folder / "store", name)):
            return super().label(name)
        held_out = self.logs[1].labels.get(name)
        return joined(x for x in (ShardedColumn(late), held_out) if x is not None)

    def mean_label(self, name: str) -> float:
        """Returns the mean label of the training rows whose label was known at the cut."""
        total, n = 0.0, 0
        for values in self.logs[0].labels[name].shards:
            labels = known(values)
            labels = labels[~np.isnan(labels)]
            total, n = total + float(labels.sum()), n + len(labels)
        return total / max(n, 1)


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

    def __init__(self, one: LearnedFeature, rows: _AllRows, label_after_s: int, work: Path) -> None:
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

    def add(self, grouped: RowGroups) -> None:
        """Computes the numbers of rows, and the states of their groups."""
        row, is_trained = grouped.part.row, grouped.is_trained
        labels = np.ones(len(row)) if self._labels is None else known(self._labels[row])
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
        at_cut = end_seen(self._rows.cut, self._delay_s)
        at_newest = self._rows.newest + 1 - self._delay_s
        group, keys = np.arange(len(grouped.starts)), grouped.keys
        if self.statistic.is_of_users:
            keys = self._rows.own_keys(keys)
        moments = (at_cut, of_trained), (at_newest, of_all)
        for which, (moment, read) in zip(MOMENTS, moments, strict=True):
            ends = grouped.ends(group, np.full(len(group), moment))
            is_kept = (keys >= 0) & (ends > grouped.starts)
            states = read(grouped.starts[is_kept], ends[is_kept])
            self._states[which].append(States(keys[is_kept], states))

    def finish(self, folder: Path) -> LearnedFeature:
        """Writes the statistic into a data folder; returns it with what it learned."""
        name, n = self.statistic.name, self._rows.n_trained
        for which, parts in self._states.items():
            (folder / STATISTICS / which).mkdir(exist_ok=True)
            States.joined(parts, self.statistic.n_states).save(folder / STATISTICS / which, name)
        sample = np.asarray(self._numbers[: n : max(1, -(-n // SAMPLE))]).ravel()
        value, count = np.unique(sample[~np.isnan(sample)], return_counts=True)
        learned = self.statistic.learn(pa.table({"value": value, "count": count}), None)
        one = LearnedFeature(self.statistic, with_facts(learned, self._mean, self._delay_s))
        borders = itertools.pairwise(self._rows.item_row.starts.tolist())
        columns = (self._encoded(one, self._numbers[slice(*border)]) for border in borders)
        add_row_features(folder / "store", name, columns)
        return one

    def _encoded(self, one: LearnedFeature, numbers: np.ndarray) -> np.ndarray:
        blocks = slices(len(numbers), _BLOCK) or [slice(0)]
        parts = (one.encode(np.asarray(numbers[block])) for block in blocks)
        return np.concatenate([smallest(part, one.rows) for part in parts])
