"""The means, intervals, comparisons and slices of `evaluation.json`."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Mapping
from typing import Any

from recsys.evaluation.config import EvaluateStage
from recsys.evaluation.significance import Key, UserMeans
from recsys.tasks.judging_side import BLESSED, MODEL, Case, JudgingSide, Measured, Slice


class Figures:
    """All means, intervals and comparisons of one case.

    Args:
        stage: Cut-offs, thresholds, and options of the intervals.
        side: Judging side of the task.
        case: Case on which the systems were measured.
        measured: The model, each baseline and, under `blessed_model`, the last blessed model.
        slices: Slices to compute figures for.

    Attributes:
        means: Means over users, with their intervals.
    """

    def __init__(
        self,
        stage: EvaluateStage,
        side: JudgingSide[Any, Any, Any],
        case: Case,
        measured: Mapping[str, Measured],
        slices: Iterable[Slice] = (),
    ) -> None:
        config, ks = stage.evaluate, sorted(stage.evaluate.k)
        self._stage, self._measured, self._slices = stage, measured, list(slices)
        self._others = [name for name in measured if name != MODEL]
        values, rules = measured[MODEL].values, {rule.metric for rule in stage.bless.all_rules()}
        deciding = [metric for metric in config.metrics if metric.decides]
        keys = {m.name: [key for key in m.keys(ks) if key in values] for m in deciding}
        self._accuracy = [key for own in keys.values() for key in own]
        usual = {key for name in side.sliced for key in keys.get(name, ())}
        self._sliced = [key for key in self._accuracy if key in usual | rules]
        self.means = UserMeans(case.user, config.resamples, config.confidence, config.seed)
        for name, system in measured.items():
            for key, x in system.values.items():
                self.means.add(Key(name, key), x)
            for part in self._slices:
                if part.which.any():
                    of_part = side.slice_values(part, case, system, self._sliced)
                    for key in self._sliced:
                        if key in of_part:
                            self.means.add(Key(name, key, part.name), of_part[key])
        names = [None, *(part.name for part in self._slices)]
        self.means.resample(
            Key(system, key, name)
            for name in names
            for system in measured
            for key in self._accuracy
            if name is None or key in rules
        )

    def metrics(self, system: str) -> dict[str, float]:
        """Returns every metric of a system over all queries."""
        measured = self._measured[system]
        means = {key: self.means.mean(Key(system, key)) for key in measured.values}
        known = {key: value for key, value in means.items() if value is not None}
        return {**known, **measured.totals}

    def intervals(self) -> dict[str, list[float]]:
        """Returns the intervals of the model's metrics."""
        intervals = {key: self.means.interval(Key(MODEL, key)) for key in self._accuracy}
        return {key: list(ends) for key, ends in intervals.items() if ends is not None}

    def comparisons(self) -> dict[str, dict[str, Any]]:
        """Returns the differences of the model from each other system, by metric."""
        return {
            other: {
                key: difference
                for key in self._accuracy
                if (difference := self._difference(Key(MODEL, key), other)) is not None
            }
            for other in self._others
        }

    def slices(self) -> list[dict[str, Any]]:
        """Returns the figures of each slice."""
        return [self._slice(part) for part in self._slices]

    def _slice(self, part: Slice) -> dict[str, Any]:
        key = Key(MODEL, self._stage.bless.metric, part.name)
        interval = self.means.interval(key)
        figures = {name: self._of_slice(name, part) for name in self._measured}
        return {
            "kind": part.kind,
            "name": part.name,
            "of": part.of,
            "note": part.note,
            **part.sizes,
            "is_small": part.sizes["users"] < self._stage.evaluate.small_slice,
            "metrics": figures[MODEL],
            "interval": None if interval is None else list(interval),
            "baselines": {name: figures[name] for name in self._others if name != BLESSED},
            "blessed_model": figures.get(BLESSED),
            "comparisons": {other: self._difference(key, other) for other in self._others},
        }

    def _of_slice(self, system: str, part: Slice) -> dict[str, float]:
        if not part.which.any():
            return dict.fromkeys(self._sliced, 0.0)
        values = {key: self.means.mean(Key(system, key, part.name)) for key in self._sliced}
        return {key: value for key, value in values.items() if value is not None}

    def _difference(self, key: Key, other: str) -> dict[str, Any] | None:
        difference = self.means.difference(key, other)
        return None if difference is None else dataclasses.asdict(difference)
