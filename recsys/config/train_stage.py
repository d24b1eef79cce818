"""What training needs of the config."""

from __future__ import annotations

from recsys.config.model import ModelConfig
from recsys.config.training import TrainConfig
from recsys.config.warm_start import WarmStartConfig
from recsys.strict import Repeats, Strict


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
