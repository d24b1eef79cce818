"""The complete config: the parts for the stages, and for the operation of runs."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Self

from pydantic import model_validator

from recsys.bundles.config import ExportStage
from recsys.config.operation import BeamConfig, KeepConfig, MetadataConfig, NotifyConfig, PushConfig
from recsys.data.config import DataConfig
from recsys.distributed.config import parse_mesh
from recsys.distributed.launchers import Launcher, LocalLauncher
from recsys.evaluation.config import EvaluateStage
from recsys.registry import Choice
from recsys.system.files import local_folder
from recsys.tasks.config import TrainStage


class Config(TrainStage, EvaluateStage, ExportStage):
    """The complete config of a run."""

    root: str
    """Folder of all outputs of a run."""
    data: DataConfig
    """The data, from raw files to the interaction store."""
    push: PushConfig = PushConfig()
    """The serving folder."""
    beam: BeamConfig = BeamConfig()
    """Apache Beam."""
    launcher: Annotated[Launcher, Choice("launcher", "local", key="kind")] = LocalLauncher()
    """Where `recsys run` trains: `local`, on this machine, or `command`, on several hosts. It does
    not affect the model, so a change does not retrain."""
    metadata: MetadataConfig = MetadataConfig()
    """The store of ML Metadata."""
    keep: KeepConfig = KeepConfig()
    """Retention of earlier runs."""
    notify: NotifyConfig = NotifyConfig()
    """A webhook that is called at the end of each run."""

    @property
    def root_folder(self) -> Path:
        """`root` as a folder of this machine; a UsageError if it is a URL (R112)."""
        return local_folder(self.root)

    @model_validator(mode="after")
    def _parts_fit_the_data(self) -> Self:
        split, order = self.data.split, self.data.interactions.ordered_by
        is_unordered = split == "random" or (split == "given" and order == "none")
        sides = self.data.sides.values()
        features = [feature.name for side in sides for feature in side.features]
        unknown = [name for name in self.evaluate.slices if name not in features]
        if self.warm_start is not None and split != "time":
            raise ValueError(
                f"warm_start needs data.split: time; with {split} an earlier model may have been"
                " trained on positives that are held out now: remove warm_start"
            )
        if self.evaluate.query == "each_moment" and is_unordered:
            raise ValueError(
                "evaluate.query: each_moment needs held-out events that are later than the"
                f" training events; data.split: {split} does not ensure it: remove it, or set"
                " at_cut"
            )
        if self.model.history_of == "past" and order == "none":
            raise ValueError(
                "model.history_of: past needs an order of the events, and data.interactions has"
                " none: remove it, or set others"
            )
        if unknown:
            raise ValueError(
                "evaluate.slices must be features of items or users"
                f" ({', '.join(features) or 'there are none'}); received {unknown[:1]}"
            )
        return self


def with_mesh(config: Config, mesh: str | None) -> Config:
    """Returns the config with the mesh that a command-line option describes, if there is one."""
    return config if mesh is None else config.model_copy(update={"mesh": parse_mesh(mesh)})
