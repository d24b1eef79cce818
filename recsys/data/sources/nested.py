"""Columns inside of columns: `a.b` is the field `b` of the objects in `a`."""

from __future__ import annotations

from collections.abc import Iterable

import pyarrow as pa
import pyarrow.compute as pc

Path = tuple[str, ...]


def find_path(schema: pa.Schema, name: str) -> Path | None:
    """Returns where a column is; a column that has a dot in its name comes first.

    `None` where there is none of the name, or two.
    """
    if schema.names.count(name) == 1:
        return (name,)
    path: Path = ()
    fields: pa.Schema | pa.StructType = schema
    for part in name.split("."):
        if [field.name for field in fields].count(part) != 1:
            return None
        path, kind = (*path, part), fields.field(part).type
        if pa.types.is_struct(kind):
            fields = kind
        elif len(path) < name.count(".") + 1:
            return None
    return path


def pick_type(schema: pa.Schema, path: Path) -> pa.DataType:
    """Returns the type of the column at a path."""
    kind = schema.field(path[0]).type
    for part in path[1:]:
        kind = kind.field(part).type
    return kind


def pick(batch: pa.RecordBatch, path: Path | None) -> pa.Array:
    """Returns the column at a path `[n]`; nulls where there is none."""
    if path is None:
        return pa.nulls(batch.num_rows, pa.string())
    column = batch.column(path[0])
    return pc.struct_field(column, list(path[1:])) if len(path) > 1 else column


def leaf_names(schema: pa.Schema) -> list[str]:
    """Returns the names of all columns, those inside of others as `a.b`."""
    return list(_leaves("", schema))


def _leaves(prefix: str, fields: pa.Schema | pa.StructType) -> Iterable[str]:
    for field in fields:
        if pa.types.is_struct(field.type):
            yield from _leaves(f"{prefix}{field.name}.", field.type)
        else:
            yield f"{prefix}{field.name}"
