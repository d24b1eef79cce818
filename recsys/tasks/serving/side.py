"""The serving side of models whose queries have a history."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from recsys.data import event_features
from recsys.data.event_features import time_column_of
from recsys.savedmodel.event_columns import EventColumns
from recsys.savedmodel.parity import Reference
from recsys.savedmodel.signatures import Arrays
from recsys.savedmodel.variables import without_rows
from recsys.tasks.model_folder import load_model
from recsys.tasks.serving.events import EventReads
from recsys.tasks.serving.folders import checked_histories, raw_features
from recsys.tasks.serving.requests import warm_up_requests
from recsys.tasks.serving_side import ServingSide, Sources


class HistoryServing(ServingSide):
    """Bundles that take users, histories and raw columns of events.

    No table of the model is in memory: `saved` has tables without rows.

    A subclass sets `_reference`, whose `probes` are the texts of requests by input.

    Raises:
        RecsysError: An input is damaged, or doesn't fit the others.
    """

    _reference: Any

    def __init__(self, stage: Any, sources: Sources) -> None:
        super().__init__(stage, sources)
        self.saved = load_model(sources.model, without_rows)
        self._reads = EventReads.of(self.saved)
        self._time_column = time_column_of(sources.model / event_features.FOLDER)
        self.histories = checked_histories(sources.data, self.saved, self._reads)
        self.users = raw_features(sources.user_transform, sources.data, "user", self.saved)
        self._is_item = self.saved.catalogue.is_item

    def reference(self) -> Reference:
        """Returns the results in training for the probes."""
        reference: Reference = self._reference
        return reference

    def warm_up(self, names: Mapping[str, Sequence[str]]) -> Mapping[str, Arrays]:
        """Returns requests for the probes."""
        return warm_up_requests(names, self._reference.probes)

    @property
    def _columns(self) -> EventColumns:
        return self._reads.columns(self._time_column)

    def _manifest_fields(self) -> dict[str, Any]:
        """Returns the manifest's fields of columns and counts."""
        return {
            "user_columns": self.users.columns if self.users else (),
            **self._columns.to_json(),
            "counts": {"users": len(self.histories.ids), "items": int(self._is_item.sum())},
        }
