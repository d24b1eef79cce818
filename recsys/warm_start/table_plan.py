"""Of each table: which earlier row each row goes on from, and what the others start from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np

from recsys.config import WarmStartConfig
from recsys.data.catalogue import FeatureBags
from recsys.model import TowerInputs
from recsys.warm_start.base import Base
from recsys.warm_start.new_rows import NewRows, Survivors
from recsys.warm_start.row_sources import RowSources, sources_of_ids
from recsys.warm_start.token_sources import sources_of_tokens

_SIDES = ("users", "items")


class TablePlan:
    """What the tables of a model take over.

    Args:
        base: The earlier model.
        now: What is known of users and items now.
        config: What new rows start from.
    """

    def __init__(self, base: Base, now: TowerInputs, config: WarmStartConfig) -> None:
        self._base, self._before, self._now = base, base.read_inputs(), now
        self._config = config
        self._sources = {
            side: sources_of_ids(getattr(self._before, side), getattr(now, side)) for side in _SIDES
        }

    def sources(self, name: str) -> RowSources:
        """Returns where the rows of the table `name` come from."""
        if name not in self._sources:
            side = next(side for side in _SIDES if name in _features(self._now, side))
            then, today = (_features(known, side)[name] for known in (self._before, self._now))
            self._sources[name] = sources_of_tokens(then, today, self._sources[side].source)
        return self._sources[name]

    def new_rows(self, name: str, path: str) -> NewRows | None:
        """Returns what the new rows of a table start from; None: what they have.

        Args:
            name: Name of the table.
            path: Path of its weights.
        """
        sources = self.sources(name)
        rows, kind = np.flatnonzero(sources.is_new), self._config.new_rows
        survived, weights = self._survivors(name, sources), self._base.weights(path)
        if kind == "initial" or not len(rows) or not len(survived) or weights is None:
            return None
        features: Sequence[FeatureBags] = ()
        if kind == "neighbours" and name in _SIDES:
            features = list(_features(self._now, name).values())
        return NewRows(Survivors(weights, survived, sources.source[survived]), features, rows)

    def _survivors(self, name: str, sources: RowSources) -> np.ndarray:
        """Returns the rows `[n]` that new ones may be made of.

        Not padding, nor rows that many ids share; nor rows of ids that had no training
        positives, which may hold what they began with.
        """
        survived = np.flatnonzero(sources.source >= 0)
        if name not in _SIDES:
            return survived[survived > 0]
        vocabulary = getattr(self._before, name)
        source = sources.source[survived]
        is_trained = vocabulary.row_counts[source] > 0
        chosen: np.ndarray = survived[is_trained & (source >= vocabulary.first_own_row)]
        return chosen


def _features(inputs: TowerInputs, side: str) -> dict[str, FeatureBags]:
    """Returns the features of users or of items by their names."""
    features = inputs.catalogue.features if side == "items" else inputs.user_features
    return {feature.name: feature for feature in features}
