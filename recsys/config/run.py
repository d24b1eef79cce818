"""The whole config, of which each stage gets a part.

Each part, and what a stage needs, is in a module of its own: a step is cached by the
sources that it runs, and those of other parts are none of them.
"""

from __future__ import annotations

from typing import Annotated, Any, Self, TypeVar

from pydantic import Field, PositiveInt, model_validator

from recsys.config.data import DataConfig
from recsys.config.evaluate_stage import EvaluateStage
from recsys.config.evaluation import BlessConfig, EvaluateConfig, check_rules
from recsys.config.export import ExportConfig, ExportStage
from recsys.config.keep import KeepConfig
from recsys.config.mesh import LayoutRules, MeshConfig, parse_mesh
from recsys.config.metadata import MetadataConfig
from recsys.config.model import RetrievalConfig, TwoTowerConfig
from recsys.config.notify import NotifyConfig
from recsys.config.split import misfits_of_run, refuse
from recsys.config.train_stage import TrainStage
from recsys.config.training import TrainConfig
from recsys.config.warm_start import WarmStartConfig
from recsys.registry import Choice, Plugins, plugins_of
from recsys.strict import Name, Repeats, Strict

StageT = TypeVar("StageT", "TrainStage", "EvaluateStage", "ExportStage")


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

    plugins: Plugins = ()
    """Modules that register models, losses, metrics and other classes which the other keys
    name; they are imported before the rest is read."""
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
    model: Annotated[RetrievalConfig, Choice("model", "two_tower")] = TwoTowerConfig()
    """The model: the two towers, or a model of a plugin, `{type: name, …}`."""
    train: TrainConfig = TrainConfig()
    """The training loop."""
    mesh: MeshConfig | None = None
    """The devices of a training as a grid of `data` × `model`; `null`: one axis of all
    devices, `devices`, which batch and tables share."""
    layout: LayoutRules = Field(default={})
    """Dense weights and activations that are split over the devices: a path, or a regex
    of paths, to the axis of the mesh that splits each dimension, or `null`; as
    `keras.distribution.LayoutMap` has them. `user_tower/dense/kernel: [null, model]` splits
    a weight, `user_tower/dense/output: [data, model]` what a layer returns. What no rule
    names is on all devices."""
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


def stage_of(config: Config, kind: type[StageT]) -> StageT:
    """Returns the parts of `config` that the stage `kind` needs, with the plugins they name."""
    parts = {name: getattr(config, name) for name in kind.model_fields}
    return kind(**{**parts, "plugins": plugins_of(config.plugins, *parts.values())})


def with_mesh(config: Config, mesh: str | None) -> Config:
    """Returns the config with the mesh that a command line names, if it names one."""
    return config if mesh is None else config.model_copy(update={"mesh": parse_mesh(mesh)})


def json_schema() -> dict[str, Any]:
    """Returns the JSON schema of a config file, for editors."""
    return Config.model_json_schema()
