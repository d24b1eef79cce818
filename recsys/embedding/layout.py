"""The layout: which mesh axis splits tables, dense weights and activations.

By default one mesh axis splits both the rows of the tables and the batch: each device holds 1/n
of each table and computes 1/n of each batch; dense weights are replicated. Rules may split dense
weights and activations too. After the model is built the layout is checked against the devices,
because Keras ignores rules that match nothing.
"""

from __future__ import annotations

import difflib
import math
import operator
import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import jax
import keras
import numpy as np
from jax.sharding import NamedSharding, PartitionSpec

from recsys.embedding.layer import ShardedEmbedding
from recsys.embedding.table import WEIGHTS, Table, TablePlacement, planned
from recsys.embedding.table_config import Placement, TableSpec, resolve, stacks
from recsys.errors import RecsysError, UsageError

AXIS = "devices"
BATCH_AXIS, MODEL_AXIS = "data", "model"
_SPLITS = {"row": "rows", "column": "columns", "replicated": "none"}
_OUTPUT = "/output"

Rules = Mapping[str, Sequence[str | None]]


def device_mesh(
    data: int | None = None, model: int | None = None, devices: int | None = None
) -> keras.distribution.DeviceMesh:
    """Returns devices as one axis `devices`, or as a grid of `data` × `model`.

    Args:
        data: Number of parts of a batch; None to derive it from `model`.
        model: Number of devices that share each copy of a table; None to derive it from `data`.
        devices: Number of devices to use; None for all.

    Raises:
        UsageError: `data` × `model` isn't the number of devices (R313).
    """
    names = keras.distribution.list_devices()[:devices]
    n = len(names)
    if data is None and model is None:
        return keras.distribution.DeviceMesh((n,), (AXIS,), names)
    data = data or n // (model or 1)
    shape = (data, model or n // data)
    if shape[0] * shape[1] != n:
        raise UsageError(
            "R313",
            f"The mesh data={shape[0]}, model={shape[1]} must have as many devices as there are.",
            "Change the mesh; on CPUs XLA_FLAGS=--xla_force_host_platform_device_count=N"
            " simulates N devices.",
            n,
        )
    return keras.distribution.DeviceMesh(shape, (BATCH_AXIS, MODEL_AXIS), names)


class Layout(keras.distribution.LayoutMap):
    """A `LayoutMap` with explained errors for rules.

    A rule is a regex of whole paths, of variables or, if it ends with `/output`, of outputs of
    layers. The leading name of the model may be left out.

    Attributes:
        rules: Rules of dense weights and activations, with their stored patterns.
        node_devices: Devices of a node; None for the devices of a process.
    """

    def __init__(
        self, mesh: keras.distribution.DeviceMesh, node_devices: int | None = None
    ) -> None:
        super().__init__(mesh)
        self.node_devices = node_devices
        self.rules: dict[str, str] = {}

    def add_rule(self, rule: str, axes: Sequence[str | None]) -> None:
        """Adds a rule: splits the dimensions of matching arrays over `axes`.

        Raises:
            UsageError: The rule isn't a regex, or an axis isn't in the mesh (R314).
        """
        known = self.device_mesh.axis_names
        unknown = [axis for axis in axes if axis is not None and axis not in known]
        try:
            re.compile(rule)
        except re.error as error:
            raise UsageError(
                "R314", "A layout rule must be a path or a regex of paths.", str(error), rule
            ) from None
        if unknown:
            raise UsageError(
                "R314",
                f"Layout rule {rule!r} must name axes of the mesh, or None.",
                f"The mesh has {', '.join(known)}; `mesh` sets it.",
                unknown[0],
            )
        self.rules[rule] = rf"(?:[^/]+/)?(?:{rule})"
        self[self.rules[rule]] = tuple(axes)

    def matches(self, path: str) -> list[str]:
        """Returns the patterns that match a path."""
        is_output = path.endswith(_OUTPUT)
        patterns = [p for p in self if p.rstrip(")").endswith(_OUTPUT) == is_output]
        return [pattern for pattern in patterns if re.fullmatch(pattern, path)]

    def __getitem__(self, path: str) -> Any:
        """Returns the layout of `path`; None unless exactly one rule matches.

        `verify_placement` raises the errors. An error here would interrupt a build, and leave
        Keras with incomplete variables.
        """
        patterns = self.matches(path)
        return super().__getitem__(patterns[0]) if len(patterns) == 1 else None


class LayoutDistribution(keras.distribution.ModelParallel):
    """Places variables by a layout; replicates variables whose shape doesn't fit their rule.

    Attributes:
        layout: The layout.
        node_devices: Devices of a node, if the layout sets them.
    """

    def __init__(self, layout: keras.distribution.LayoutMap) -> None:
        super().__init__(
            layout_map=layout,
            batch_dim_name=layout.device_mesh.axis_names[0],
            auto_shard_dataset=False,
        )
        self.layout = layout
        self.node_devices: int | None = getattr(layout, "node_devices", None)

    def get_variable_layout(self, variable: Any) -> Any:
        """Returns the layout of a variable."""
        layout = super().get_variable_layout(variable)
        if _fits(layout, variable.shape):
            return layout
        return keras.distribution.TensorLayout([None] * len(variable.shape), self.device_mesh)


def _fits(layout: keras.distribution.TensorLayout, shape: Sequence[int]) -> bool:
    mesh = layout.device_mesh
    sizes = dict(zip(mesh.axis_names, mesh.shape, strict=True))
    parts = [1 if axis is None else sizes[axis] for axis in layout.axes]
    return len(parts) == len(shape) and not any(map(operator.mod, shape, parts))


def table_layout(
    tables: Sequence[Any],
    table_stacking: str | Sequence[Sequence[str]] | None = None,
    mesh: keras.distribution.DeviceMesh | None = None,
    rules: Rules | None = None,
    node_devices: int | None = None,
) -> Layout:
    """Returns the layout of `tables` and `rules`.

    Args:
        tables: The `TableConfig`s of a `ShardedEmbedding`.
        table_stacking: As for the layer.
        mesh: A mesh from `device_mesh`; None for one axis over all devices, which batch and
            tables share. With two axes the first splits batches, the last tables.
        rules: Maps paths of dense weights, paths of layers followed by `/output`, or regexes of
            them to the mesh axis that splits each dimension, or None. Arrays without a rule are
            replicated.
        node_devices: Devices of a node, neighbours on the mesh, with faster links than between
            nodes; None for the devices of a process. Used to choose exchanges of rows.

    Returns:
        The layout, with a rule for each table that is split. Pass it to `activate` before the
        model is made.

    Raises:
        UsageError: A rule isn't a regex, or an axis isn't in the mesh (R314); or the nodes don't
            divide the mesh (R313).
    """
    mesh = mesh or device_mesh()
    n_devices = math.prod(mesh.shape)
    if node_devices and n_devices > node_devices and n_devices % node_devices:
        raise UsageError(
            "R313",
            f"The {n_devices} devices must be whole nodes of {node_devices}.",
            "Change train.node_devices, or leave it out where a process has the devices of a node.",
            node_devices,
        )
    layout = Layout(mesh, node_devices)
    for members in stacks([resolve(table) for table in tables], table_stacking):
        layout.update(_table_rules(members, layout.device_mesh.axis_names[-1]))
    for rule, axes in (rules or {}).items():
        layout.add_rule(rule, axes)
    return layout


def _table_rules(
    members: Sequence[TableSpec], axis: str
) -> dict[str, tuple[str | None, str | None]]:
    """Returns the rule of a split table, anchored: Keras looks up activations too."""
    spec = members[0]
    if spec.placement == "replicated":
        return {}
    slots = () if spec.optimizer is None else spec.optimizer.slot_list()
    is_row = spec.placement == "row"
    # Per-row slots have no columns to split.
    names = "|".join([WEIGHTS, *(slot.name for slot in slots if is_row or not slot.per_row)])
    table = re.escape("_".join(member.name for member in members))
    return {rf"(.*/)?{table}/({names})": (axis, None) if is_row else (None, axis)}


def activate(layout: keras.distribution.LayoutMap) -> None:
    """Makes Keras place variables by `layout`, and split batches over its first axis.

    Args:
        layout: A layout from `table_layout`.
    """
    keras.distribution.set_distribution(LayoutDistribution(layout))


def place_variables(model: keras.Model, layout: keras.distribution.LayoutMap) -> None:
    """Activates a layout, and replicates the model's existing variables, such as seeds."""
    activate(layout)
    values = replicate([variable.value for variable in model.variables], layout.device_mesh)
    for variable, value in zip(model.variables, values, strict=True):
        variable.assign(value)


def replicate(values: Iterable[Any], mesh: keras.distribution.DeviceMesh) -> list[jax.Array]:
    """Returns arrays that every process has, replicated on all devices of a mesh."""
    everywhere = NamedSharding(mesh.backend_mesh, PartitionSpec())
    arrays = [np.asarray(value) for value in values]
    return [jax.make_array_from_callback(x.shape, everywhere, x.__getitem__) for x in arrays]


def place_variable(variable: Any) -> jax.ShapeDtypeStruct:
    """Sets the layout of a variable without a value; returns its shape and sharding."""
    distribution = keras.distribution.distribution()
    sharding = None
    if distribution is not None:
        variable._layout = distribution.get_variable_layout(variable)
        sharding = variable._layout.backend_layout
    return jax.ShapeDtypeStruct(variable.shape, variable.dtype, sharding=sharding)


def on_mesh(state: Any, layouts: Any) -> Any:
    """Returns the state with every value sharded on the distribution's mesh.

    On one device Keras doesn't shard new values, such as reset metrics. A step returns sharded
    values, which are another type for JAX, so it would compile the step again.
    """
    if layouts is None:
        return state
    return tuple(
        [
            value if isinstance(value.sharding, NamedSharding) else jax.device_put(value, layout)
            for value, layout in zip(part, shardings, strict=True)
        ]
        for part, shardings in zip(state, layouts, strict=True)
    )


def tables_of(model: keras.Model) -> list[Table]:
    """Returns the tables of a model, in the order of its layers."""
    layers = [layer for layer in model._flatten_layers() if isinstance(layer, ShardedEmbedding)]
    return [table for layer in layers for table in layer.tables]


def verify_placement(
    model: keras.Model, layout: keras.distribution.LayoutMap
) -> list[TablePlacement]:
    """Checks that all tables are placed by their configs, and that all rules match.

    Args:
        model: A built model.
        layout: The layout that was active when the model was built.

    Returns:
        The placements, in the order of the layers.

    Raises:
        RecsysError: A table matches no rule or several (R301), or devices hold more or fewer
            bytes than planned (R302).
        UsageError: Another rule matches nothing (R315), doesn't fit (R314), or overlaps with
            another rule (R316).
    """
    check_rules(model, layout)
    return [_check_bytes(table, layout) for table in tables_of(model)]


def check_rules(model: keras.Model, layout: keras.distribution.LayoutMap) -> None:
    """Checks the rules of a layout against the variables of a built model, without values.

    Raises:
        RecsysError: As `verify_placement` (R301).
        UsageError: As `verify_placement`.
    """
    tables = tables_of(model)
    own = {variable.path for table in tables for variable in table.variables}
    _check_rules_of_layers(model, layout, own)
    split = {
        variable.path: table.spec.placement
        for table in tables
        for variable, per_row in _with_shape(table)
        if table.spec.placement == "row" or (table.spec.placement == "column" and not per_row)
    }
    free = set(getattr(layout, "rules", {}).values())
    for variable in model.variables:
        ignored = set() if variable.path in own else free
        _check_table_rules(variable.path, layout, split.get(variable.path), ignored)


def _check_rules_of_layers(
    model: keras.Model, layout: keras.distribution.LayoutMap, tables: set[str]
) -> None:
    """Checks that each rule of weights or activations matches, fits, and doesn't overlap."""
    if not isinstance(layout, Layout):
        return
    layers = model._flatten_layers()
    outputs = [f"{layer.path}{_OUTPUT}" for layer in layers if getattr(layer, "path", None)]
    shapes = {v.path: v.shape for v in model.variables if v.path not in tables}
    names = {pattern: rule for rule, pattern in layout.rules.items()}
    matched: dict[str, list[str]] = {rule: [] for rule in layout.rules}
    for path in dict.fromkeys([*shapes, *outputs]):
        rules = [names.get(pattern, pattern) for pattern in layout.matches(path)]
        if len(rules) > 1:
            raise UsageError(
                "R316",
                f"At most one layout rule must match {path!r}.",
                "Narrow or remove the others.",
                rules,
            )
        if rules and rules[0] in matched:
            matched[rules[0]].append(path)
            if path in shapes:
                _check_fit(rules[0], path, layout[path], shapes[path])
    for rule, paths in matched.items():
        if not paths:
            raise _unmatched(rule, outputs if rule.endswith(_OUTPUT) else shapes)
        if len(paths) > 1 and re.fullmatch(r"[\w/.-]*", rule):
            raise UsageError(
                "R315",
                f"Layout rule {rule!r} is a path, and must match only one.",
                "Write the whole path, or a regex if all of them are meant.",
                sorted(paths),
            )


def _check_fit(rule: str, path: str, layout: Any, shape: Sequence[int]) -> None:
    if not _fits(layout, shape):
        raise UsageError(
            "R314",
            f"Layout rule {rule!r} must have an axis or None for each dimension of {path!r}, and"
            " the devices along each axis must divide the dimension.",
            f"Change the rule {tuple(layout.axes)}, the mesh, or the size of the layer.",
            tuple(shape),
        )


def _unmatched(rule: str, paths: Iterable[str]) -> UsageError:
    names = {path.partition("/")[2] or path for path in paths}
    near = difflib.get_close_matches(rule, sorted(names), n=3, cutoff=0.4)
    near = near or sorted(names)[:5]
    return UsageError(
        "R315",
        "Each layout rule must match a variable, or a layer if it ends with '/output'.",
        f"Near names: {', '.join(near)}." if near else "Remove it.",
        rule,
    )


def _with_shape(table: Table) -> list[tuple[Any, bool]]:
    """Returns the table's variables, and whether each has one number per row."""
    slots = () if table.optimizer is None else table.optimizer.slot_list()
    per_row = [False, *(slot.per_row for slot in slots)]
    return list(zip(table.variables_by_row, per_row, strict=True))


def _check_table_rules(
    path: str,
    layout: keras.distribution.LayoutMap,
    placement: Placement | None,
    ignored: set[str],
) -> None:
    matched = [rule for rule in layout if rule not in ignored and re.fullmatch(rule, path)]
    if len(matched) == (0 if placement is None else 1):
        return
    whole = f"Variable {path!r} is not to be split and must match no layout rule."
    split = f"Table {path!r} must match exactly one layout rule, else every device holds it whole."
    raise RecsysError(
        "R301",
        whole if placement is None else split,
        "Make the layout with recsys.embedding.table_layout, of the same TableConfigs as the"
        " layer.",
        matched,
    )


def _check_bytes(table: Table, layout: keras.distribution.LayoutMap) -> TablePlacement:
    placement = planned(table, int(layout.device_mesh.shape[-1]))
    plan = (placement.bytes_per_device, placement.slot_bytes_per_device)
    n_devices = int(layout.device_mesh.devices.size)
    held = [_bytes_per_device(variable.value) for variable in table.variables_by_row]
    slots = {device: sum(slot[device] for slot in held[1:]) for device in held[0]}
    is_other = table.sharding.split != _SPLITS[table.spec.placement]
    # Each process checks its own devices.
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


def _bytes_per_device(array: Any) -> dict[str, int]:
    # `addressable_shards` fails for an array that was put as a whole on one device of each
    # process.
    sharding = array.sharding
    n_bytes = math.prod(sharding.shard_shape(array.shape)) * array.dtype.itemsize
    return {str(device): n_bytes for device in sharding.addressable_devices}
