"""What a two-tower model is, apart from its weights."""

from __future__ import annotations

from typing import Self

from pydantic import PositiveInt

from recsys.config import ModelConfig, Strict
from recsys.data.catalogue import Catalogue


class FeatureSpec(Strict):
    """One feature of the item tower."""

    name: str
    """Name of the feature, of its table and of its input."""
    rows: PositiveInt
    """Rows of its table, row 0 (padding) included."""
    width: PositiveInt
    """Token rows of one item, padded with 0."""
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
    """Features of the item tower."""

    @classmethod
    def for_data(cls, config: ModelConfig, user_rows: int, catalogue: Catalogue) -> Self:
        """Returns the spec of a model for `user_rows` users and the items of `catalogue`."""
        features = tuple(
            FeatureSpec(
                name=f.name, rows=f.rows, width=int(f.bags.shape[1]), dim=config.feature_dim
            )
            for f in catalogue.features
        )
        return cls(
            config=config, user_rows=user_rows, item_rows=catalogue.n_rows, features=features
        )
