"""What a two-tower model is, apart from its weights."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import PositiveInt

from recsys.config import ModelConfig, Strict
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.errors import UsageError

Side = Literal["user", "item"]


class FeatureSpec(Strict):
    """One feature of a tower."""

    name: str
    """Name of the feature, of its table and of its input."""
    side: Side = "item"
    """The tower that reads it."""
    rows: PositiveInt
    """Rows of its table, row 0 (padding) included."""
    width: PositiveInt
    """Token rows of one item or user, padded with 0."""
    dim: PositiveInt
    """Width of its embedding [floats]."""


class ModelSpec(Strict):
    """Everything needed to build a model for given data."""

    config: ModelConfig
    """The two towers."""
    user_rows: PositiveInt
    """Rows of the user table."""
    item_rows: PositiveInt
    """Rows of the item table."""
    features: tuple[FeatureSpec, ...]
    """Features of the item tower, then those of the user tower."""

    @classmethod
    def for_data(
        cls,
        config: ModelConfig,
        user_rows: int,
        catalogue: Catalogue,
        user_features: Iterable[FeatureBags] = (),
    ) -> Self:
        """Returns the spec of a model.

        Args:
            config: The two towers.
            user_rows: Rows of the user table.
            catalogue: The items.
            user_features: What is known of the users.

        Raises:
            UsageError: There is no such model.
        """
        sides: dict[Side, Iterable[FeatureBags]]
        sides = {"item": catalogue.features, "user": user_features}
        features = tuple(
            FeatureSpec(
                name=f.name,
                side=side,
                rows=f.rows,
                width=int(f.bags.shape[1]),
                dim=config.feature_dim,
            )
            for side, bags in sides.items()
            for f in bags
        )
        spec = cls(
            config=config, user_rows=user_rows, item_rows=catalogue.n_rows, features=features
        )
        spec.check()
        return spec

    def check(self) -> None:
        """Checks what no part of the config knows alone.

        Raises:
            UsageError: There are features, and no layer that could read them.
        """
        if self.config.widths is None and self.features:
            raise UsageError(
                "R345",
                "A model without layers (model.widths: null) must have no features: nothing"
                " would read them.",
                "Set model.widths to [] for a linear layer, or take the features out of the"
                " config's data.",
                [feature.name for feature in self.features],
            )

    def of_side(self, side: Side) -> tuple[FeatureSpec, ...]:
        """Returns the features of one tower."""
        return tuple(feature for feature in self.features if feature.side == side)
