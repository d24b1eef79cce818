"""What training needs of the config."""

from __future__ import annotations

from typing import Annotated

from pydantic import Field

from recsys.config.mesh import LayoutRules, MeshConfig
from recsys.config.model import RetrievalConfig, TwoTowerConfig
from recsys.config.training import TrainConfig
from recsys.config.warm_start import WarmStartConfig
from recsys.registry import Choice, Plugins
from recsys.strict import Repeats, Strict


class TrainStage(Strict):
    """The parts of a config that training needs."""

    plugins: Plugins = ()
    """Modules that register classes which the other keys name."""
    model: Annotated[RetrievalConfig, Choice("model", "two_tower")] = TwoTowerConfig()
    """The model: the two towers, or a model of a plugin, `{type: name, …}`."""
    train: TrainConfig = TrainConfig()
    """The training loop."""
    mesh: MeshConfig | None = None
    """The devices as a grid; `null`: one axis of all devices, which batch and tables share."""
    layout: LayoutRules = Field(default={})
    """Dense weights and activations that are split over the devices."""
    warm_start: WarmStartConfig | None = None
    """How a training goes on from the last good model; `null`: each begins anew."""
    repeats: Repeats = "exclude"
    """What becomes of items that a user has seen."""
