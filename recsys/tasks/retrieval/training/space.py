"""The default search space of tuning for the two-tower model."""

from __future__ import annotations

from typing import Any

from recsys.models.config import TwoTowerConfig
from recsys.tasks.config import TrainConfig


def default_space(model: TwoTowerConfig, train: TrainConfig) -> dict[str, Any]:
    """Returns ranges by key, in the syntax of `recsys tune --vary`."""
    space: dict[str, Any] = {
        "train.table_learning_rate": "log:0.001..0.1",
        "train.epochs": f"{max(2, train.epochs // 2)}..{max(4, 2 * train.epochs)}",
        "model.dim": [64, 128, 192, 256],
        "model.history_dropout": "0.0..0.6",
    }
    if model.widths is not None or model.needs_order:
        space["train.tower_learning_rate"] = "log:0.0003..0.01"
    if model.similarity == "cosine":
        space["model.temperature"] = "log:0.03..0.3"
    if train.loss.negatives != "catalogue":
        space["train.uniform_negatives"] = [256, 512, 1024, 2048]
    return space
