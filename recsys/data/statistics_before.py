"""Statistics of any user and any item at any time, from the rows of a store before it.

An item that is drawn for a row has no row of its own with the statistics that the ingest stored.
So the state of each user, item or pair after each of its rows is kept, sorted by key and time, and
a binary search finds the last one before a time. For a stored row it is what the ingest stored.
The states are in unnamed temporary files: memory does not grow with the number of rows.
"""

from __future__ import annotations

import functools
import os
import tempfile
from collections.abc import Sequence
from typing import Any, cast

import numpy as np

from recsys.data.catalogue import Catalogue
from recsys.data.event_features import Encoded, LearnedFeature
from recsys.data.event_features.statistics import Statistic, label_after_s, prior_mean
from recsys.data.row_groups import ROWS_AT_ONCE, RowGroups, StoreRows, end_seen, known
from recsys.data.statistics import keys_of, numbers_of
from recsys.data.store import PARTS, InteractionStore
from recsys.data.vocabulary import Vocabulary


class StatisticsBefore:
    """The statistics of users and items before a time, computed from a store when first used.

    Args:
        store: The store.
        part: The part of the users: `train`, whose rows alone count, or `eval`, for which training
            rows count, too.
        catalogue: Features of the items.
        users, items: Vocabularies.
        statistics: The statistics, with what they learned.
        most: Approximate number of rows that are sorted at a time.
    """

    def __init__(
        self,
        store: InteractionStore,
        part: str,
        catalogue: Catalogue,
        users: Vocabulary,
        items: Vocabulary,
        statistics: Sequence[LearnedFeature],
        most: int = ROWS_AT_ONCE,
    ) -> None:
        self.statistics = tuple(statistics)
        self._sources = store, catalogue, users, items, PARTS[: PARTS.index(part) + 1]
        self._bags = {feature.name: feature.bags for feature in catalogue.features}
        self._is_train, self._most = part == "train", most

    def features(
        self, user: np.ndarray, item_row: np.ndarray, time: np.ndarray
    ) -> dict[str, Encoded]:
        """Returns the statistics of pairs of a user and an item, as a model reads them.

        Args:
            user: Index of each user in the part `[n]`.
            item_row: Item rows `[n]`.
            time: Times `[n]` [seconds since 1970, UTC]; rows of this second don't count.

        Returns:
            Token rows `[n, width]` int32, or numbers `[n, floats]` float32, by name.
        """
        found: dict[str, Encoded] = {}
        for one in self.statistics:
            statistic, states = cast(Statistic, one.feature), self._states[one.name]
            if statistic.is_of_users:
                number = self._rows.numbers[-1][user]
                is_shown = (self._rows.user_rows[number] >= 0) | (not self._is_train)
            if statistic.item_feature is not None:
                tokens = np.asarray(self._bags[statistic.item_feature][item_row])
                state = states.find(keys_of(number, tokens), time[:, None]).sum(axis=1)
            else:
                state = states.find(keys_of(number if statistic.is_of_users else item_row), time)
            if statistic.is_of_users:  # Else see `RowGroups.is_shown`.
                state = np.where(is_shown[:, None], state, statistic.empty)
            found[one.name] = one.encode(numbers_of(statistic, state, prior_mean(one.learned)))
        return found

    @functools.cached_property
    def _rows(self) -> StoreRows:
        return StoreRows(*self._sources)

    @functools.cached_property
    def _states(self) -> dict[str, _StatesBefore]:
        """The states by statistic."""
        states = {one.name: _StatesBefore(one, self._rows) for one in self.statistics}
        kinds = [one.statistic for one in states.values()]
        for groups, statistics in self._rows.groups(kinds, self._most):
            for statistic in statistics:
                states[statistic.name].add(groups)
        for own in states.values():
            own.finish()
        return states


class _StatesBefore:
    """The states of a statistic after each row whose label is known.

    Args:
        one: The statistic.
        rows: The rows.
    """

    def __init__(self, one: LearnedFeature, rows: StoreRows) -> None:
        self.statistic = cast(Statistic, one.feature)
        self._labels = None if (name := self.statistic.label) is None else rows.label(name)
        self._delay_s = label_after_s(one.learned)
        times = [shard for shard in rows.time.shards if len(shard)]
        self._first = min((int(shard.min()) for shard in times), default=0)
        self._span = max((int(shard.max()) for shard in times), default=0) - self._first + 2
        self._keys, self._n_groups = [np.zeros(0, np.int64)], 0
        self._written = _Written(np.int64), _Written(np.float64, self.statistic.n_states)

    def add(self, groups: RowGroups) -> None:
        """Adds the rows of groups, whose keys are greater than all before."""
        row = groups.part.row
        labels = np.ones(len(row)) if self._labels is None else known(self._labels[row])
        labels = groups.of_entries(labels)
        counted = np.flatnonzero(~np.isnan(labels))
        group = groups.group[counted]
        read = self.statistic.reader(labels, np.ones(len(labels), bool))
        time = groups.of_entries(groups.part.time)[counted]
        self._written[0].append(self._ordinals(self._n_groups + group, time))
        self._written[1].append(read(groups.starts[group], counted + 1))
        self._keys.append(groups.keys)
        self._n_groups += len(groups.keys)

    def finish(self) -> None:
        """Ends the additions, before `find`."""
        self._sorted_keys = np.concatenate(self._keys)
        self._at, self._values = (written.mapped() for written in self._written)

    def find(self, keys: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Returns the states `[…, n_states]` of keys `[…]` before times."""
        if not len(self._at):
            return np.full((*keys.shape, self.statistic.n_states), self.statistic.empty)
        group = np.minimum(np.searchsorted(self._sorted_keys, keys), len(self._sorted_keys) - 1)
        until = self._ordinals(group, end_seen(time, self._delay_s))
        last = np.searchsorted(self._at, until) - 1
        is_there = (self._sorted_keys[group] == keys) & (last >= 0)
        is_there &= self._at[last] >= group * self._span
        return np.where(is_there[..., None], self._values[last], self.statistic.empty)

    def _ordinals(self, group: np.ndarray, time: np.ndarray) -> np.ndarray:
        """Returns numbers that are sorted like groups and times."""
        return group * self._span + np.clip(time - self._first, 0, self._span - 1)


class _Written:
    """An array that is written in pieces to an unnamed temporary file.

    Args:
        dtype: Its dtype.
        width: Number of values of an entry.
    """

    def __init__(self, dtype: Any, *width: int) -> None:
        self._file = tempfile.TemporaryFile()  # noqa: SIM115 (`mapped` closes it)
        self._dtype, self._width = np.dtype(dtype), width

    def append(self, piece: np.ndarray) -> None:
        """Writes more entries `[n, …]`."""
        self._file.write(np.ascontiguousarray(piece, self._dtype).data)

    def mapped(self) -> np.ndarray:
        """Returns the array, mapped into memory, read-only; nothing can be added."""
        with self._file as file:
            file.flush()
            n = os.fstat(file.fileno()).st_size // (
                self._dtype.itemsize * int(np.prod(self._width))
            )
            if not n:
                return np.zeros((0, *self._width), self._dtype)
            return np.asarray(np.memmap(file, self._dtype, "r", shape=(n, *self._width)))
