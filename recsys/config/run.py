"""The whole config, and the parts of it that each stage needs."""

from __future__ import annotations

import json
from collections.abc import Iterable
from typing import Annotated, Any, Literal, Self, TypeVar

import pydantic
from pydantic import Field, PositiveInt, model_validator

from recsys.config.data import DataConfig
from recsys.config.model import ModelConfig
from recsys.config.strict import Name, Share, Strict
from recsys.config.training import TrainConfig

StageT = TypeVar("StageT", "TrainStage", "EvaluateStage", "ExportStage")


class EvaluateConfig(Strict):
    """The evaluation over the whole catalogue."""

    k: tuple[PositiveInt, ...] = (10, 50, 100)
    """Cut-offs of recall@k and NDCG@k."""
    query: Literal["each_moment", "at_cut"] = "each_moment"
    """`each_moment`: predict every held-out event from all that its user did
    before it; `at_cut`: one query a user, from what the user did before the cut."""
    max_queries: PositiveInt = 50_000
    """Most queries of an evaluation; where there are more, users are chosen at random,
    the same ones each time, each with all of its queries [queries]."""


class BlessConfig(Strict):
    """What a model must reach to be pushed."""

    metric: str = "recall@10"
    """The metric that decides."""
    at_least: Share = 0.0
    """Lowest value of the metric."""
    over_popularity: Annotated[float, Field(ge=0.0)] = 1.0
    """Lowest ratio of the metric to that of the popularity baseline."""
    over_blessed: Annotated[float, Field(ge=0.0)] = 0.95
    """Lowest ratio of the metric to that of the last blessed model."""


class ExportConfig(Strict):
    """The serving bundle."""

    k: PositiveInt = 100
    """Most candidates that `recommend` can return."""


class PushConfig(Strict):
    """The serving folder."""

    keep: PositiveInt = 5
    """Newest versions kept in the serving folder."""


class BeamConfig(Strict):
    """How Beam runs."""

    args: tuple[str, ...] = ("--runner=DirectRunner",)
    """Passed to Beam as they are."""
    tfx_args: tuple[str, ...] | None = None
    """The same for TFX's own steps, StatisticsGen and Transform, for a runner that lacks
    what they need; `null`: as `args`."""


class Config(Strict):
    """Everything that a run needs to know."""

    name: Name
    """Name of the pipeline and of the served model."""
    root: str
    """Folder of everything that a run writes."""
    data: DataConfig
    """From raw files to the interaction store."""
    model: ModelConfig = ModelConfig()
    """The two towers."""
    train: TrainConfig = TrainConfig()
    """The training loop."""
    evaluate: EvaluateConfig = EvaluateConfig()
    """The evaluation over the whole catalogue."""
    bless: BlessConfig = BlessConfig()
    """What a model must reach to be pushed."""
    export: ExportConfig = ExportConfig()
    """The serving bundle."""
    push: PushConfig = PushConfig()
    """The serving folder."""
    report_users: tuple[str, ...] = ()
    """Ids of users whose recommendations are shown; empty: three are chosen."""
    beam: BeamConfig = BeamConfig()
    """How Beam runs."""

    @model_validator(mode="after")
    def _metric_is_computed(self) -> Self:
        computed = metric_names(self.evaluate.k)
        if self.bless.metric not in computed:
            raise ValueError(
                f"bless.metric must be one of {', '.join(computed)}; received {self.bless.metric!r}"
            )
        return self


class TrainStage(Strict):
    """The parts of a config that training needs."""

    model: ModelConfig = ModelConfig()
    """The two towers."""
    train: TrainConfig = TrainConfig()
    """The training loop."""


class EvaluateStage(Strict):
    """The parts of a config that the evaluation needs."""

    evaluate: EvaluateConfig = EvaluateConfig()
    """The evaluation over the whole catalogue."""
    bless: BlessConfig = BlessConfig()
    """What a model must reach to be pushed."""
    report_users: tuple[str, ...] = ()
    """Ids of users whose recommendations are shown; empty: three are chosen."""


class ExportStage(Strict):
    """The parts of a config that the export needs."""

    name: Name
    """Name of the served model."""
    export: ExportConfig = ExportConfig()
    """The serving bundle."""


def metric_names(ks: Iterable[int]) -> list[str]:
    """Returns the names of the metrics that the evaluation computes for `ks`."""
    names = [f"{metric}@{k}" for metric in ("recall", "ndcg") for k in ks]
    return [*names, "mrr"]


def stage_of(config: Config, kind: type[StageT]) -> StageT:
    """Returns the parts of `config` that the stage `kind` needs."""
    return kind(**{name: getattr(config, name) for name in kind.model_fields})


def json_schema() -> dict[str, Any]:
    """Returns the JSON schema of a config file, for editors."""
    return Config.model_json_schema()


def canonical_json(part: pydantic.BaseModel) -> str:
    """Returns one text for one meaning, fit for a cache key."""
    return json.dumps(part.model_dump(mode="json"), sort_keys=True)
