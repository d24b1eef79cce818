"""How many users, items and tokens a data set has: all that a model must know of it."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Literal, Self

from pydantic import PositiveInt

from recsys.strict import Strict
from recsys.data.catalogue import Catalogue, FeatureBags

Side = Literal["user", "item"]


class FeatureRows(Strict):
    """One feature of the users or of the items."""

    name: str
    """Name of the feature, of its table and of its input."""
    side: Side = "item"
    """Whose feature it is."""
    rows: PositiveInt
    """Rows of its table, row 0 (padding) included."""
    width: PositiveInt
    """Token rows of one item or user, padded with 0."""


class DataSpec(Strict):
    """The sizes of a data set."""

    user_rows: PositiveInt
    """Rows of the user table."""
    item_rows: PositiveInt
    """Rows of the item table."""
    features: tuple[FeatureRows, ...] = ()
    """Features of the items, then those of the users."""

    @classmethod
    def of(
        cls, user_rows: int, catalogue: Catalogue, user_features: Iterable[FeatureBags] = ()
    ) -> Self:
        """Returns the sizes of a data set.

        Args:
            user_rows: Rows of the user table.
            catalogue: The items.
            user_features: What is known of the users.
        """
        sides: dict[Side, Iterable[FeatureBags]]
        sides = {"item": catalogue.features, "user": user_features}
        features = tuple(
            FeatureRows(name=f.name, side=side, rows=f.rows, width=int(f.bags.shape[1]))
            for side, bags in sides.items()
            for f in bags
        )
        return cls(user_rows=user_rows, item_rows=catalogue.n_rows, features=features)
