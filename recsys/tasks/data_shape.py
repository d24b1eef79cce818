"""The shape of data, on which the choice of a model depends."""

from __future__ import annotations

import dataclasses

from recsys.data.config import Order, ValidationConfig
from recsys.data.dataset import Data
from recsys.data.hold_out import has_one_query_per_user

_FEW_NEW = 0.01
"""Share of items without events up to which they have no effect."""


@dataclasses.dataclass(frozen=True)
class DataShape:
    """The properties of data on which the choice of a model depends.

    Attributes:
        events: Number of training events; 0 if unknown.
        users: Number of users with a training event.
        items: Number of item rows.
        order: Order of a user's events; also `none` if the held-out events aren't a user's
            newest.
        has_features: Whether items or users have features.
        new_items: Number of items without events, if items have features; else 0.
    """

    events: int
    users: int
    items: int
    order: Order
    has_features: bool
    new_items: int = 0

    @classmethod
    def of(cls, data: Data, config: ValidationConfig | None = None) -> DataShape:
        """Returns the shape of data; `config` determines how validation draws."""
        catalogue, split = data.catalogue, data.store.split
        is_new = catalogue.is_item & (data.items.row_counts == 0)
        return cls(
            events=len(data.train),
            users=sum(
                int((part.offsets[1:] > part.offsets[:-1]).sum()) for part in data.train.shards
            ),
            items=data.spec.item_rows,
            order="none" if has_one_query_per_user(data.train, config, split) else split.order,
            has_features=bool(catalogue.features or data.user_features),
            new_items=int(is_new.sum()) if catalogue.features else 0,
        )

    @property
    def events_per_user(self) -> float:
        """Mean number of training events per user."""
        return self.events / max(self.users, 1)

    @property
    def has_new_items(self) -> bool:
        """Whether more than a few items have features but no events."""
        return self.new_items > _FEW_NEW * self.items
