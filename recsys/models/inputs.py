"""Sizes and inputs of a model."""

from __future__ import annotations

import copy
import dataclasses
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, NamedTuple, Self

import numpy as np
from pydantic import Field, NonNegativeInt, PositiveInt

from recsys.data import event_features
from recsys.data.catalogue import (
    Catalogue,
    FeatureBags,
    bags_of,
    bags_of_histories,
    of_history,
    open_user_features,
)
from recsys.data.dataset import Data, FeatureTable, feature_tables, verify_inputs
from recsys.data.event_features import LearnedFeature, load_event_features
from recsys.data.label_config import LabelConfig
from recsys.data.vocabulary import UNKNOWN_ROW, Vocabulary
from recsys.errors import UsageError
from recsys.models.config import ModelConfig, QueryConfig, RetrievalConfig
from recsys.models.ranking_config import RankingConfig
from recsys.registry import Choice
from recsys.strict import Strict

Side = Literal["user", "item", "event", "row"]
Given = Mapping[str, np.ndarray]
"""Inputs of queries that come from events, by name: context and attributes."""


class FeatureSpec(Strict):
    """One feature that a model reads."""

    name: str
    """Name of the feature, of its table and of its input."""
    side: Side = "item"
    """Side that has the feature."""
    rows: NonNegativeInt
    """Rows of its table, including row 0 (padding); 0 for a feature of numbers, without table."""
    width: PositiveInt
    """Maximum number of tokens of an item, user or event."""
    dim: PositiveInt
    """Width of its embedding, or of its numbers [floats]."""
    floats: NonNegativeInt = 0
    """Number of float32 values; 0 for a feature of tokens."""
    is_context: bool = False
    """Whether a query has the feature of an event."""
    is_attribute: bool = False
    """Whether the events of a history have the feature of an event."""

    @property
    def entry(self) -> tuple[tuple[int], str]:
        """Shape and dtype of the feature of one item, user or event."""
        return ((self.floats,), "float32") if self.floats else ((self.width,), "int32")


class EventInput(NamedTuple):
    """An input of queries that comes from events.

    Attributes:
        name: Name of the input.
        feature: The feature of events.
        of_history: Whether each event of a history has it; else the query.
        shape: Shape of one event's or query's entry.
        dtype: Dtype; 0 is missing.
    """

    name: str
    feature: str
    of_history: bool
    shape: tuple[int, ...]
    dtype: str

    def missing_for(self, history: np.ndarray) -> np.ndarray:
        """Returns the input of queries that have none, for histories `[b, history]`."""
        of_queries = history.shape if self.of_history else history.shape[:1]
        return np.zeros((*of_queries, *self.shape), self.dtype)


def event_inputs(
    config: QueryConfig, features: Iterable[FeatureTable | FeatureSpec]
) -> tuple[EventInput, ...]:
    """Returns the inputs of a model's queries that come from events.

    Args:
        config: Config of the model.
        features: The features; only those of events are used.
    """
    inputs = []
    for feature in features:
        if feature.is_context:
            inputs.append(EventInput(feature.name, feature.name, False, *feature.entry))
        if feature.is_attribute and config.reads_attributes:
            inputs.append(EventInput(of_history(feature.name), feature.name, True, *feature.entry))
    return tuple(inputs)


class ModelSpec(Strict):
    """Everything needed to build a model for given data."""

    config: Annotated[Any, Choice("model", "two_tower")]
    """The model's options, a `ModelConfig`."""
    user_rows: PositiveInt
    """Rows of the user table."""
    item_rows: PositiveInt
    """Rows of the item table."""
    features: tuple[FeatureSpec, ...]
    """Features of the items, then of the users, then of the events and of rows."""
    labels: dict[str, LabelConfig] = Field(default={})
    """Labels of events by name, each after its `given`, if the model learns them."""

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        user_rows: int,
        item_rows: int,
        features: Iterable[FeatureTable] = (),
        labels: Mapping[str, LabelConfig] | None = None,
    ) -> Self:
        """Returns the spec of a model for tables of these sizes.

        Raises:
            UsageError: There is no such model.
        """
        with_dim = tuple(
            FeatureSpec(**dataclasses.asdict(feature), dim=feature.floats or config.feature_dim)
            for feature in features
            if feature.side != "row" or config.reads_labels
        )
        spec = cls(
            config=config,
            user_rows=user_rows,
            item_rows=item_rows,
            features=with_dim,
            labels=dict(labels or {}) if config.reads_labels else {},
        )
        spec.check()
        return spec

    @classmethod
    def for_data(
        cls,
        config: ModelConfig,
        user_rows: int,
        catalogue: Catalogue,
        user_features: Iterable[FeatureBags] = (),
        event_features: Iterable[LearnedFeature] = (),
    ) -> Self:
        """Returns the spec of a model for a catalogue and the features of users and events.

        Raises:
            UsageError: There is no such model.
        """
        features = feature_tables(catalogue.features, user_features, event_features)
        return cls.of(config, user_rows, catalogue.n_rows, features)

    def check(self) -> None:
        """Checks the config against the data.

        Raises:
            UsageError: The data has features, but the model has no layer that reads them (R345),
                or labels that the model can't learn (R378).
        """
        try:
            self.config.learned(self.labels)
        except ValueError as error:
            raise UsageError(
                "R378",
                f"The model must fit the labels of the data: {error}.",
                "Change model.labels, or data.interactions.labels and ingest again.",
            ) from None
        read = [f.name for f in self.features if f.side != "event" or f.is_context]
        if read and not self.config.reads_features:
            raise UsageError(
                "R345",
                "A model without layers (model.widths: null) must have no features: nothing"
                " would read them.",
                "Set model.widths to [] for a linear layer, or take the features out of the"
                " config's data.",
                read,
            )

    def of_side(self, side: Side) -> tuple[FeatureSpec, ...]:
        """Returns the features of the users, of the items, of the events, or of rows."""
        return tuple(feature for feature in self.features if feature.side == side)

    @property
    def context(self) -> tuple[FeatureSpec, ...]:
        """The features of events that a query has."""
        return tuple(feature for feature in self.of_side("event") if feature.is_context)

    @property
    def attributes(self) -> tuple[FeatureSpec, ...]:
        """The features of events that a history has."""
        if not self.config.reads_attributes:
            return ()
        return tuple(feature for feature in self.of_side("event") if feature.is_attribute)


