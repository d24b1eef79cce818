"""From what was measured of each subject to the figures of `evaluation.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

import numpy as np

from recsys.config import EvaluateStage, metric_names
from recsys.evaluation.measure import Case, Measured
from recsys.evaluation.metrics import per_query
from recsys.evaluation.queries import Repeats
from recsys.evaluation.significance import BLESSED, MODEL, Key, UserMeans
from recsys.evaluation.slices import Slice

_LIFT, _SHOWN, _BEFORE = "popularity_lift", "popularity", "popularity_before"


class Figures:
    """All means, intervals and comparisons of one evaluation.

    Args:
        stage: The cut-offs, the thresholds and how intervals are made.
        case: What was measured on.
        measured: What was found of the model, of each baseline and, under `blessed_model`,
            of the last blessed model.
        slices: Parts that figures are given for.
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
        self._accuracy = metric_names(case.ks)
        self.means = UserMeans(case.queries.user, config.resamples, config.confidence, config.seed)
        for subject, found in measured.items():
            for metric, values in found.per_query.items():
                self.means.add(Key(subject, metric), values)
            for part in self._slices:
                self._add_slice(subject, found, part)
        self.means.resample(self._resampled())

    def metrics(self, subject: str) -> dict[str, float]:
        """Returns every metric of a subject over all queries."""
        found = self._measured[subject]
        names = [name for name in found.per_query if not name.startswith(f"{_SHOWN}")]
        values = {name: self.means.mean(Key(subject, name)) for name in names}
        values |= {**found.totals, **self._lifts(subject)}
        return {name: value for name, value in values.items() if value is not None}

    def intervals(self) -> dict[str, list[float]]:
        """Returns the intervals of the model's metrics."""
        found = {name: self.means.interval(Key(MODEL, name)) for name in self._accuracy}
        return {name: list(ends) for name, ends in found.items() if ends is not None}

    def comparisons(self) -> dict[str, dict[str, Any]]:
        """Returns how the model differs from each other subject, by metric."""
        return {
            other: {
                metric: found
                for metric in self._accuracy
                if (found := self._difference(Key(MODEL, metric), other)) is not None
            }
            for other in self._measured
            if other != MODEL
        }

    def slices(self) -> list[dict[str, Any]]:
        """Returns the figures of each slice."""
        return [self._slice(part) for part in self._slices]

    def never_found(self, kind: str, name: str, repeats: Repeats, note: str) -> dict[str, Any]:
        """Returns the slice of positives that no list can hold: every figure of it is 0.

        Args:
            kind: What it was cut by.
            name: Its name.
            repeats: How many there are.
            note: Why no list can hold them.
        """
        nothing = dict.fromkeys(self._shown_of_slices(), 0.0)
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
        metrics = {rule.metric for rule in self._stage.bless.all_rules()}
        keys = [Key(subject, name) for subject in self._measured for name in self._accuracy]
        keys += [
            Key(subject, name, part.name)
            for part in self._slices
            for subject in self._measured
            for name in metrics
        ]
        return keys

    def _add_slice(self, subject: str, found: Measured, part: Slice) -> None:
        names = self._shown_of_slices()
        if part.of == "queries":
            values, which = found.per_query, part.which
        else:
            owner = self._case.queries.positives.owner()[part.which]
            ranks, n = found.ranking.ranks[part.which], len(self._case.queries)
            values = per_query(ranks, owner, n, self._case.ks, found.ranking.n_ranked)
            which = None
        for name in names:
            self.means.add(Key(subject, name, part.name), values[name], which)

    def _shown_of_slices(self) -> list[str]:
        """Returns the metrics that slices have: the usual ones, and those that decide."""
        usual = [f"{name}@{k}" for name in ("recall", "ndcg") for k in self._case.ks]
        deciding = [rule.metric for rule in self._stage.bless.all_rules()]
        return list(dict.fromkeys([*usual, "mrr", *deciding]))

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

    def _of_slice(self, subject: str, part: Slice) -> dict[str, float]:
        names = self._shown_of_slices()
        values = {name: self.means.mean(Key(subject, name, part.name)) for name in names}
        return {name: value for name, value in values.items() if value is not None}

    def _difference(self, key: Key, other: str) -> dict[str, Any] | None:
        found = self.means.difference(key, other)
        return None if found is None else dataclasses.asdict(found)

    def _lifts(self, subject: str) -> dict[str, float]:
        lifts = {}
        for k in self._case.ks:
            shown = self.means.mean(Key(subject, f"{_SHOWN}@{k}"))
            before = self.means.mean(Key(subject, f"{_BEFORE}@{k}"))
            if shown is not None and before:
                lifts[f"{_LIFT}@{k}"] = shown / before - 1.0
        return lifts
