"""The contents of a retrieval bundle."""

from __future__ import annotations

import shutil
from pathlib import Path
from typing import Any

import numpy as np

from recsys.data.dataset import CANDIDATES, verify_candidates
from recsys.index.search import build_index
from recsys.models.inputs import trained_rows
from recsys.models.summary import damaged
from recsys.savedmodel.signatures import (
    FEATURES,
    HISTORY,
    POPULARITY,
    USER,
    Arrays,
    encoded_name,
)
from recsys.tasks.model_folder import TrainedModel
from recsys.tasks.retrieval.probe import read_probe
from recsys.tasks.retrieval.serving.candidates import popularity_shares
from recsys.tasks.retrieval.serving.graph import Retrieval
from recsys.tasks.retrieval.serving.parity import RetrievalReference
from recsys.tasks.serving.folders import copy_catalogue, raw_features
from recsys.tasks.serving.requests import raw_probes
from recsys.tasks.serving.side import HistoryServing
from recsys.tasks.serving_side import Sources, tell


class RetrievalServing(HistoryServing):
    """Bundles whose SavedModel answers with the best items."""

    answers = "lists"
    card = "recsys.tasks.retrieval.serving:model_card.jinja"

    def __init__(self, stage: Any, sources: Sources) -> None:
        super().__init__(stage, sources)
        self.items = raw_features(sources.transform, sources.data, "item", self.saved)
        self.probe = read_probe(sources.model)
        self._k = min(stage.export.k, int(self._is_item.sum()))
        self._reference = self._make_reference()

    def module(self) -> Retrieval:
        """Returns the module with the signatures."""
        export = self.stage.export
        return Retrieval(
            self.saved,
            None if export.vectors == "apart" else self.probe.candidates,
            self.histories,
            self.items,
            self.users,
            self._k,
            export.item_embeddings,
            excludes_seen=self.stage.repeats == "exclude",
            time_column=self._time_column,
        )

    def write_files(self, folder: Path) -> dict[str, Any]:
        """Writes item embeddings, vocabularies, titles, the catalogue and the index."""
        model = self.sources.model
        verify_candidates(model)
        shutil.copyfile(model / CANDIDATES, folder / "item_embeddings.npy")
        copy_catalogue(model, folder, self.saved.catalogue)

        if (transitions := self.saved.model.transitions) is not None:
            transitions.save(folder)

        def report(done: int, total: int) -> None:
            tell(f"{done:,} of {total:,} items indexed", done, total)

        index = build_index(
            folder,
            self.probe.candidates,
            self._is_item,
            self._reference.query,
            self._k,
            self.stage.export.index,
            report,
        )
        config = self.saved.model.spec.config
        return {
            "k": self._k,
            "index": index,
            "item_columns": self.items.columns if self.items else (),
            "direction_width": config.dim if config.vector_dim > config.dim else None,
            "event_inputs": self._reads.names,
            **self._manifest_fields(),
        }

    def card_fields(self) -> dict[str, Any]:
        """Returns the retrieval fields of the model card."""
        trained = self.saved.stage
        similarity = trained.model.similarity
        return {
            "tags": ["recommendation", "retrieval", "two-tower", "keras"],
            "hub_task": {"type": "retrieval", "name": "Candidate retrieval"},
            "similarity": "dot product" if similarity == "dot" else similarity,
            "item_bias": getattr(trained.model, "item_bias", False),
            "has_transitions": self.saved.model.transitions is not None,
            "loss": trained.train.loss.title,
            "excludes_seen": self.stage.repeats == "exclude",
            "is_apart": self.stage.export.vectors == "apart",
            **self._columns.to_json(),
        }

    def _raw_events(self) -> Arrays:
        """Returns the raw values of the probes' events by input, as a client sends them."""
        if not self._reads.names:
            return {}
        if self.probe.raw is None:
            raise damaged(self.sources.model, "probes of an earlier version")
        return self.probe.raw.texts(self._columns, self._time_column)

    def _make_reference(self) -> RetrievalReference:
        probe, saved, export = self.probe, self.saved, self.stage.export
        user_id, history = raw_probes(saved.users, saved.items, probe.user_row, probe.history)
        return RetrievalReference(
            user_id=user_id,
            history=history,
            query=probe.query,
            source=_sources(saved, probe.user_row, probe.history),
            popularity=popularity_shares(self.histories, self._is_item),
            kind=export.item_embeddings,
            min_parity=export.min_parity,
            vectors=export.vectors,
            transitions=saved.model.transitions,
            history_row=probe.history,
            events=self._raw_events(),
            encoded={encoded_name(name): probe.given[name] for name in self._reads.names},
        )


def _sources(saved: TrainedModel, user_row: np.ndarray, history: np.ndarray) -> np.ndarray:
    """Returns the required source of each answer `[n]`, for user rows and `[n, length]` items."""
    spec = saved.model.spec
    own = trained_rows(user_row, saved.users) >= saved.users.first_own_row
    names = {feature.name for feature in spec.of_side("user")}
    bags = [bag.bags[user_row] for bag in saved.inputs.user_features if bag.name in names]
    has_features = [(bag != 0).any(axis=1) for bag in bags]
    has = [
        own & spec.config.user_id,
        (trained_rows(history, saved.items) > 0).any(axis=1) & spec.config.reads_history,
        np.logical_or.reduce([np.zeros_like(own), *has_features]),
    ]
    return np.select(has, [USER, HISTORY, FEATURES], POPULARITY).astype(object)
