"""How a model is measured, and what it must reach to be pushed."""

from __future__ import annotations

from typing import Annotated, Any, Literal, Self

from pydantic import Field, NonNegativeInt, PositiveInt, model_validator

from recsys.registry import Choice, Plugins, name_of
from recsys.strict import Repeats, Share, Strict

BASELINES = ("popularity", "recent_popularity", "item_knn", "ials")
METRICS = (
    "recall", "precision", "hit_rate", "ndcg", "map", "mrr", "auc",
    "coverage", "gini", "novelty", "popularity_lift", "diversity",
)  # fmt: skip
Ratio = Annotated[float, Field(ge=0.0)]


class EvaluateConfig(Strict):
    """The evaluation over the whole catalogue."""

    k: Annotated[tuple[PositiveInt, ...], Field(min_length=1)] = (10, 50, 100)
    """Cut-offs of the metrics of a list."""
    query: Literal["each_moment", "at_cut"] | None = None
    """`each_moment`: predict every held-out event from all that its user did before it;
    `at_cut`: one query a user, from the user's training events; `null`: `each_moment` where
    data.split is `time` or `last_out`, else `at_cut`."""
    max_queries: PositiveInt = 50_000
    """Most queries of an evaluation; where there are more, users are chosen at random,
    the same ones each time, each with all of its queries [queries]."""
    sampled_negatives: PositiveInt | None = None
    """Rank among so many random items in place of all, to reproduce papers that do; such
    figures are marked and never bless a model. `null`: among all."""
    metrics: Annotated[tuple[Annotated[Any, Choice("metric")], ...], Field(min_length=1)] = Field(
        default=METRICS, validate_default=True
    )
    """What is computed: names of metrics, or maps with their options, `{type: name, …}`. A
    registered class of one's own is named like the built-in ones."""
    baselines: tuple[Annotated[Any, Choice("baseline")], ...] = Field(
        default=BASELINES, validate_default=True
    )
    """What else is measured on the same queries: names of baselines, or maps with their
    options, `{type: name, …}`."""
    recent_days: PositiveInt = 30
    """Days before the cut whose events `recent_popularity` counts."""
    baseline_events: PositiveInt = 5_000_000
    """Newest training events that `item_knn` and `ials` learn from, at the most."""
    slices: tuple[str, ...] = ()
    """Features of items or users whose most frequent values are slices of their own."""
    small_slice: PositiveInt = 50
    """Slices of fewer users are flagged [users]."""
    confidence: Annotated[float, Field(gt=0.5, lt=1.0)] = 0.95
    """Confidence of the intervals (0.5..1)."""
    resamples: Annotated[int, Field(ge=100, le=100_000)] = 2_000
    """Bootstrap samples of the users that the intervals are made of."""
    seed: NonNegativeInt = 0
    """Seed of whatever is drawn."""

    @property
    def baseline_names(self) -> list[str]:
        """Names of the baselines."""
        return [name_of("baseline", baseline) for baseline in self.baselines]

    @property
    def deciding_keys(self) -> list[str]:
        """What metrics that a blessing can rest on are called, `recall@10` or `mrr`."""
        deciding = [m for m in self.metrics if m.decides and m.better == "higher"]
        return [key for metric in deciding for key in metric.keys(self.k)]

    @model_validator(mode="after")
    def _nothing_twice(self) -> Self:
        metrics = [name_of("metric", metric) for metric in self.metrics]
        named = {"k": self.k, "metrics": metrics, "baselines": self.baseline_names}
        for name, values in (named | {"slices": self.slices}).items():
            if len(set(values)) < len(values):
                raise ValueError(f"evaluate.{name} names something twice: {list(values)}")
        return self


class Thresholds(Strict):
    """What one metric must reach; a 0 asks for nothing.

    The lower end of the interval must reach it, so that chance alone blesses no model.
    """

    at_least: Share = 0.0
    """Lowest value of the metric."""
    over: dict[str, Ratio] = Field(default={})
    """Lowest ratio of the metric to that of each baseline that is named."""
    over_blessed: Ratio = 0.0
    """Lowest ratio of the metric to that of the last blessed model."""


class BlessRule(Thresholds):
    """Thresholds of another metric, or of one slice."""

    metric: str
    """The metric."""
    slice: str | None = None
    """Name of a slice as the report has it; `null`: all queries."""


class BlessConfig(Thresholds):
    """What a model must reach to be pushed."""

    metric: str = "recall@10"
    """The metric that decides."""
    over: dict[str, Ratio] = Field(default={"popularity": 1.0})
    """Lowest ratio of the metric to that of each baseline that is named."""
    over_blessed: Ratio = 0.9
    """Lowest ratio of the metric to that of the last blessed model."""
    over_strongest: Ratio = 0.8
    """Lowest ratio of the metric to that of the strongest baseline that was measured; 0 asks
    for none."""
    sure_loss: Literal["refuse", "allow"] = "refuse"
    """What becomes of a model that is surely worse than the strongest baseline, the whole
    interval of the difference below 0, though it reaches `over_strongest`."""
    rules: tuple[BlessRule, ...] = ()
    """More that must hold: other metrics, or single slices."""

    def all_rules(self) -> tuple[BlessRule, ...]:
        """Returns every rule, the one on the deciding metric first."""
        own = {name: getattr(self, name) for name in Thresholds.model_fields}
        return (BlessRule(metric=self.metric, **own), *self.rules)


class EvaluateStage(Strict):
    """The parts of a config that the evaluation needs."""

    plugins: Plugins = ()
    """Modules that register models, losses, metrics and other classes which the other keys
    name; they are imported before the rest is read."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """The evaluation over the whole catalogue."""
    bless: BlessConfig = BlessConfig()
    """What a model must reach to be pushed."""
    report_users: tuple[str, ...] = ()
    """Ids of users whose recommendations are shown; empty: three are chosen."""
    repeats: Repeats = "exclude"
    """Whether lists may hold items that their user has seen. `exclude`: no, and repeated
    events are not answers of a query; `include`: yes, they are treated like other items. It
    holds for validation, evaluation and the defaults of serving."""

    def of_two_models(self) -> Self:
        """Returns the same for two models, compared by the deciding metric and nothing else."""
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
            absent = [name for name, ratio in rule.over.items() if ratio and name not in measured]
            if absent:
                raise ValueError(
                    f"bless.over names {', '.join(absent)}, which evaluate.baselines doesn't hold"
                )
            earlier = [(other.metric, other.slice) for other in rules[:place]]
            if (rule.metric, rule.slice) in earlier:
                where = f" of the slice {rule.slice!r}" if rule.slice else ""
                raise ValueError(
                    f"two rules of bless decide on {rule.metric}{where}, and may contradict each"
                    " other: write all thresholds into one"
                )
        return self
