"""Where tables live: the layout rules, and the proof that the devices follow them.

By default one mesh axis carries both the rows of the tables and the batch: every
device holds 1/n of each table and works on 1/n of each batch; towers are replicated.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from typing import Any

import keras

from recsys.embedding.config import Placement, TableSpec, resolve
from recsys.embedding.layer import ShardedEmbedding, stacks
from recsys.embedding.planner import TablePlacement, planned
from recsys.embedding.table import WEIGHTS, Table
from recsys.errors import RecsysError

AXIS = "devices"
BATCH_AXIS, MODEL_AXIS = "data", "model"
_SPLITS = {"row": "rows", "column": "columns", "replicated": "none"}


def table_layout(
    tables: Sequence[Any],
    table_stacking: str | Sequence[Sequence[str]] | None = None,
    n_model: int | None = None,
) -> keras.distribution.LayoutMap:
    """Returns the layout of `tables` over all devices.

    Args:
        tables: The `TableConfig`s of a `ShardedEmbedding`.
        table_stacking: As given to the layer.
        n_model: Devices that a table is split over, on a mesh of two axes, `data` and
            `model`; None for one axis over all devices, which batch and tables share.

    Returns:
        A rule for each table that is split and none for what is replicated, with the
        mesh; pass it to `activate` before the model is made.
    """
    devices = keras.distribution.list_devices()
    if n_model is None:
        mesh = keras.distribution.DeviceMesh((len(devices),), (AXIS,), devices)
    else:
        shape = (len(devices) // n_model, n_model)
        mesh = keras.distribution.DeviceMesh(shape, (BATCH_AXIS, MODEL_AXIS), devices)
    layout = keras.distribution.LayoutMap(mesh)
    for members in stacks([resolve(table) for table in tables], table_stacking):
        for rule, axes in _rules(members, mesh.axis_names[-1]):
            layout[rule] = axes
    return layout


def _rules(
    members: Sequence[TableSpec], axis: str
) -> list[tuple[str, tuple[str | None, str | None]]]:
    """Returns the rules of a table; anchored, since Keras asks for activations too."""
    spec = members[0]
    slots = () if spec.optimizer is None else spec.optimizer.slot_list()
    name = re.escape("_".join(member.name for member in members))
    if spec.placement == "row":
        names = "|".join([WEIGHTS, *(slot.name for slot in slots)])
        return [(rf"(.*/)?{name}/({names})", (axis, None))]
    if spec.placement == "column":
        # A slot of one number a row has no columns to split.
        names = "|".join([WEIGHTS, *(slot.name for slot in slots if not slot.per_row)])
        return [(rf"(.*/)?{name}/({names})", (None, axis))]
    return []


def activate(layout: keras.distribution.LayoutMap) -> None:
    """Makes Keras place variables by `layout`, and batches over its first axis."""
    keras.distribution.set_distribution(
        keras.distribution.ModelParallel(
            layout_map=layout,
            batch_dim_name=layout.device_mesh.axis_names[0],
            auto_shard_dataset=False,
        )
    )


def tables_of(model: keras.Model) -> list[Table]:
    """Returns the tables of a model, in the order of its layers."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, ShardedEmbedding)]
    return [table for layer in layers for table in layer.tables]


def verify_placement(
    model: keras.Model, layout: keras.distribution.LayoutMap
) -> list[TablePlacement]:
    """Checks that every table lies as its config says, and nothing else is split.

    Args:
        model: A built model.
        layout: What the model was built under.

    Returns:
        The placements, in the order of the layers.

    Raises:
        RecsysError: A table matched no rule or several, or the devices hold
            other bytes than planned.
    """
    tables = tables_of(model)
    split = {
        variable.path: table.spec.placement
        for table in tables
        for variable, per_row in _with_shape(table)
        if table.spec.placement == "row" or (table.spec.placement == "column" and not per_row)
    }
    for variable in model.variables:
        _check_rules(variable.path, layout, split.get(variable.path))
    return [_check_bytes(table, layout) for table in tables]


def _with_shape(table: Table) -> list[tuple[Any, bool]]:
    """Returns the table's variables, and whether each has one number a row."""
    slots = () if table.optimizer is None else table.optimizer.slot_list()
    per_row = [False, *(slot.per_row for slot in slots)]
    return list(zip(table.variables_by_row, per_row, strict=True))


def _check_rules(
    path: str, layout: keras.distribution.LayoutMap, placement: Placement | None
) -> None:
    matched = [rule for rule in layout if re.fullmatch(rule, path)]
    if len(matched) == (0 if placement is None else 1):
        return
    if placement is None:
        rule = f"Variable {path!r} is not to be split and must match no layout rule."
    else:
        rule = (
            f"Table {path!r} must match exactly one layout rule, else every device holds it whole."
        )
    raise RecsysError(
        "R301",
        rule,
        "Make the layout with recsys.embedding.table_layout, of the same TableConfigs as the"
        " layer.",
        matched,
    )


def _check_bytes(table: Table, layout: keras.distribution.LayoutMap) -> TablePlacement:
    placement = planned(table, _shards(table, layout))
    plan = (placement.bytes_per_device, placement.slot_bytes_per_device)
    n_devices = int(layout.device_mesh.devices.size)
    held = [_bytes_per_device(variable.value) for variable in table.variables_by_row]
    slots = {device: sum(slot[device] for slot in held[1:]) for device in held[0]}
    is_other = table.sharding.split != _SPLITS[table.spec.placement]
    # Another process proves what its own devices hold.
    n_own = len(layout.device_mesh.backend_mesh.local_devices)
    wrong = len(held[0]) != n_own or any((held[0][d], slots[d]) != plan for d in held[0])
    if wrong or is_other:
        raise RecsysError(
            "R302",
            f"Each of {n_devices} devices must hold {plan[0]:,} bytes of table {table.name!r}"
            f" and {plan[1]:,} of its slots.",
            "Check the layout rules and the padding of the table.",
            {device: (held[0][device], slots[device]) for device in held[0]},
        )
    return placement


def _shards(table: Table, layout: keras.distribution.LayoutMap) -> int:
    if table.spec.placement == "replicated":
        return 1
    return int(layout.device_mesh.shape[-1])


def _bytes_per_device(array: Any) -> dict[str, int]:
    held: dict[str, int] = {}
    for shard in array.addressable_shards:
        held[str(shard.device)] = held.get(str(shard.device), 0) + shard.data.nbytes
    return held
