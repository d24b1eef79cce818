"""What a device will hold and send, reckoned without any device."""

from __future__ import annotations

import dataclasses

from recsys.embedding.config import Placement
from recsys.embedding.table import Table


@dataclasses.dataclass(frozen=True)
class TablePlacement:
    """Where one table lies.

    Attributes:
        table: Name of the table.
        placement: `row`, `column`, or `replicated`.
        rows: Rows that mean something.
        padded_rows: Rows with those that make the shards equal.
        dim: Width of a row [floats].
        shards: Devices that hold a part each of one copy.
        bytes_per_device: Bytes of the weights on each device.
        slot_bytes_per_device: Bytes of the optimizer's slots on each device.
    """

    table: str
    placement: Placement
    rows: int
    padded_rows: int
    dim: int
    shards: int
    bytes_per_device: int
    slot_bytes_per_device: int


def planned(table: Table, n_shards: int) -> TablePlacement:
    """Returns the placement of `table` when `n_shards` devices share a copy of it."""
    kind = table.kind
    slots = () if kind.optimizer is None else kind.optimizer.slot_list()
    whole = table.places * table.dim
    per_row = sum(slot.per_row for slot in slots)
    full = (len(slots) - per_row) * whole * 4 // n_shards
    # On a column-wise table every device keeps the slots of whole rows.
    rows_here = table.places // (n_shards if kind.placement == "row" else 1)
    return TablePlacement(
        table=table.name,
        placement=kind.placement,
        rows=table.rows,
        padded_rows=table.places,
        dim=table.dim,
        shards=n_shards,
        bytes_per_device=whole * kind.itemsize // n_shards,
        slot_bytes_per_device=full + per_row * rows_here * 4,
    )
