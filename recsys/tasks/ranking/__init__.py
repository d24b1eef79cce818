"""Ranking: models that predict labels of pairs of a query and an item."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, ClassVar

from recsys.tasks import Task


class Ranking(Task):
    """Learns the labels of events: the probability of a click, or an amount such as a time."""

    training: ClassVar[str] = "recsys.tasks.ranking.training.side:RankingTraining"
    judging: ClassVar[str] = "recsys.tasks.ranking.judging.side:RankingJudging"
    serving: ClassVar[str] = "recsys.tasks.ranking.serving.side:RankingServing"
    model: ClassVar[str | None] = "dcn_v2"
    loss: ClassVar[str | None] = "binary"
    metrics: ClassVar[tuple[str, ...] | None] = (
        "roc_auc",
        "gauc",
        "log_loss",
        "normalized_entropy",
        "calibration_error",
        "list_ndcg",
        "squared_error",
        "absolute_error",
    )
    baselines: ClassVar[tuple[str, ...] | None] = ("constant", "item_mean", "logistic_regression")
    bless: ClassVar[Mapping[str, Any]] = {
        "metric": "roc_auc",
        "over": {"item_mean": 1.0},
        "rules": [{"metric": "calibration_error", "sure_loss": "refuse"}],
    }
    train: ClassVar[Mapping[str, Any]] = {
        "batch_size": 512,
        "epochs": 20,
        "table_optimizer": {"type": "lazy_adam"},
        "table_learning_rate": 0.002,
        "tower_learning_rate": 0.001,
        "calibration": "temperature",
        "validation": {"share": 0.1, "metric": "log_loss", "max_queries": 200_000, "refit": True},
    }
