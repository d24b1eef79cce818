"""`evaluation.json` as the report reads it: the systems and their figures."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Any, NamedTuple

from recsys.evaluation.config import BASELINES
from recsys.evaluation.result import baseline_title, metric_description
from recsys.formats import counted, ends_of, figure, is_number, share
from recsys.metrics import metric_name
from recsys.report.runs import Artifacts, MissingError
from recsys.tasks.judging_side import BLESSED, MODEL, RERANKED, STAGES

_OWN_NAMES = {MODEL: "model", BLESSED: "last blessed"}
_STYLES = (MODEL, *BASELINES, BLESSED)
"""Order of the systems, which selects their marker and dash in every chart."""
_MANY_REPEATS = 0.2
"""Lowest share of repeated held-out events for which the report suggests `repeats: include`."""


class RelativeDifference(NamedTuple):
    """Relative difference of the model from another system in one metric.

    Attributes:
        relative: (model - other) / other; None if the other has no figure.
        interval: Interval of the difference; None if there is none.
        outcome: `better` or `worse` if the interval excludes 0, `level` if it contains 0;
            empty if there is no interval.
    """

    relative: float | None = None
    interval: tuple[float, float] | None = None
    outcome: str = ""


class Evaluated:
    """The figures of all systems, on all queries or on a slice of them.

    Args:
        part: `evaluation.json`, or its part with `metrics`, `baselines` and the like.
        deciding: Name of the metric that decides, if it is known.

    Attributes:
        part: As given.
        metrics: The model's figures by name.
        others: Keys of the systems that the model is compared with, the last blessed model last.
        deciding: The deciding metric; the first one if none is known.

    Raises:
        MissingError: There are no metrics.
    """

    def __init__(self, part: Mapping[str, Any], deciding: str | None = None) -> None:
        metrics = part.get("metrics")
        if not isinstance(metrics, dict) or not metrics:
            raise MissingError("The evaluation has no metrics.")
        self.part = part
        self.metrics: dict[str, Any] = metrics
        stages = {name: part[name]["metrics"] for name in STAGES if part.get(name)}
        self._figures = {MODEL: metrics, **stages, **(part.get("baselines") or {})}
        if part.get(BLESSED):
            self._figures[BLESSED] = part[BLESSED]
        self.others = [key for key in self._figures if key != MODEL]
        known = deciding if deciding in metrics else None
        self.deciding: str = known or next(iter(metrics))

    @classmethod
    def of(cls, artifacts: Artifacts) -> Evaluated:
        """Returns the figures on all queries."""
        decided = (artifacts.evaluated.get("verdict") or {}).get("metric")
        return cls(artifacts.evaluated, decided or artifacts.bless().get("metric"))

    @property
    def systems(self) -> list[str]:
        """Keys of all systems, the model first."""
        return [MODEL, *self.others]

    def figure(self, key: str | None, metric: str) -> Any:
        """Returns the figure of a system; None if there is none."""
        return self._figures.get(key, {}).get(metric)

    def shown(self, key: str, metric: str) -> str:
        """Returns the figure of a system as text; a share of the catalogue is in percent."""
        value = self.figure(key, metric)
        return share(value) if metric.startswith("coverage@") else figure(value)

    def beats(self, key: str, metric: str) -> bool:
        """Returns whether the figure of another system is better than the model's."""
        value, model = self.figure(key, metric), self.metrics[metric]
        better = self.description(metric)["better"]
        if not (is_number(value) and is_number(model)):
            return False
        return (better == "higher" and value > model) or (better == "lower" and value < model)

    def interval(self, metric: str) -> tuple[float, float] | None:
        """Returns the interval of the model's figure; None if there is none."""
        return ends_of((self.part.get("intervals") or {}).get(metric))

    def strongest(self) -> str | None:
        """Returns the key of the best system in the deciding metric, without the model."""
        known = {
            key: value
            for key in self.others
            if is_number(value := self.figure(key, self.deciding)) and key != RERANKED
        }
        best = min if self.is_lower(self.deciding) else max
        return best(known, key=lambda key: known[key], default=None)

    def difference(self, key: str | None, metric: str) -> RelativeDifference:
        """Returns the model's difference from the system `key`, if there is one, in `metric`."""
        comparison = (self.part.get("comparisons") or {}).get(key) or {}
        if "relative" not in comparison:
            comparison = comparison.get(metric) or {}
        if is_number(comparison.get("relative")):
            ends = ends_of(comparison.get("interval"))
            return RelativeDifference(comparison["relative"], ends, self._outcome(metric, ends))
        model, other = self.figure(MODEL, metric), self.figure(key, metric)
        if is_number(model) and is_number(other) and other > 0:
            return RelativeDifference(model / other - 1.0)
        return RelativeDifference()

    def _outcome(self, metric: str, ends: tuple[float, float] | None) -> str:
        if ends is None:
            return ""
        if ends[0] <= 0 <= ends[1]:
            return "level"
        return "better" if (ends[0] > 0) != self.is_lower(metric) else "worse"

    def description(self, metric: str) -> dict[str, Any]:
        """Returns `title`, `meaning` and `better` of a metric, with or without a cut-off."""
        return metric_description(metric_name(metric), self.part)

    def title(self, metric: str) -> str:
        """Returns a metric's name for people: `NDCG@10`, `hit rate@10`."""
        return metric_title(metric, self.part)

    def is_lower(self, metric: str) -> bool:
        """Returns whether lower values of a metric are better."""
        return bool(self.description(metric)["better"] == "lower")

    def is_beyond(self, metric: str) -> bool:
        """Returns whether a metric describes the lists, without a better direction."""
        return self.description(metric)["better"] is None

    def name(self, key: str | None) -> str:
        """Returns the name of a system in a heading; empty for none."""
        return "" if key is None else system_name(key, self.part)

    def long_name(self, key: str | None) -> str:
        """Returns the name of a system in a sentence."""
        return "the last blessed model" if key == BLESSED else self.name(key)

    def style(self, key: str) -> int:
        """Returns the marker and dash of a system in every chart, see `charts`."""
        if key in _STYLES:
            return _STYLES.index(key)
        own = [other for other in self.others if other not in _STYLES]
        free = [n for n, other in enumerate(_STYLES) if n and other not in self.others]
        return free[own.index(key) % len(free)] if free and key in own else len(_STYLES) - 1

    def interval_name(self) -> str:
        """Returns `95 % interval`, or `interval` if the share is unknown."""
        confidence = self.part.get("confidence")
        if not is_number(confidence):
            return "interval"
        return f"{100 * confidence:g}\N{NO-BREAK SPACE}% interval"


