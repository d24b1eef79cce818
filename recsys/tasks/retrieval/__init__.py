"""Retrieval: models that rank the items of a catalogue for a query."""

from __future__ import annotations

from typing import ClassVar

from recsys.tasks import Task


class Retrieval(Task):
    """Learns from positives which items of the catalogue a user will interact with next."""

    training: ClassVar[str] = "recsys.tasks.retrieval.training.side:RetrievalTraining"
    judging: ClassVar[str] = "recsys.tasks.retrieval.judging.side:RetrievalJudging"
    serving: ClassVar[str] = "recsys.tasks.retrieval.serving.side:RetrievalServing"
    model: ClassVar[str | None] = "auto"
