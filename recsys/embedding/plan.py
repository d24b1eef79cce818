"""What a device will hold of the tables, reckoned without any device.

`recsys.embedding.step_plan` reckons what a training step holds beside them and sends.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence

from recsys.embedding import spread
from recsys.embedding.config import Placement, ResolvedTable
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
    return _placement(table.name, table.kind, table.rows, table.places, n_shards)


def planned_without_devices(members: Sequence[ResolvedTable], n_devices: int) -> TablePlacement:
    """Returns the placement of a table, or of a stack, on one axis of `n_devices` devices.

    The same as `planned` says of the built table; nothing is built.

    Args:
        members: The tables stored as one, alike but for names and rows.
        n_devices: Devices, all on one axis, which tables and batch share.
    """
    kind, rows = members[0], sum(member.rows for member in members)
    places = spread.padded_rows(rows, n_devices) if kind.placement == "row" else rows
    n_shards = 1 if kind.placement == "replicated" else n_devices
    name = "_".join(member.name for member in members)
    return _placement(name, kind, rows, places, n_shards)


def _placement(
    name: str, kind: ResolvedTable, rows: int, places: int, n_shards: int
) -> TablePlacement:
    slots = () if kind.optimizer is None else kind.optimizer.slot_list()
    per_row = sum(slot.per_row for slot in slots)
    full = (len(slots) - per_row) * places * kind.dim * 4 // n_shards
    # On a column-wise table every device keeps the slots of whole rows.
    rows_here = places // (n_shards if kind.placement == "row" else 1)
    return TablePlacement(
        table=name,
        placement=kind.placement,
        rows=rows,
        padded_rows=places,
        dim=kind.dim,
        shards=n_shards,
        bytes_per_device=places * kind.dim * kind.itemsize // n_shards,
        slot_bytes_per_device=full + per_row * rows_here * 4,
    )
