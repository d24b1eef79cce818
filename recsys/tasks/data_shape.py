"""The shape of data, which the choice of a model depends on."""

from __future__ import annotations

import dataclasses

from recsys.data.config import Order, ValidationConfig
from recsys.data.dataset import Data
from recsys.data.hold_out import is_asked_at_once

_FEW_NEW = 0.01
"""Share of the items up to which those without an event change nothing."""


@dataclasses.dataclass(frozen=True)
class DataShape:
    """What the choice of a model depends on.

    Attributes:
        events: Training events; 0 if they aren't known.
        users: Users with one.
        items: Rows of the items.
        order: What orders the events of a user; `none` too where users are asked for events
            that aren't their newest.
        has_features: Whether items or users have features.
        new_items: Items without an event, if items have features; else 0.
    """

    events: int
    users: int
    items: int
    order: Order
    has_features: bool
    new_items: int = 0

    @classmethod
    def of(cls, data: Data, config: ValidationConfig | None = None) -> DataShape:
        """Returns the shape of data, of which validation draws as `config` says."""
        catalogue, split = data.catalogue, data.store.split
        is_new = catalogue.is_item & (data.items.row_counts == 0)
        return cls(
            events=len(data.train),
            users=sum(
                int((part.offsets[1:] > part.offsets[:-1]).sum()) for part in data.train.shards
            ),
            items=data.spec.item_rows,
            order="none" if is_asked_at_once(data.train, config, split) else split.order,
            has_features=bool(catalogue.features or data.user_features),
            new_items=int(is_new.sum()) if catalogue.features else 0,
        )

    @property
    def events_per_user(self) -> float:
        """Training events of a user in the mean."""
        return self.events / max(self.users, 1)

    @property
    def has_new_items(self) -> bool:
        """Whether items that features alone tell of are more than a few."""
        return self.new_items > _FEW_NEW * self.items
