"""The whole config, and the parts of it that each stage needs."""

from __future__ import annotations

import json
from typing import Any, Literal, Self, TypeVar

import pydantic
from pydantic import PositiveFloat, PositiveInt, model_validator

from recsys.config.data import DataConfig
from recsys.config.evaluation import BlessConfig, EvaluateConfig, check_rules
from recsys.config.index import IndexConfig
from recsys.config.keep import KeepConfig
from recsys.config.metadata import MetadataConfig
from recsys.config.model import ModelConfig
from recsys.config.notify import NotifyConfig
from recsys.config.split import misfits_of_run, refuse
from recsys.config.strict import Name, Repeats, Share, Strict
from recsys.config.training import TrainConfig
from recsys.config.warm_start import WarmStartConfig

StageT = TypeVar("StageT", "TrainStage", "EvaluateStage", "ExportStage")


class ExportConfig(Strict):
    """The serving bundle."""

    k: PositiveInt = 100
    """Most candidates that `recommend` can return."""
    item_embeddings: Literal["float32", "float16", "int8"] = "float32"
    """What the SavedModel stores of the items: `float16` is half as large, `int8` a quarter."""
    min_parity: Share = 0.99
    """Share of exact float32's best that shorter item embeddings must find [0..1]."""
    latency_ms: PositiveFloat | None = None
    """Longest that 99 % of single requests may take before a bundle is refused [ms];
    `null`: it isn't measured."""
    index: IndexConfig = IndexConfig()
    """How `recsys serve` finds the best items."""


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
    repeats: Repeats = "exclude"
    """What becomes of items that a user has seen. `exclude`: they are in no list of that
    user, and what is taken again is no answer of a query; `include`: they are items like
    others. Validation, evaluation and the defaults of what serves go by it."""
    model: ModelConfig = ModelConfig()
    """The two towers."""
    train: TrainConfig = TrainConfig()
    """The training loop."""
    warm_start: WarmStartConfig | None = None
    """How a training goes on from the last good model; `null`: each begins anew."""
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
    metadata: MetadataConfig = MetadataConfig()
    """Where ML Metadata is kept."""
    keep: KeepConfig = KeepConfig()
    """What of earlier runs stays on the disk."""
    notify: NotifyConfig = NotifyConfig()
    """Whom a run tells of what came of it."""

    @model_validator(mode="after")
    def _rules_can_be_judged(self) -> Self:
        check_rules(self.evaluate, self.bless)
        return self

    @model_validator(mode="after")
    def _fits_the_split(self) -> Self:
        refuse(misfits_of_run(self))
        return self

    @model_validator(mode="after")
    def _slices_are_features(self) -> Self:
        sides = (self.data.items, self.data.users)
        known = [feature.name for side in sides if side for feature in side.features]
        unknown = [name for name in self.evaluate.slices if name not in known]
        if unknown:
            raise ValueError(
                "evaluate.slices must be features of items or users"
                f" ({', '.join(known) or 'there are none'}); received {unknown[0]!r}"
            )
        return self


class TrainStage(Strict):
    """The parts of a config that training needs."""

    model: ModelConfig = ModelConfig()
    """The two towers."""
    train: TrainConfig = TrainConfig()
    """The training loop."""
    warm_start: WarmStartConfig | None = None
    """How a training goes on from the last good model; `null`: each begins anew."""
    repeats: Repeats = "exclude"
    """What becomes of items that a user has seen."""


class EvaluateStage(Strict):
    """The parts of a config that the evaluation needs."""

    evaluate: EvaluateConfig = EvaluateConfig()
    """The evaluation over the whole catalogue."""
    bless: BlessConfig = BlessConfig()
    """What a model must reach to be pushed."""
    report_users: tuple[str, ...] = ()
    """Ids of users whose recommendations are shown; empty: three are chosen."""
    repeats: Repeats = "exclude"
    """What becomes of items that a user has seen."""

    @model_validator(mode="after")
    def _rules_can_be_judged(self) -> Self:
        check_rules(self.evaluate, self.bless)
        return self


class ExportStage(Strict):
    """The parts of a config that the export needs."""

    name: Name
    """Name of the served model."""
    export: ExportConfig = ExportConfig()
    """The serving bundle."""
    repeats: Repeats = "exclude"
    """What becomes of items that a user has seen."""


def stage_of(config: Config, kind: type[StageT]) -> StageT:
    """Returns the parts of `config` that the stage `kind` needs."""
    return kind(**{name: getattr(config, name) for name in kind.model_fields})


def json_schema() -> dict[str, Any]:
    """Returns the JSON schema of a config file, for editors."""
    return Config.model_json_schema()


def canonical_json(part: pydantic.BaseModel) -> str:
    """Returns one text for one meaning, fit for a cache key."""
    return json.dumps(part.model_dump(mode="json"), sort_keys=True)
