"""Sizes and inputs of a model."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from pathlib import Path
from typing import Annotated, Any, Literal, Self

import numpy as np
from pydantic import NonNegativeInt, PositiveInt

from recsys.data.catalogue import (
    Catalogue,
    FeatureBags,
    bags_of,
    bags_of_histories,
    open_user_features,
)
from recsys.data.dataset import FeatureTable, feature_tables, verify_inputs
from recsys.data.event_log import Facts, facts_or_unknown
from recsys.data.vocabulary import UNKNOWN_ROW, Vocabulary, load_kinds
from recsys.errors import UsageError
from recsys.models.config import ModelConfig, RetrievalConfig
from recsys.registry import Choice
from recsys.strict import Strict

Side = Literal["user", "item", "event"]


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


class ModelSpec(Strict):
    """Everything needed to build a model for given data."""

    config: Annotated[Any, Choice("model", "two_tower")]
    """The model's options, a `ModelConfig`."""
    user_rows: PositiveInt
    """Rows of the user table."""
    item_rows: PositiveInt
    """Rows of the item table."""
    features: tuple[FeatureSpec, ...]
    """Features of the items, then of the users."""

    @classmethod
    def of(
        cls,
        config: ModelConfig,
        user_rows: int,
        item_rows: int,
        features: Iterable[FeatureTable] = (),
    ) -> Self:
        """Returns the spec of a model for tables of these sizes.

        Raises:
            UsageError: There is no such model.
        """
        with_dim = tuple(
            FeatureSpec(**dataclasses.asdict(feature), dim=feature.floats or config.feature_dim)
            for feature in features
        )
        spec = cls(config=config, user_rows=user_rows, item_rows=item_rows, features=with_dim)
        spec.check()
        return spec

    @classmethod
    def for_data(
        cls,
        config: ModelConfig,
        user_rows: int,
        catalogue: Catalogue,
        user_features: Iterable[FeatureBags] = (),
    ) -> Self:
        """Returns the spec of a model for a catalogue and the features of users.

        Raises:
            UsageError: There is no such model.
        """
        features = feature_tables(catalogue.features, user_features)
        return cls.of(config, user_rows, catalogue.n_rows, features)

    def check(self) -> None:
        """Checks the config against the data.

        Raises:
            UsageError: The data has features, but the model has no layer that reads them.
        """
        if self.features and not self.config.reads_features:
            raise UsageError(
                "R345",
                "A model without layers (model.widths: null) must have no features: nothing"
                " would read them.",
                "Set model.widths to [] for a linear layer, or take the features out of the"
                " config's data.",
                [feature.name for feature in self.features],
            )

    def of_side(self, side: Side) -> tuple[FeatureSpec, ...]:
        """Returns the features of the users, or of the items."""
        return tuple(feature for feature in self.features if feature.side == side)


@dataclasses.dataclass(frozen=True)
class ModelInputs:
    """Vocabularies and features of users and items, by row.

    Attributes:
        users: Vocabulary of the users.
        items: Vocabulary of the items.
        catalogue: Features of the items, and which rows are items.
        user_features: Features of the users.
        kinds: Names of the kinds of events, by number.
    """

    users: Vocabulary
    items: Vocabulary
    catalogue: Catalogue
    user_features: tuple[FeatureBags, ...] = ()
    kinds: tuple[str, ...] = ()

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
        catalogue, kinds = Catalogue.open(folder / "catalogue"), load_kinds(folder / "vocabulary")
        return cls(users, items, catalogue, features, kinds)

    def features(self, side: str) -> tuple[FeatureBags, ...]:
        """Returns the features of `users`, or of `items`."""
        return self.user_features if side == "users" else tuple(self.catalogue.features)

    def query(
        self,
        user_row: np.ndarray,
        history: np.ndarray,
        model: RetrievalConfig,
        facts: Facts | None = None,
    ) -> dict[str, Any]:
        """Returns the inputs of queries by name, int32.

        Args:
            user_row: User rows `[b]`.
            history: Item rows `[b, history]`, the newest first, padded with 0.
            model: Config of the model, which determines the inputs.
            facts: Properties of the events of the histories `[b, history]` int32, and of the
                queries `[b]`, by name. Missing properties that the model reads are unknown. See
                `recsys.data.event_log`.
        """
        of_history = self.catalogue.features if model.history_features else ()
        return {
            "user_row": trained_rows(user_row, self.users),
            "history": trained_rows(history, self.items),
            **facts_or_unknown(model.query_facts, facts, history),
            **bags_of(self.user_features, user_row),
            **bags_of_histories(of_history, history),
        }

    def candidate(self, item_row: np.ndarray) -> dict[str, Any]:
        """Returns the inputs of candidates by name, for item rows `[b]`."""
        return {
            "id_row": trained_rows(item_row, self.items),
            **bags_of(self.catalogue.features, item_row),
        }


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
