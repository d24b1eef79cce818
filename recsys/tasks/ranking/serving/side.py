"""The contents of a ranking bundle."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any, ClassVar

import numpy as np

from recsys.data.statistics import StatisticsState
from recsys.data.vocabulary import stand_ins
from recsys.models.calibration import Temperature
from recsys.models.ranking_model import RETRIEVER
from recsys.models.summary import damaged
from recsys.savedmodel.parity import TOLERANCE
from recsys.savedmodel.signatures import Arrays
from recsys.tasks.ranking.calibration_file import load_calibration
from recsys.tasks.ranking.probe import read_probe
from recsys.tasks.ranking.serving.graph import Rank
from recsys.tasks.ranking.serving.parity import Bounds, RankingReference
from recsys.tasks.serving.folders import copy_catalogue
from recsys.tasks.serving.requests import raw_probes
from recsys.tasks.serving.side import HistoryServing
from recsys.tasks.serving_side import Sources


class RankingServing(HistoryServing):
    """Bundles whose SavedModel predicts the labels of given items."""

    answers = "scores"
    card = "recsys.tasks.ranking.serving:model_card.jinja"
    module_class: ClassVar[type[Rank]] = Rank

    def __init__(self, stage: Any, sources: Sources) -> None:
        super().__init__(stage, sources)
        self.calibration = load_calibration(sources.model, self.saved.model.label_names)
        has_statistics = bool(self.saved.model.spec.of_side("row"))
        self.statistics = StatisticsState.open(sources.model, "newest") if has_statistics else None
        self._reference = self._make_reference()

    def module(self) -> Rank:
        """Returns the module with the signatures."""
        return self.module_class(
            self.saved,
            self.histories,
            self.users,
            self.calibration,
            self._time_column,
            self.statistics,
        )

    def write_files(self, folder: Path) -> dict[str, Any]:
        """Writes vocabularies, titles and the catalogue."""
        copy_catalogue(self.sources.model, folder, self.saved.catalogue)
        return self.fields()

    def fields(self) -> dict[str, Any]:
        """Returns the fields of the manifest."""
        return {**self._labels(), **self._manifest_fields()}

    def card_fields(self) -> dict[str, Any]:
        """Returns the ranking fields of the model card."""
        return {
            "tags": ["recommendation", "ranking", "keras"],
            "hub_task": {"type": "ranking", "name": "Ranking"},
            "loss": self.saved.stage.train.loss.title,
            "given": {name: label.given for name, label in self.saved.model.spec.labels.items()},
            "has_statistics": self.statistics is not None,
        }

    def _labels(self) -> dict[str, Any]:
        """Returns the manifest's fields of the labels."""
        model: Any = self.saved.model
        is_amount = {name: model.spec.labels[name].is_amount for name in model.label_names}
        return {
            "labels": model.label_names,
            "outputs": {n: "amount" if is_ else "probability" for n, is_ in is_amount.items()},
            "calibration": {name: map_.kind for name, map_ in self.calibration.items()},
        }

    def _make_reference(self) -> RankingReference:
        probe, saved = read_probe(self.sources.model), self.saved
        if probe.raw is None:
            raise damaged(self.sources.model, "probes without raw values")
        user_row, item_row, history = (probe.rows[n] for n in ("user_row", "item_row", "history"))
        user_id, histories = raw_probes(saved.users, saved.items, user_row, history)
        item_id = stand_ins(saved.items, item_row)[item_row]
        # Without labels, so that the statistics are of all rows.
        of_labels = self._columns.history
        labels = {of_labels[x.column].input for x in self._reads.labels.values()}
        columns = dataclasses.replace(self._reads, labels={}).columns(self._time_column)
        events = probe.raw.texts(columns, self._time_column)
        events |= {name: np.full((len(user_row), 1), "", object) for name in labels - {*events}}
        texts = {"user_id": user_id, "history": histories, "item_id": item_id, **events}
        texts |= self._of_lists(probe.rows.get(RETRIEVER))
        return RankingReference(texts, {n: self._bounds(n, x) for n, x in probe.scores.items()})

    def _of_lists(self, places: np.ndarray | None) -> Arrays:
        """Returns further inputs of `rank` for the probes, from their input `retriever`."""
        return {}

    def _bounds(self, label: str, score: np.ndarray) -> Bounds:
        """Returns the predictions of the log odds or amounts in training `[n]`."""
        error = TOLERANCE * max(1.0, float(np.abs(score).max(initial=0)))
        near = [score.astype(np.float64) + x for x in (-error, 0.0, error)]
        if not self.saved.model.spec.labels[label].is_amount:
            near = [self.calibration.get(label, Temperature()).apply(x) for x in near]
        return Bounds(*(x.astype(np.float32) for x in near))
