"""The spec of a retrieval model: its config, and the sizes of its tables."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable
from typing import Annotated, Literal, Self

from pydantic import PositiveInt

from recsys.config.architecture import RetrievalConfig, TwoTowerConfig
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.dataset import FeatureTable
from recsys.errors import UsageError
from recsys.registry import Choice
from recsys.strict import Strict

Side = Literal["user", "item"]


class FeatureSpec(Strict):
    """One feature that a model reads."""

    name: str
    """Name of the feature, of its table and of its input."""
    side: Side = "item"
    """Whose feature it is."""
    rows: PositiveInt
    """Rows of its table, row 0 (padding) included."""
    width: PositiveInt
    """Token rows of one item or user, padded with 0."""
    dim: PositiveInt
    """Width of its embedding [floats]."""


class ModelSpec(Strict):
    """Everything needed to build a model for given data."""

    config: Annotated[RetrievalConfig, Choice("model", "two_tower")]
    """The model's options."""
    user_rows: PositiveInt
    """Rows of the user table."""
    item_rows: PositiveInt
    """Rows of the item table."""
    features: tuple[FeatureSpec, ...]
    """Features of the items, then those of the users."""

    @classmethod
    def of(
        cls,
        config: RetrievalConfig,
        user_rows: int,
        item_rows: int,
        features: Iterable[FeatureTable] = (),
    ) -> Self:
        """Returns the spec of a model for tables of these sizes.

        Raises:
            UsageError: There is no such model.
        """
        with_dim = tuple(
            FeatureSpec(**dataclasses.asdict(feature), dim=config.feature_dim)
            for feature in features
        )
        spec = cls(config=config, user_rows=user_rows, item_rows=item_rows, features=with_dim)
        spec.check()
        return spec

    @classmethod
    def for_data(
        cls,
        config: RetrievalConfig,
        user_rows: int,
        catalogue: Catalogue,
        user_features: Iterable[FeatureBags] = (),
    ) -> Self:
        """Returns the spec of a model for a catalogue and the features of users.

        Raises:
            UsageError: There is no such model.
        """
        sides: dict[Side, Iterable[FeatureBags]]
        sides = {"item": catalogue.features, "user": user_features}
        features = [
            FeatureTable(f.name, side, f.rows, int(f.bags.shape[1]))
            for side, bags in sides.items()
            for f in bags
        ]
        return cls.of(config, user_rows, catalogue.n_rows, features)

    def check(self) -> None:
        """Checks the config against the data.

        Raises:
            UsageError: There are features, and no layer that could read them.
        """
        is_bare = isinstance(self.config, TwoTowerConfig) and self.config.widths is None
        if is_bare and self.features:
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
