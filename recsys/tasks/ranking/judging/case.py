"""The case on which systems are measured: held-out rows with known labels, and slices of them."""

from __future__ import annotations

import dataclasses
import functools
import time
from collections.abc import Collection, Iterator, Mapping
from typing import Any

import numpy as np

from recsys.data.catalogue import FeatureBags
from recsys.metrics import Metric, Values, pooled
from recsys.metrics.scores import ListNdcg, ScoredRows, ScoreMetric
from recsys.tasks import judging_side
from recsys.tasks.judging_side import Slice, slices_of_feature
from recsys.tasks.ranking.judging.baselines import Predictions
from recsys.tasks.ranking.judging.labelled_rows import LabelledRows
from recsys.tasks.ranking.rows import State


@dataclasses.dataclass(frozen=True, eq=False)
class Case:
    """The rows that all systems predict.

    Attributes:
        state: State of the histories and statistics.
        rows: The rows; each has a known label.
        metrics: The metrics to compute.
        counts: Fields of `evaluation.json`.
    """

    state: State
    rows: LabelledRows
    metrics: tuple[Metric, ...]
    counts: Mapping[str, Any] = dataclasses.field(default_factory=dict)

    @property
    def user(self) -> np.ndarray:
        """Index of each row's user in the held-out part `[n]`."""
        return self.rows.user

    @functools.cached_property
    def _users(self) -> tuple[int, np.ndarray]:
        """Number of users, and index of each row's among them `[n]`, in ascending order."""
        users, user = np.unique(self.rows.user, return_inverse=True)
        return len(users), user

    @functools.cached_property
    def keys(self) -> dict[str, tuple[str, Metric]]:
        """The label and the metric of each key: `roc_auc` of the first label, `roc_auc.buy`.

        The first label is the first of those that the metric is computed for.
        """
        found: dict[str, tuple[str, Metric]] = {}
        for metric in self.metrics:
            kinds = metric.label_kinds if isinstance(metric, ScoreMetric) else ("yes_no",)
            if isinstance(metric, ListNdcg) and self.rows.impression is None:
                continue
            for label, kind in self.rows.kinds.items():
                if kind in kinds:
                    key = f"{metric.name}.{label}" if metric.name in found else metric.name
                    found[key] = label, metric
        return found

    def scored(self, predictions: Predictions) -> dict[str, ScoredRows]:
        """Returns the rows with each label that a system predicts, with its scores."""
        n_users, user = self._users
        return {
            label: self.rows.scored(label, predictions[label], user, n_users)
            for label in self.rows.labels
            if label in predictions
        }

    def measured(self, predictions: Predictions, seconds: float) -> Measured:
        """Returns the values of a system whose predictions took `seconds`.

        Raises:
            RecsysError: A prediction is not finite (R405).
        """
        started, scored = time.monotonic(), self.scored(predictions)
        values = self.values(scored, self.keys)
        return Measured(values, {}, seconds + time.monotonic() - started, scored)

    def values(
        self,
        scored: Mapping[str, ScoredRows],
        keys: Collection[str],
        which: np.ndarray | None = None,
    ) -> Values:
        """Returns the values of some metrics.

        Args:
            scored: Scored rows by label.
            keys: Keys of the metrics.
            which: Mask of the case's rows `[n]` bool; None: all.
        """
        values: dict[str, Any] = {}
        for key in keys:
            label, metric = self.keys[key]
            if label not in scored:
                continue
            rows = scored[label]
            if which is not None:
                rows = rows.select(which[~np.isnan(self.rows.labels[label])])
            values[key] = pooled([metric], rows)[metric.name]
        return values


@dataclasses.dataclass(frozen=True)
class Measured(judging_side.Measured):
    """The values of one system.

    Attributes:
        scored: Its scored rows by label.
    """

    scored: Mapping[str, ScoredRows]


# --- slices


def make_slices(
    rows: LabelledRows,
    is_trained_user: np.ndarray,
    is_trained_item: np.ndarray,
    names: Collection[str] = (),
) -> list[Slice]:
    """Returns the slices that are not empty.

    Args:
        rows: The rows of a case.
        is_trained_user: Whether training has events of each row's user `[n]` bool.
        is_trained_item: Whether training has rows of each row's item `[n]` bool.
        names: Features with a slice for each value.
    """
    new = "no event that training saw"
    parts = [
        Slice("users", "users known to training", "rows", is_trained_user),
        Slice("users", "new users", "rows", ~is_trained_user, new),
        Slice("items", "items known to training", "rows", is_trained_item),
        Slice("items", "cold items", "rows", ~is_trained_item, "no row that training saw"),
        *_of_features(rows, names),
    ]
    return [_with_sizes(part, rows) for part in parts if part.which.any()]


def _of_features(rows: LabelledRows, names: Collection[str]) -> Iterator[Slice]:
    inputs, user_row = rows.rows.inputs, rows.rows.users.rows[rows.user]
    sides: tuple[tuple[Collection[FeatureBags], np.ndarray], ...] = (
        (inputs.catalogue.features, rows.item_row),
        (inputs.user_features, user_row),
    )
    for name in names:
        for features, of_rows in sides:
            for feature in features:
                if feature.name == name and not feature.floats:
                    yield from slices_of_feature(feature, of_rows, "rows")


def _with_sizes(part: Slice, rows: LabelledRows) -> Slice:
    sizes = {"users": len(np.unique(rows.user[part.which])), "rows": int(part.which.sum())}
    return dataclasses.replace(part, sizes=sizes)
