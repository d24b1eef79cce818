"""Columns inside of columns: `a.b` is the field `b` of the objects in `a`.

Where `a` holds lists of objects, `a.b` holds the lists of their fields.
"""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

Path = tuple[str, ...]


def find_path(schema: pa.Schema, name: str) -> Path | None:
    """Returns where a column is; a column that has a dot in its name comes first.

    `None` where there is none of the name, or two.
    """
    if len(schema.get_all_field_indices(name)) == 1:
        return (name,)
    path: Path = ()
    fields: Iterable[pa.Field] = schema
    for part in name.split("."):
        kinds = [field.type for field in fields if field.name == part]
        if len(kinds) != 1:
            return None
        path, fields = (*path, part), _fields(kinds[0])
        if pa.types.is_null(element_type(kinds[0])):
            return path  # Empty lists alone: what their objects would hold isn't known.
    return path


def pick_type(schema: pa.Schema, path: Path) -> pa.DataType:
    """Returns the type of the column at a path."""
    kind = schema.field(path[0]).type
    for part in path[1:]:
        inner = element_type(kind).field(part).type
        kind = pa.list_(inner) if _is_list(kind) else inner
    return kind


def pick(batch: pa.RecordBatch, path: Path | None) -> pa.Array:
    """Returns the column at a path `[n]`; nulls where there is none."""
    if path is None:
        return pa.nulls(batch.num_rows, pa.string())
    column = batch.column(path[0])
    for part in path[1:]:
        column = _field(column, part)
    return column


def pick_name(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Returns the column of a name `[n]`; nulls where there is none.

    Where objects in lists have no such field, it is null in each of them.
    """
    path = find_path(batch.schema, name)
    if path is not None:
        return pick(batch, path)
    parts = name.split(".")
    paths = [find_path(batch.schema, ".".join(parts[:n])) for n in range(len(parts) - 1, 0, -1)]
    column = pick(batch, next((path for path in paths if path), None))
    if not pa.types.is_list(column.type):
        return pa.nulls(batch.num_rows, pa.string())
    return _listed(column, pa.nulls(len(column.values), pa.string()))


def leaf_names(schema: pa.Schema) -> list[str]:
    """Returns the names of all columns, those inside of others as `a.b`."""
    return list(_leaves("", schema))


def _leaves(prefix: str, fields: Iterable[pa.Field]) -> Iterable[str]:
    for field in fields:
        inner = _fields(field.type)
        if inner:
            yield from _leaves(f"{prefix}{field.name}.", inner)
        else:
            yield f"{prefix}{field.name}"


def _is_list(kind: pa.DataType) -> bool:
    return (
        pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind)
    )


def element_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of the elements of a list; of what is none its own."""
    return kind.value_type if _is_list(kind) else kind


def _fields(kind: pa.DataType) -> list[pa.Field]:
    """Returns the fields of objects, or of the objects in lists; of other types none."""
    return list(element_type(kind)) if pa.types.is_struct(element_type(kind)) else []


def _field(column: pa.Array, name: str) -> pa.Array:
    """Returns a field of objects `[n]`, or the lists of it where the objects are in lists."""
    if not _is_list(column.type):
        return pc.struct_field(column, [name])
    if not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    return _listed(column, pc.struct_field(column.values, [name]))


def _listed(column: pa.Array, values: pa.Array) -> pa.Array:
    """Returns other values in the lists of a column `[n]`."""
    offsets = pa.array(column.offsets.to_numpy())
    return pa.ListArray.from_arrays(offsets, values, mask=column.is_null())
