"""Computes the figures of `evaluation.json` from the measurements of each system."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from recsys.config import EvaluateStage
from recsys.evaluation.measurement import Case, Measured
from recsys.evaluation.queries import Repeats
from recsys.evaluation.significance import BLESSED, MODEL, Key, UserMeans
from recsys.evaluation.slices import Slice
from recsys.metrics.metric import per_query

_SLICED = ("recall", "ndcg", "mrr")
"""Metrics that slices have, beside those that the blessing rests on."""


class Figures:
    """All means, intervals and comparisons of one evaluation.

    Args:
        stage: The cut-offs, the thresholds and how intervals are made.
        case: The shared inputs of the measurements.
        measured: The model, each baseline and, under `blessed_model`, the last blessed
            model, as they were measured.
        slices: The slices of queries and positives.
    """

    def __init__(
        self,
        stage: EvaluateStage,
        case: Case,
        measured: Mapping[str, Measured],
        slices: Iterable[Slice] = (),
    ) -> None:
        config = stage.evaluate
        self._stage, self._case, self._measured = stage, case, measured
        self._slices = list(slices)
        self._accuracy = [
            key for metric in case.computed if metric.decides for key in metric.keys(case.ks)
        ]
        rules = {rule.metric for rule in stage.bless.all_rules()}
        self._deciding = [key for key in self._accuracy if key in rules]
        usual = {key for m in case.computed if m.name in _SLICED for key in m.keys(case.ks)}
        self._sliced = [key for key in self._accuracy if key in usual | rules]
        self._of_slices = [m for m in case.computed if {*m.keys(case.ks)} & {*self._sliced}]
        self.means = UserMeans(case.queries.user, config.resamples, config.confidence, config.seed)
        for name, system in measured.items():
            for metric, values in system.per_query.items():
                self.means.add(Key(name, metric), values)
            for part in self._slices:
                self._add_slice(name, system, part)
        self.means.resample(self._resampled())

    def metrics(self, system: str) -> dict[str, float]:
        """Returns every metric of a system over all queries."""
        measured = self._measured[system]
        means = {name: self.means.mean(Key(system, name)) for name in measured.per_query}
        known = {name: value for name, value in means.items() if value is not None}
        return known | measured.totals

    def intervals(self) -> dict[str, list[float]]:
        """Returns the intervals of the model's metrics."""
        intervals = {name: self.means.interval(Key(MODEL, name)) for name in self._accuracy}
        return {name: list(ends) for name, ends in intervals.items() if ends is not None}

    def comparisons(self) -> dict[str, dict[str, Any]]:
        """Returns how the model differs from each other system, by metric."""
        return {
            other: {
                metric: difference
                for metric in self._accuracy
                if (difference := self._difference(Key(MODEL, metric), other)) is not None
            }
            for other in self._measured
            if other != MODEL
        }

    def slices(self) -> list[dict[str, Any]]:
        """Returns the figures of each slice."""
        return [self._slice(part) for part in self._slices]

    def never_found(self, kind: str, name: str, repeats: Repeats, note: str) -> dict[str, Any]:
        """Returns the slice of positives that no list can contain: all its figures are 0.

        Args:
            kind: What it was cut by.
            name: Its name.
            repeats: How many there are.
            note: Why no list can hold them.
        """
        nothing = dict.fromkeys(self._sliced, 0.0)
        others = [name for name in self._measured if name != MODEL]
        return {
            "kind": kind,
            "name": name,
            "of": "positives",
            "note": note,
            "users": repeats.users,
            "queries": repeats.queries,
            "positives": repeats.positives,
            "is_small": repeats.users < self._stage.evaluate.small_slice,
            "metrics": nothing,
            "interval": None,
            "baselines": {other: nothing for other in others if other != BLESSED},
            "blessed_model": nothing if BLESSED in others else None,
            "comparisons": dict.fromkeys(others),
        }

    def _resampled(self) -> list[Key]:
        keys = [Key(system, name) for system in self._measured for name in self._accuracy]
        keys += [
            Key(system, name, part.name)
            for part in self._slices
            for system in self._measured
            for name in self._deciding
        ]
        return keys

    def _add_slice(self, name: str, system: Measured, part: Slice) -> None:
        values, which = system.per_query, None
        if part.of == "queries":
            which = part.which
        else:
            lists = self._case.lists(system.ranking, part.which)
            values = per_query(self._of_slices, lists, self._case.ks)
        for metric in self._sliced:
            self.means.add(Key(name, metric, part.name), values[metric], which)

    def _slice(self, part: Slice) -> dict[str, Any]:
        owner = self._case.queries.positives.owner()
        if part.of == "queries":
            queries = np.flatnonzero(part.which)
            n_positives = int(part.which[owner].sum())
        else:
            queries = np.unique(owner[part.which])
            n_positives = int(part.which.sum())
        n_users = len(np.unique(self._case.queries.user[queries]))
        key = Key(MODEL, self._stage.bless.metric, part.name)
        ends = self.means.interval(key)
        others = [name for name in self._measured if name != MODEL]
        return {
            "kind": part.kind,
            "name": part.name,
            "of": part.of,
            "note": part.note,
            "users": n_users,
            "queries": len(queries),
            "positives": n_positives,
            "is_small": n_users < self._stage.evaluate.small_slice,
            "metrics": self._of_slice(MODEL, part),
            "interval": None if ends is None else list(ends),
            "baselines": {o: self._of_slice(o, part) for o in others if o != BLESSED},
            "blessed_model": self._of_slice(BLESSED, part) if BLESSED in others else None,
            "comparisons": {other: self._difference(key, other) for other in others},
        }

    def _of_slice(self, system: str, part: Slice) -> dict[str, float]:
        values = {name: self.means.mean(Key(system, name, part.name)) for name in self._sliced}
        return {name: value for name, value in values.items() if value is not None}

    def _difference(self, key: Key, other: str) -> dict[str, Any] | None:
        difference = self.means.difference(key, other)
        return None if difference is None else dataclasses.asdict(difference)
