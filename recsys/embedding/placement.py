"""Where tables live: row-wise over every device, and the proof that they do.

One mesh axis carries both the rows of the tables and the batch: every device
holds 1/n of each table and works on 1/n of each batch; towers are replicated.
"""

from __future__ import annotations

import dataclasses
import re
from typing import Any

import keras

from recsys.embedding.layer import TableLookup
from recsys.errors import RecsysError

AXIS = "devices"
# Anchored: a LayoutMap is also asked for activations ("<layer>/output") and slots.
TABLE_RULE = r"(.*/)?table"


@dataclasses.dataclass(frozen=True)
class Placement:
    """Where one table lies.

    Attributes:
        table: Name of the table.
        rows: Rows that mean something.
        padded_rows: Rows with those that make the shards equal.
        dim: Width of a row [floats].
        shards: Devices that hold a part each.
        bytes_per_device: Bytes of the table on each device.
    """

    table: str
    rows: int
    padded_rows: int
    dim: int
    shards: int
    bytes_per_device: int


def table_layout() -> keras.distribution.LayoutMap:
    """Returns the layout over all devices: tables are split by rows, nothing else is."""
    devices = keras.distribution.list_devices()
    mesh = keras.distribution.DeviceMesh((len(devices),), (AXIS,), devices)
    layout = keras.distribution.LayoutMap(mesh)
    layout[TABLE_RULE] = (AXIS, None)
    return layout


def activate(layout: keras.distribution.LayoutMap) -> None:
    """Makes Keras place variables by `layout`, and batches over the same devices."""
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(
            layout_map=layout, batch_dim_name=AXIS, auto_shard_dataset=False
        )
    )


def prove_placement(model: keras.Model, layout: keras.distribution.LayoutMap) -> list[Placement]:
    """Checks that every table lies as planned, and nothing else is split.

    Args:
        model: A built model; `TableLookup` layers of its own read its tables.
        layout: What the model was built under.

    Returns:
        The placements, in the order of the layers.

    Raises:
        RecsysError: A table matched no rule or several, or the devices hold
            other bytes than planned.
    """
    # A table deeper inside the model is not among these, so the rules refuse it.
    lookups = [layer for layer in model.layers if isinstance(layer, TableLookup)]
    tables = {layer.table.path for layer in lookups}
    for variable in model.variables:
        _check_rules(variable.path, layout, is_table=variable.path in tables)
    return [_check_bytes(layer, layout) for layer in lookups]


def _check_rules(path: str, layout: keras.distribution.LayoutMap, is_table: bool) -> None:
    matched = [rule for rule in layout if re.fullmatch(rule, path)]
    if len(matched) == (1 if is_table else 0):
        return
    if is_table:
        rule = (
            f"Table {path!r} must match exactly one layout rule, else every device holds it whole."
        )
    else:
        rule = f"Variable {path!r} is no table and must match no layout rule."
    raise RecsysError(
        "R301",
        rule,
        f"Tables are variables whose path matches {TABLE_RULE!r}; name the variable accordingly.",
        matched,
    )


def _check_bytes(layer: TableLookup, layout: keras.distribution.LayoutMap) -> Placement:
    n_shards = layout.device_mesh.shape[0]
    planned = layer.spec.bytes_per_device(n_shards)
    held = _bytes_per_device(layer.table.value)
    if len(held) != n_shards or set(held.values()) != {planned}:
        raise RecsysError(
            "R302",
            f"Each of {n_shards} devices must hold {planned:,} bytes of table {layer.name!r}.",
            "Check the layout rules and the padding of the table.",
            held,
        )
    return Placement(
        table=layer.name,
        rows=layer.rows,
        padded_rows=layer.spec.padded_rows(n_shards),
        dim=layer.dim,
        shards=n_shards,
        bytes_per_device=planned,
    )


def _bytes_per_device(array: Any) -> dict[str, int]:
    held: dict[str, int] = {}
    for shard in array.addressable_shards:
        held[str(shard.device)] = held.get(str(shard.device), 0) + shard.data.nbytes
    return held
