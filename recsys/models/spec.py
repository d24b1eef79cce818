"""What a retrieval model is, apart from its weights: its config, and the sizes of its tables."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Annotated, Self

from pydantic import PositiveInt

from recsys.config.model import RetrievalConfig, TwoTowerConfig
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.spec import DataSpec, FeatureRows, Side
from recsys.errors import UsageError
from recsys.registry import Choice
from recsys.strict import Strict


class FeatureSpec(FeatureRows):
    """One feature that a model reads."""

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
    def of(cls, config: RetrievalConfig, data: DataSpec) -> Self:
        """Returns the spec of a model for data of these sizes.

        Raises:
            UsageError: There is no such model.
        """
        features = tuple(
            FeatureSpec(**feature.model_dump(), dim=config.feature_dim) for feature in data.features
        )
        spec = cls(
            config=config, user_rows=data.user_rows, item_rows=data.item_rows, features=features
        )
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
        """Returns the spec of a model; arguments as of `DataSpec.of`.

        Raises:
            UsageError: There is no such model.
        """
        return cls.of(config, DataSpec.of(user_rows, catalogue, user_features))

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
