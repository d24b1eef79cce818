"""The states of statistics at two moments, and the statistics that follow from them.

    statistics/cut/       states at the cut: only of training rows
    statistics/newest/    states at the newest row
        <name>.key.npy    int64 [keys], ascending: row of the user or item, and the token
        <name>.npy        float64 [keys, n_states], see `recsys.data.event_features.statistics`

A user or an item without a row of its own has no state. `recsys.data.ingest.statistics` writes the
folder, and `recsys.savedmodel.statistics` does the same in TensorFlow.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping, Sequence
from pathlib import Path
from typing import Literal, Self, cast

import numpy as np

from recsys.data.catalogue import Catalogue
from recsys.data.event_features import FOLDER as EVENT_FEATURES
from recsys.data.event_features import Encoded, LearnedFeature, load_event_features
from recsys.data.event_features.statistics import Statistic, prior_mean
from recsys.data.label_config import LabelConfig
from recsys.data.store import map_array
from recsys.data.vocabulary import reading_data

FOLDER = "statistics"
Moment = Literal["cut", "newest"]
"""A moment whose states are stored: the end of the training data, or the newest row."""
MOMENTS: tuple[Moment, ...] = ("cut", "newest")
TOKEN_BITS = 32
"""Number of low bits of a key that hold the token, 0 without one."""


@dataclasses.dataclass(frozen=True)
class States:
    """The states of a statistic.

    Attributes:
        keys: Keys `[n]` int64, ascending; see `keys_of`.
        values: Their states `[n, n_states]` float64.
    """

    keys: np.ndarray
    values: np.ndarray

    def find(self, keys: np.ndarray, empty: float) -> np.ndarray:
        """Returns the states `[…, n_states]` of `keys` `[…]`, `empty` for unknown keys."""
        if not len(self.keys):
            return np.full((*keys.shape, self.values.shape[1]), empty)
        at = np.minimum(np.searchsorted(self.keys, keys), len(self.keys) - 1)
        return np.where((self.keys[at] == keys)[..., None], self.values[at], empty)

    @classmethod
    def joined(cls, parts: Sequence[Self], n_states: int) -> Self:
        """Returns the states of several parts that have no key in common."""
        keys = np.concatenate([np.zeros(0, np.int64), *(part.keys for part in parts)])
        values = np.concatenate([np.zeros((0, n_states)), *(part.values for part in parts)])
        order = np.argsort(keys, kind="stable")
        return cls(keys[order], values[order])

    def save(self, folder: Path, name: str) -> None:
        """Writes the states of the statistic `name` into `folder`."""
        np.save(folder / f"{name}.key.npy", self.keys)
        np.save(folder / f"{name}.npy", self.values)

    @classmethod
    def load(cls, folder: Path, name: str) -> Self:
        """Maps the states of the statistic `name` into memory."""
        keys, values = (np.asarray(map_array(folder / f"{name}{x}.npy")) for x in (".key", ""))
        if values.shape[:1] != keys.shape or values.ndim != 2:
            raise ValueError(f"{name}: {keys.shape} keys, and {values.shape} states")
        return cls(keys, values)


def keys_of(rows: np.ndarray, tokens: np.ndarray | None = None) -> np.ndarray:
    """Returns the keys of rows `[…]`, or of each of their tokens `[…, width]`, int64."""
    keys = np.asarray(rows, np.int64) << TOKEN_BITS
    return keys if tokens is None else keys[..., None] | tokens


@dataclasses.dataclass(frozen=True)
class StatisticsState:
    """The states of all statistics at a moment.

    Attributes:
        statistics: The statistics, with what they learned.
        states: Their states by name.
    """

    statistics: tuple[LearnedFeature, ...]
    states: Mapping[str, States]

    @classmethod
    def open(cls, folder: Path, which: Moment) -> Self:
        """Maps the states of a data folder or a model folder into memory.

        Args:
            folder: The folder.
            which: The moment.

        Raises:
            RecsysError: A file is missing or damaged (R230).
        """
        features = load_event_features(folder / EVENT_FEATURES)
        own = tuple(one for one in features if isinstance(one.feature, Statistic))
        with reading_data(folder / FOLDER, "the states of the statistics"):
            at = folder / FOLDER / which
            return cls(own, {one.name: States.load(at, one.name) for one in own})

    def features(
        self, user_row: np.ndarray, item_row: np.ndarray, catalogue: Catalogue
    ) -> dict[str, Encoded]:
        """Returns the statistics of pairs of a user and an item, as a model reads them.

        Args:
            user_row: User rows `[n]`.
            item_row: Item rows `[n]`.
            catalogue: Features of the items.

        Returns:
            Token rows `[n, width]` int32, or numbers `[n, floats]` float32, by name.
        """
        found, bags = {}, {feature.name: feature.bags for feature in catalogue.features}
        for one in self.statistics:
            statistic, states = cast(Statistic, one.feature), self.states[one.name]
            if statistic.item_feature is None:
                rows = user_row if statistic.is_of_users else item_row
                state = states.find(keys_of(rows), statistic.empty)
            else:
                keys = keys_of(user_row, np.asarray(bags[statistic.item_feature][item_row]))
                state = states.find(keys, statistic.empty).sum(axis=1)
            mean = prior_mean(one.learned)
            found[one.name] = one.encode(numbers_of(statistic, state, mean))
        return found

    def without_users(self, rows: np.ndarray) -> dict[str, States]:
        """Returns the changed states by name, after the states of user rows `[n]` are removed."""
        changed = {}
        for one in self.statistics:
            if cast(Statistic, one.feature).is_of_users:
                states = self.states[one.name]
                is_kept = ~np.isin(states.keys >> TOKEN_BITS, rows)
                if not is_kept.all():
                    changed[one.name] = States(states.keys[is_kept], states.values[is_kept])
        return changed


def labels_of_users(
    features: Iterable[LearnedFeature], labels: Mapping[str, LabelConfig]
) -> dict[str, LabelConfig]:
    """Returns the labels that statistics of users are of, and those that they are `given`.

    Args:
        features: Features of events, some of which are statistics.
        labels: Labels of the data by name, each after its `given`.
    """
    statistics = [one.feature for one in features if isinstance(one.feature, Statistic)]
    names = {one.label for one in statistics if one.is_of_users}
    for name, label in reversed([*labels.items()]):
        if name in names:
            names.add(label.given)
    return {name: label for name, label in labels.items() if name in names}


def entry_of_none(one: LearnedFeature) -> np.ndarray:
    """Returns a statistic of no rows, as a model reads it `[width]` int32 or `[floats]` float32."""
    statistic = cast(Statistic, one.feature)
    state = np.full((1, statistic.n_states), statistic.empty)
    return one.encode(numbers_of(statistic, state, prior_mean(one.learned)))[0]


def numbers_of(statistic: Statistic, state: np.ndarray, mean: float) -> np.ndarray:
    """Returns the numbers `[n, n_values]` float32 of states `[n, n_states]`.

    Args:
        statistic: The statistic.
        state: The states.
        mean: Mean label of the training rows.
    """
    numbers: np.ndarray = statistic.values(state, mean).astype(np.float32)
    return numbers
