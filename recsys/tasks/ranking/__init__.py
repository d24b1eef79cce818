"""Ranking: models that predict labels of pairs of a query and an item."""

from __future__ import annotations

from typing import ClassVar

from recsys.registry import register_task
from recsys.tasks import Task


@register_task("ranking")
class Ranking(Task):
    """Learns the labels of events: the probability of a click, or an amount such as a time."""

    training: ClassVar[str] = "recsys.tasks.ranking.training.side:RankingTraining"
    judging: ClassVar[str] = "recsys.tasks.ranking.judging.side:RankingJudging"
    serving: ClassVar[str] = "recsys.tasks.ranking.serving.side:RankingServing"
    model: ClassVar[str | None] = "dcn_v2"
    loss: ClassVar[str | None] = "binary"
