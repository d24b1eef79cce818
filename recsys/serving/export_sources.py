"""What a bundle is made of, read."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from recsys.bundles.parity_reference import Reference, raw_probes
from recsys.bundles.raw_features import RawFeatures
from recsys.bundles.signatures import FEATURES, HISTORY, POPULARITY, USER, popularity_shares
from recsys.bundles.variables import filled_later
from recsys.config import ExportConfig
from recsys.data.histories import ServingHistories, serving_histories
from recsys.data.spec import Side
from recsys.data.store import InteractionStore
from recsys.data.vocabulary import Vocabulary
from recsys.embedding.table import Table
from recsys.errors import RecsysError
from recsys.models.inputs import trained_rows
from recsys.models.saved import Probe, TrainedModel, load_model, read_probe


@dataclasses.dataclass(frozen=True)
class Sources:
    """The folders that a bundle is made of.

    Attributes:
        model: A model folder.
        data: The data folder that the model was trained on.
        transform: Output of the Transform of the items; without it `embed_candidate`
            takes ids alone.
        user_transform: Output of the Transform of the users; without it queries are
            made of ids and histories alone.
        evaluation: The model's evaluation folder, for card and manifest.
        told_data: What the manifest tells of the raw data (`recsys.lineage.origin`).
    """

    model: Path
    data: Path
    transform: Path | None = None
    user_transform: Path | None = None
    evaluation: Path | None = None
    told_data: dict[str, Any] | None = None


@dataclasses.dataclass(frozen=True)
class Opened:
    """The sources of a bundle, open; no table of the model is in memory.

    Attributes:
        saved: The model, whose tables have no rows before they are in the SavedModel.
        histories: What every user did.
        probe: What the trainer's towers gave; the candidates are memory-mapped.
        items: From raw columns of items to token rows; None where there are none.
        users: The same for users.
    """

    saved: TrainedModel
    histories: ServingHistories
    probe: Probe
    items: RawFeatures | None
    users: RawFeatures | None

    @classmethod
    def open(cls, sources: Sources) -> Opened:
        """Reads all but the tables.

        Raises:
            RecsysError: An input is damaged, or doesn't fit the others.
        """
        saved = load_model(sources.model, _without_rows)
        histories = _histories(sources.data, saved)
        items = _raw_features(sources.transform, "item", saved)
        users = _raw_features(sources.user_transform, "user", saved)
        return cls(saved, histories, read_probe(sources.model), items, users)

    @property
    def n_items(self) -> int:
        """Items that can be recommended."""
        return int(self.saved.catalogue.is_item.sum())

    def reference(self, config: ExportConfig) -> Reference:
        """Returns what the bundle must reproduce."""
        probe, saved = self.probe, self.saved
        user_id, history = raw_probes(saved.users, saved.items, probe.user_row, probe.history)
        return Reference(
            user_id=user_id,
            history=history,
            query=probe.query,
            source=_sources(saved, probe.user_row, probe.history),
            popularity=popularity_shares(self.histories, saved.catalogue.is_item),
            kind=config.item_embeddings,
            min_parity=config.min_parity,
            latency_ms=config.latency_ms,
        )


def _sources(saved: TrainedModel, user_row: np.ndarray, history: np.ndarray) -> np.ndarray:
    """Returns what an answer must rest on `[n]`, of user rows `[n]` and item rows `[n, length]`."""
    spec = saved.model.spec
    own = trained_rows(user_row, saved.users) >= saved.users.first_own_row
    names = {feature.name for feature in spec.of_side("user")}
    bags = [bag.bags[user_row] for bag in saved.inputs.user_features if bag.name in names]
    has_features = [(bag > 0).any(axis=1) for bag in bags]
    has = [
        own & spec.config.user_id,
        (trained_rows(history, saved.items) > 0).any(axis=1),
        np.logical_or.reduce([np.zeros_like(own), *has_features]),
    ]
    return np.select(has, [USER, HISTORY, FEATURES], POPULARITY).astype(object)


def _without_rows(table: Table, weights: np.ndarray) -> None:
    variable = filled_later(weights, tf.as_dtype(table.kind.dtype))
    # Read, not gathered from: a variable that is gathered from is copied at every read.
    table.read_from(variable, lambda: tf.convert_to_tensor(variable))


def _raw_features(folder: Path | None, side: Side, saved: TrainedModel) -> RawFeatures | None:
    """Returns what turns raw columns of items, or of users, into token rows."""
    if folder is None:
        return None
    widths = {feature.name: feature.width for feature in saved.model.spec.of_side(side)}
    return RawFeatures(folder, f"{side}_id", widths)


def _histories(data: Path, saved: TrainedModel) -> ServingHistories:
    """Returns the histories of `data`, whose rows must mean what they do in the model."""
    for name, of_model in (("users", saved.users), ("items", saved.items)):
        of_data = Vocabulary.load(data / "vocabulary" / f"{name}.parquet")
        if of_model.fingerprint() != of_data.fingerprint():
            raise RecsysError(
                "R524",
                f"The {name} of the model must be those of the data folder {str(data)!r}.",
                "Export with the data folder that the model was trained on.",
                {"model": of_model.n_rows, "data": of_data.n_rows},
            )
    return serving_histories(InteractionStore.open(data / "store"))