@dataclasses.dataclass(frozen=True)
class ModelInputs:
    """Vocabularies and features of users and items, by row, and the features of events.

    Attributes:
        users: Vocabulary of the users.
        items: Vocabulary of the items.
        catalogue: Features of the items, and which rows are items.
        user_features: Features of the users.
        event_features: Features of the events.
        labels: Labels of the events by name, each after its `given`.
    """

    users: Vocabulary
    items: Vocabulary
    catalogue: Catalogue
    user_features: tuple[FeatureBags, ...] = ()
    event_features: tuple[LearnedFeature, ...] = ()
    labels: Mapping[str, LabelConfig] = dataclasses.field(default_factory=dict)

    @classmethod
    def open(cls, folder: Path) -> Self:
        """Reads a data folder or a model folder.

        Raises:
            RecsysError: A catalogue is missing, or a file is damaged.
        """
        verify_inputs(folder)
        users, items = (
            Vocabulary.load(folder / "vocabulary" / f"{side}.parquet")
            for side in ("users", "items")
        )
        features = open_user_features(folder / "user_features", users.n_rows)
        of_events = load_event_features(folder / event_features.FOLDER)
        labels = event_features.labels_of(folder / event_features.FOLDER)
        return cls(users, items, Catalogue.open(folder / "catalogue"), features, of_events, labels)

    @classmethod
    def of_data(cls, data: Data) -> Self:
        """Returns the inputs of open data."""
        return cls(
            data.users,
            data.items,
            data.catalogue,
            data.user_features,
            data.event_features,
            data.labels,
        )

    def spec(self, config: ModelConfig) -> ModelSpec:
        """Returns the spec of a model for these inputs.

        Raises:
            UsageError: There is no such model.
        """
        features = feature_tables(self.catalogue.features, self.user_features, self.event_features)
        n_users, n_items = self.users.n_rows, self.catalogue.n_rows
        return ModelSpec.of(config, n_users, n_items, features, self.labels)

    def features(self, side: str) -> tuple[FeatureBags, ...]:
        """Returns the features of `users`, or of `items`."""
        return self.user_features if side == "users" else tuple(self.catalogue.features)

    def query(
        self,
        user_row: np.ndarray,
        history: np.ndarray,
        model: RetrievalConfig | RankingConfig,
        given: Given | None = None,
    ) -> dict[str, Any]:
        """Returns the inputs of queries by name.

        Args:
            user_row: User rows `[b]`.
            history: Item rows `[b, history]`, the newest first, padded with 0.
            model: Config of the model, which determines the inputs.
            given: Inputs of `event_inputs` by name; those that aren't given are missing.
        """
        given = given or {}
        of_items = self.catalogue.features if model.history_features else ()
        return {
            "user_row": trained_rows(user_row, self.users),
            "history": trained_rows(history, self.items),
            **{
                x.name: given[x.name] if x.name in given else x.missing_for(history)
                for x in self.event_inputs(model)
            },
            **bags_of(self.user_features, user_row),
            **bags_of_histories(of_items, history),
        }

    def event_inputs(self, model: QueryConfig) -> tuple[EventInput, ...]:
        """Returns the inputs of a model's queries that come from events."""
        return event_inputs(model, feature_tables((), (), self.event_features))

    def candidate(self, item_row: np.ndarray) -> dict[str, Any]:
        """Returns the inputs of candidates by name, for item rows `[b]`."""
        return {
            "id_row": trained_rows(item_row, self.items),
            **bags_of(self.catalogue.features, item_row),
        }

    def with_new_items(self) -> Self:
        """Returns the inputs as if no item had a training event."""
        items = copy.copy(self.items)
        items.row_counts = np.zeros_like(items.row_counts)
        return dataclasses.replace(self, items=items)


def trained_rows(rows: np.ndarray, vocabulary: Vocabulary) -> np.ndarray:
    """Returns the rows of the embedding table to read, the shape of `rows`; 0 for untrained rows.

    A user or an item without training positives has no trained embedding. It reads row 0, which
    `id_dropout` trains to represent unknown ids. Training, evaluation and serving all pass their
    rows through this function.

    Args:
        rows: User rows or item rows `[...]`.
        vocabulary: Vocabulary of these users or items, with training counts.
    """
    return np.where(vocabulary.row_counts[rows] > 0, rows, UNKNOWN_ROW).astype(np.int32)
