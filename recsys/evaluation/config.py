"""Configs of the evaluation, and of the thresholds that a model must reach to be pushed."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from recsys.metrics import without_label
from recsys.registry import BUILT_INS, Choice, get, name_of, names
from recsys.registry.choice import Stage
from recsys.strict import Share, Strict

BASELINES = ("popularity", "recent_popularity", "item_knn", "transitions", "ials", "ease")
Ratio = Annotated[float, Field(ge=0.0)]


def names_of_task(kind: Literal["metric", "baseline"], task: str) -> list[str]:
    """Returns the names of the metrics or baselines of a task, built-in ones first."""
    return [name for name in names(kind) if getattr(get(kind, name), "task", "") == task]


METRICS = tuple(n for n in names_of_task("metric", "retrieval") if n in BUILT_INS["metric"])


class EvaluateConfig(Strict):
    """Evaluation over the whole catalogue."""

    k: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (10, 50, 100)
    """Cut-offs of the list metrics."""
    query: Literal["each_moment", "at_cut"] | None = None
    """`each_moment`: predict every held-out event from all earlier events of its user; `at_cut`:
    one query per user, from the user's training events; `null`: `each_moment` if data.split is
    `time` or `last_out`, else `at_cut`."""
    state: Literal["cut", "live"] = "cut"
    """State from which a ranker predicts held-out rows, and by which it is blessed; the report has
    both. `cut`: histories and statistics as of the cut, as with a nightly run; `live`: of all
    events before each row."""
    max_queries: PositiveInt = 50_000
    """Highest number of queries, or of rows of a ranker. If there are more, a fixed random sample
    of users is evaluated, with all queries of each [queries]."""
    sampled_negatives: PositiveInt | None = None
    """Rank against this many random items instead of the whole catalogue, to reproduce published
    figures. Such figures are marked and never bless a model. `null`: the whole catalogue."""
    metrics: Annotated[tuple[Annotated[Any, Choice("metric")], ...], Field(min_length=1)] = Field(
        default=METRICS, validate_default=True
    )
    """Metrics to compute: names, or maps with options, `{type: name, …}`. Registered classes of
    plugins are named in the same way. Default of ranking: its
    [metrics](evaluation.md#metrics-of-scores)."""
    baselines: tuple[Annotated[Any, Choice("baseline")], ...] = Field(
        default=BASELINES, validate_default=True
    )
    """Baselines to evaluate on the same queries: names, or maps with options, `{type: name,
    …}`. Default of ranking: `constant`, `item_mean`, `logistic_regression`."""
    recent_days: PositiveInt = 30
    """Days before the cut whose events `recent_popularity` counts."""
    baseline_events: PositiveInt = 5_000_000
    """Highest number of training events, or rows, that `item_knn`, `transitions`, `ease`,
    `ials` and `logistic_regression` learn from, newest first."""
    slices: tuple[str, ...] = ()
    """Features of items or users whose most frequent values become slices."""
    small_slice: PositiveInt = 50
    """Slices of fewer users are flagged [users]."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    """Confidence level of the intervals (0.5..1)."""
    resamples: Annotated[int, Field(ge=100, le=100_000)] = 2_000
    """Number of bootstrap samples of users for the intervals."""
    seed: NonNegativeInt = 0
    """Seed of all random choices."""

    @property
    def baseline_names(self) -> list[str]:
        """Names of the baselines."""
        return [name_of("baseline", baseline) for baseline in self.baselines]

    @property
    def deciding_keys(self) -> list[str]:
        """Keys of the metrics that a blessing can use, such as `recall@10` or `mrr`."""
        deciding = [m for m in self.metrics if m.decides and m.better is not None]
        return [key for metric in deciding for key in metric.keys(self.k)]

    @property
    def lower_keys(self) -> frozenset[str]:
        """Keys of the metrics of which lower values are better."""
        lower = [metric for metric in self.metrics if metric.better == "lower"]
        return frozenset(key for metric in lower for key in metric.keys(self.k))

    def of_task(self, task: str) -> Self:
        """Returns the config with the task's defaults of the keys that it doesn't set.

        Raises:
            ValueError: A metric or baseline is of another task.
        """
        own, evaluate = get("task", task), self.model_copy()
        for key, kind in _OF_TASK.items():
            default = getattr(own, key, None)
            if key not in self.model_fields_set and default is not None:
                chosen = tuple(Choice(kind).read(name) for name in default)
                evaluate.__dict__[key] = chosen  # It is frozen, and `update` would set the key.
        evaluate.check_task(task)
        return evaluate

    def check_task(self, task: str) -> None:
        """Raises `ValueError` if a metric or baseline is of another task."""
        for key, kind in _OF_TASK.items():
            other = [one for one in getattr(self, key) if one.task != task]
            if other:
                known = ", ".join(names_of_task(kind, task)) or "none is registered"
                raise ValueError(
                    f"evaluate.{key} must be of the model's task, {task}: {known}; received"
                    f" {name_of(kind, other[0])!r}, a {kind} of {other[0].task}"
                )

    @model_validator(mode="after")
    def _nothing_twice(self) -> Self:
        metrics = [name_of("metric", metric) for metric in self.metrics]
        named = {"k": self.k, "metrics": metrics, "baselines": self.baseline_names}
        for name, values in (named | {"slices": self.slices}).items():
            if len(set(values)) < len(values):
                raise ValueError(f"evaluate.{name} must not repeat values: {list(values)}")
        return self


_OF_TASK: dict[str, Literal["metric", "baseline"]] = {
    "metrics": "metric",
    "baselines": "baseline",
}
"""Keys that name classes of a task, by the kind of class."""


class Thresholds(Strict):
    """Thresholds of one metric; 0 disables a threshold.

    The worse end of the interval must reach the threshold, so that no model is blessed by chance.
    If lower values of the metric are better, a ratio of 0.9 also means at most 10 % worse: 1.1
    times the other value.
    """

    at_least: Share = 0.0
    """Lowest value of the metric; 0 if lower values are better."""
    over: dict[str, Ratio] = Field(default={})
    """Lowest ratio of the metric to each named baseline's."""
    over_blessed: Ratio = 0.0
    """Lowest ratio of the metric to the last blessed model's."""


class BlessRule(Thresholds):
    """Thresholds of another metric, or of one slice."""

    metric: str
    """The metric."""
    slice: str | None = None
    """Name of a slice, as in the report; `null`: all queries."""
    sure_loss: Literal["refuse", "allow"] = "allow"
    """Decision on a model that is significantly worse in this metric than the last blessed one
    (the whole interval of the difference is on the worse side)."""


class BlessConfig(Thresholds):
    """Thresholds that a model must reach to be pushed."""

    metric: str = "recall@10"
    """The deciding metric. Default of ranking: `roc_auc`, with `ranker`: `ndcg@10`. Of several
    labels, `roc_auc` is that of the first, `roc_auc.buy` that of `buy`."""
    over: dict[str, Ratio] = Field(default={"popularity": 1.0})
    """Lowest ratio of the metric to each named baseline's. Default of ranking: `{item_mean:
    1.0}`."""
    over_blessed: Ratio = 0.9
    """Lowest ratio of the metric to the last blessed model's."""
    over_strongest: Ratio = 0.8
    """Lowest ratio of the metric to the strongest evaluated baseline's; 0: no threshold."""
    sure_loss: Literal["refuse", "allow"] = "refuse"
    """Decision on a model that is significantly worse than the strongest baseline (the whole
    interval of the difference is below 0), even if it reaches `over_strongest`."""
    rules: tuple[BlessRule, ...] = ()
    """Additional rules, for other metrics or single slices. Default of ranking: `[{metric:
    calibration_error, sure_loss: refuse}]`."""

    def all_rules(self) -> tuple[BlessRule, ...]:
        """Returns all rules, the rule on the deciding metric first."""
        own = {name: getattr(self, name) for name in Thresholds.model_fields}
        return (BlessRule(metric=self.metric, **own), *self.rules)

    def of_task(self, task: str, computed: Iterable[str]) -> Self:
        """Returns the config with the task's defaults of the keys that it doesn't set.

        Args:
            task: Name of the task.
            computed: Keys of the computed metrics; default rules on others are left out.
        """
        bless, default = self.model_copy(), getattr(get("task", task), "bless", {})
        own = BlessConfig.model_validate(default, strict=False)
        own.__dict__["rules"] = tuple(rule for rule in own.rules if rule.metric in {*computed})
        for key in default.keys() - self.model_fields_set:
            bless.__dict__[key] = getattr(own, key)  # It is frozen.
        return bless

    def check(self, evaluate: EvaluateConfig) -> None:
        """Raises `ValueError` if a rule can't be judged by what is evaluated."""
        computed, measured = evaluate.deciding_keys, evaluate.baseline_names
        rules = self.all_rules()
        for place, rule in enumerate(rules):
            if without_label(rule.metric) not in computed:
                raise ValueError(
                    f"bless.metric must be one of {', '.join(computed)}; received {rule.metric!r}"
                )
            if rule.at_least and without_label(rule.metric) in evaluate.lower_keys:
                raise ValueError(
                    f"bless.at_least must be 0 for {rule.metric}, of which lower values are better:"
                    f" use bless.over; received {rule.at_least}"
                )
            absent = [name for name, ratio in rule.over.items() if ratio and name not in measured]
            if absent:
                raise ValueError(
                    f"bless.over must name baselines in evaluate.baselines; {', '.join(absent)} is"
                    " missing there"
                )
            earlier = [(other.metric, other.slice) for other in rules[:place]]
            if (rule.metric, rule.slice) in earlier:
                where = f" of the slice {rule.slice!r}" if rule.slice else ""
                raise ValueError(
                    f"bless must have one rule for {rule.metric}{where}: merge the thresholds of"
                    " the two rules"
                )


class EvaluateStage(Stage):
    """The parts of a config that the evaluation needs."""

    evaluate: EvaluateConfig = EvaluateConfig()
    """Evaluation over the whole catalogue."""
    bless: BlessConfig = BlessConfig()
    """Thresholds that a model must reach to be pushed."""
    report_users: tuple[str, ...] = ()
    """Ids of users whose recommendations are shown; empty: three users are chosen."""

    def of_two_models(self) -> Self:
        """Returns the config for a comparison of two models by the deciding metric only."""
        alone = {"at_least": 0.0, "over": {}, "over_blessed": 1.0, "rules": ()}
        alone["sure_loss"] = "allow"  # Rankers of pairs are not left out.
        bless = self.bless.model_copy(update=alone)
        evaluate = self.evaluate.model_copy(update={"baselines": ()})
        return self.model_copy(update={"evaluate": evaluate, "bless": bless})

    def of_task(self, task: str) -> Self:
        """Returns the config with the task's defaults of the keys that it doesn't set.

        Raises:
            ValueError: A metric or baseline is of another task, or a rule can't be judged.
        """
        if not names_of_task("metric", task):
            return self  # It isn't evaluated.
        evaluate = self.evaluate.of_task(task)
        bless = self.bless.of_task(task, evaluate.deciding_keys)
        bless.check(evaluate)
        return self.model_copy(update={"evaluate": evaluate, "bless": bless})
