"""Configs of the evaluation, and of the thresholds that a model must reach to be pushed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from recsys.registry import BUILT_INS, Choice, get, name_of, names
from recsys.registry.choice import Stage
from recsys.strict import Share, Strict

BASELINES = ("popularity", "recent_popularity", "item_knn", "ials")
Ratio = Annotated[float, Field(ge=0.0)]


def metric_names(task: str) -> list[str]:
    """Returns the names of the metrics of a task, built-in ones first."""
    return [name for name in names("metric") if getattr(get("metric", name), "task", "") == task]


METRICS = tuple(name for name in metric_names("retrieval") if name in BUILT_INS["metric"])


class EvaluateConfig(Strict):
    """Evaluation over the whole catalogue."""

    k: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (10, 50, 100)
    """Cut-offs of the list metrics."""
    query: Literal["each_moment", "at_cut"] | None = None
    """`each_moment`: predict every held-out event from all earlier events of its user; `at_cut`:
    one query per user, from the user's training events; `null`: `each_moment` if data.split is
    `time` or `last_out`, else `at_cut`."""
    max_queries: PositiveInt = 50_000
    """Highest number of queries. If there are more, a fixed random sample of users is evaluated,
    with all queries of each [queries]."""
    sampled_negatives: PositiveInt | None = None
    """Rank against this many random items instead of the whole catalogue, to reproduce published
    figures. Such figures are marked and never bless a model. `null`: the whole catalogue."""
    metrics: Annotated[tuple[Annotated[Any, Choice("metric")], ...], Field(min_length=1)] = Field(
        default=METRICS, validate_default=True
    )
    """Metrics to compute: names, or maps with options, `{type: name, …}`. Registered classes of
    plugins are named in the same way."""
    baselines: tuple[Annotated[Any, Choice("baseline")], ...] = Field(
        default=BASELINES, validate_default=True
    )
    """Baselines to evaluate on the same queries: names, or maps with options, `{type: name,
    …}`."""
    recent_days: PositiveInt = 30
    """Days before the cut whose events `recent_popularity` counts."""
    baseline_events: PositiveInt = 5_000_000
    """Highest number of training events that `item_knn` and `ials` learn from, newest first."""
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

    def check_task(self, task: str) -> None:
        """Raises `ValueError` if a metric measures the answers of another task."""
        other = [metric for metric in self.metrics if metric.task != task]
        if other:
            raise ValueError(
                f"evaluate.metrics must be of the model's task, {task}:"
                f" {', '.join(metric_names(task)) or 'none is registered'}; received"
                f" {other[0].name!r}, a metric of {other[0].task}"
            )

    @model_validator(mode="after")
    def _nothing_twice(self) -> Self:
        metrics = [name_of("metric", metric) for metric in self.metrics]
        named = {"k": self.k, "metrics": metrics, "baselines": self.baseline_names}
        for name, values in (named | {"slices": self.slices}).items():
            if len(set(values)) < len(values):
                raise ValueError(f"evaluate.{name} must not repeat values: {list(values)}")
        return self


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


class BlessConfig(Thresholds):
    """Thresholds that a model must reach to be pushed."""

    metric: str = "recall@10"
    """The deciding metric."""
    over: dict[str, Ratio] = Field(default={"popularity": 1.0})
    """Lowest ratio of the metric to each named baseline's."""
    over_blessed: Ratio = 0.9
    """Lowest ratio of the metric to the last blessed model's."""
    over_strongest: Ratio = 0.8
    """Lowest ratio of the metric to the strongest evaluated baseline's; 0: no threshold."""
    sure_loss: Literal["refuse", "allow"] = "refuse"
    """Decision on a model that is significantly worse than the strongest baseline (the whole
    interval of the difference is below 0), even if it reaches `over_strongest`."""
    rules: tuple[BlessRule, ...] = ()
    """Additional rules, for other metrics or single slices."""

    def all_rules(self) -> tuple[BlessRule, ...]:
        """Returns all rules, the rule on the deciding metric first."""
        own = {name: getattr(self, name) for name in Thresholds.model_fields}
        return (BlessRule(metric=self.metric, **own), *self.rules)


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
        bless = BlessConfig(metric=self.bless.metric, over={}, over_blessed=1.0)
        evaluate = self.evaluate.model_copy(update={"baselines": ()})
        return self.model_copy(update={"evaluate": evaluate, "bless": bless})

    @model_validator(mode="after")
    def _rules_can_be_judged(self) -> Self:
        computed, measured = self.evaluate.deciding_keys, self.evaluate.baseline_names
        rules = self.bless.all_rules()
        for place, rule in enumerate(rules):
            if rule.metric not in computed:
                raise ValueError(
                    f"bless.metric must be one of {', '.join(computed)}; received {rule.metric!r}"
                )
            if rule.at_least and rule.metric in self.evaluate.lower_keys:
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
        return self
