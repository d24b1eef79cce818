"""The contents of a retrieval bundle."""

from __future__ import annotations

import shutil
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np

from recsys.data import event_features
from recsys.data.catalogue import write_catalogue
from recsys.data.dataset import CANDIDATES, GRAPHS, verify_candidates
from recsys.data.event_features import load_event_features, time_column_of
from recsys.data.store import InteractionStore, ServingHistories, serving_histories
from recsys.data.vocabulary import Vocabulary
from recsys.errors import RecsysError
from recsys.index.search import build_index
from recsys.models.inputs import Side, trained_rows
from recsys.models.summary import damaged
from recsys.savedmodel.inputs import RawFeatures
from recsys.savedmodel.signatures import (
    FEATURES,
    HISTORY,
    POPULARITY,
    USER,
    Arrays,
    encoded_name,
)
from recsys.savedmodel.variables import without_rows
from recsys.system.events import emit
from recsys.tasks.model_folder import TrainedModel, load_model
from recsys.tasks.retrieval.probe import read_probe
from recsys.tasks.retrieval.serving.candidates import popularity_shares
from recsys.tasks.retrieval.serving.events import EventReads
from recsys.tasks.retrieval.serving.graph import Retrieval
from recsys.tasks.retrieval.serving.parity import (
    RetrievalReference,
    raw_probes,
    warm_up_requests,
)
from recsys.tasks.serving_side import STEP, ServingSide, Sources, tell


class RetrievalServing(ServingSide):
    """Bundles whose SavedModel answers with the best items.

    No table of the model is in memory: `saved` has tables without rows.

    Raises:
        RecsysError: An input is damaged, or doesn't fit the others.
    """

    answers = "lists"
    card = "recsys.tasks.retrieval.serving:model_card.jinja"

    def __init__(self, stage: Any, sources: Sources) -> None:
        super().__init__(stage, sources)
        self.saved = load_model(sources.model, without_rows)
        self._reads = EventReads.of(self.saved)
        self._time_column = time_column_of(sources.model / event_features.FOLDER)
        self.histories = _histories(sources.data, self.saved, self._reads)
        self.items = _raw_features(sources.transform, sources.data, "item", self.saved)
        self.users = _raw_features(sources.user_transform, sources.data, "user", self.saved)
        self.probe = read_probe(sources.model)
        self._is_item = self.saved.catalogue.is_item
        self._n_items = int(self._is_item.sum())
        self._k = min(stage.export.k, self._n_items)
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
        for part in ("vocabulary", event_features.FOLDER):
            if (model / part).exists():
                shutil.copytree(model / part, folder / part)
        shutil.copyfile(model / "catalogue" / "titles.parquet", folder / "titles.parquet")
        write_catalogue(folder, self.saved.catalogue)

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
            "user_columns": self.users.columns if self.users else (),
            "direction_width": config.dim if config.vector_dim > config.dim else None,
            **self._reads.columns(self._time_column).to_json(),
            "event_inputs": self._reads.names,
            "counts": {"users": len(self.histories.ids), "items": self._n_items},
        }

    def reference(self) -> RetrievalReference:
        """Returns the results in training for the probes."""
        return self._reference

    def warm_up(self, names: Mapping[str, Sequence[str]]) -> Mapping[str, Arrays]:
        """Returns requests for the probes."""
        return warm_up_requests(names, self._reference.probes)

    def card_fields(self) -> dict[str, Any]:
        """Returns the retrieval fields of the model card."""
        trained = self.saved.stage
        similarity = trained.model.similarity
        return {
            "tags": ["recommendation", "retrieval", "two-tower", "keras"],
            "hub_task": {"type": "retrieval", "name": "Candidate retrieval"},
            "similarity": "dot product" if similarity == "dot" else similarity,
            "item_bias": getattr(trained.model, "item_bias", False),
            "item_age": getattr(trained.model, "item_age", None),
            "loss": trained.train.loss.title,
            "excludes_seen": self.stage.repeats == "exclude",
            "is_apart": self.stage.export.vectors == "apart",
            **self._reads.columns(self._time_column).to_json(),
        }

    def _raw_events(self) -> Arrays:
        """Returns the raw values of the probes' events by input, as a client sends them."""
        if not self._reads.names:
            return {}
        if self.probe.raw is None:
            raise damaged(self.sources.model, "probes of an earlier version")
        return self.probe.raw.texts(self._reads.columns(self._time_column), self._time_column)

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


def _raw_features(
    folder: Path | None, data: Path, side: Side, saved: TrainedModel
) -> RawFeatures | None:
    """Returns the transform from raw columns of items or users to token rows.

    Args:
        folder: Output of Transform; None: the one that `ingest` stored in `data`, if the
            model reads features of this side.
        data: The data folder.
        side: Side of the columns.
        saved: The model.
    """
    widths = {f.name: f.floats or f.width for f in saved.model.spec.of_side(side)}
    if folder is None and widths:
        folder = data / GRAPHS / f"{side}s"
        if not folder.is_dir():
            text = (
                f"the bundle takes no raw columns of {side}s, as {str(data)!r} has no transform"
                " graph of theirs; `transforms` of recsys.export names one"
            )
            emit("note", step=STEP, text=text)
            return None
    return None if folder is None else RawFeatures(folder, f"{side}_id", widths)


def _histories(data: Path, saved: TrainedModel, reads: EventReads) -> ServingHistories:
    """Returns the histories of `data`, after a check that its rows are the model's."""
    cure = "Export with the data folder that the model was trained on."
    for name, of_model in (("users", saved.users), ("items", saved.items)):
        of_data = Vocabulary.load(data / "vocabulary" / f"{name}.parquet")
        if of_model.fingerprint() != of_data.fingerprint():
            rule = f"The {name} of the model must match those of the data folder {str(data)!r}."
            received = {"model": of_model.n_rows, "data": of_data.n_rows}
            raise RecsysError("R524", rule, cure, received)
    of_events = {f.name: f for f in load_event_features(data / event_features.FOLDER)}
    other = [f.name for f in reads.attributes if not f.is_same(of_events.get(f.name))]
    if other:
        rule = f"Features of events must match those of the data folder {str(data)!r}."
        raise RecsysError("R524", rule, cure, other)
    names = [one.name for one in reads.attributes]
    store = InteractionStore.open(data / "store")
    return serving_histories(store, names, times=reads.needs_times)