def repeats_in_words(part: Mapping[str, Any]) -> str:
    """Returns how repeated events were treated, as text; empty if there are none."""
    n_repeated, of_all = part.get("repeated_positives"), part.get("repeated_share")
    if not is_number(n_repeated) or not n_repeated:
        return ""
    events = counted(n_repeated, "held-out event", "held-out events")
    shown_share = f" ({share(of_all)})" if is_number(of_all) else ""
    repeat = "repeats" if n_repeated == 1 else "repeat"
    start = f"{events}{shown_share} {repeat} an item that its user had seen"
    if part.get("repeats") == "include":
        return f"{start}: evaluated like others (repeats: include)."
    queries = counted(part.get("repeat_only_queries"), "query that has", "queries that have")
    text = f"{start}: excluded from all figures, with {queries} no other answer (repeats: exclude)."
    if is_number(of_all) and of_all >= _MANY_REPEATS:
        text += " If lists may contain items that users have seen, set repeats to include."
    return text


def system_name(key: str, evaluation: Mapping[str, Any] | None = None) -> str:
    """Returns the name of a system in a column heading."""
    return _OWN_NAMES.get(key) or baseline_title(key, evaluation)


def metric_title(metric: str, evaluation: Mapping[str, Any] | None = None) -> str:
    """Returns a metric's name for people: `NDCG@10`, `hit rate@10`."""
    key, dot, label = metric.partition(".")
    _, at, k = key.partition("@")
    title = metric_description(metric_name(key), evaluation)["title"]
    return f"{title}{at}{k}" + (f" of {label}" if dot else "")


def cut_offs(metrics: Collection[str]) -> list[int]:
    """Returns the k of the metrics, ascending."""
    suffixes = {name.partition("@")[2] for name in metrics}
    return sorted(int(k) for k in suffixes if k.isdecimal())
