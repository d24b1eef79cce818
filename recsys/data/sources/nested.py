"""Nested columns, and rows that hold lists of events.

`a.b` is the field `b` of the objects in `a`. If `a` holds lists of objects, `a.b` holds lists of
their fields.

A list of what was shown has its labels in the elements, such as `N1-1 N2-0`, or in parallel lists.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import ElementFields, ListOfEvents
from recsys.data.sources.source import RawBatch
from recsys.data.sources.values import is_list, list_lengths, lists_of, split_lists, to_words

NO_LIST = "no list of events"
UNEQUAL = "lists of different lengths in one row"
NO_FIELDS = "an event that doesn't have the fields of explode.fields"
TOO_LONG = "a list of events that is too long, or beside too long a text"

MOST_EVENTS = 1 << 20
"""Maximum number of events in one row."""

_MOST_BYTES = 256 << 20
_BATCH_EVENTS = 1 << 17

Path = tuple[str, ...]


def find_path(schema: pa.Schema, name: str) -> Path | None:
    """Returns the path of a column; a column with a dot in its name takes precedence.

    Returns `None` if there is no such column, or several.
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
            return path  # All lists are empty, so the fields of their objects are unknown.
    return path


def pick_type(schema: pa.Schema, path: Path) -> pa.DataType:
    """Returns the type of the column at a path."""
    kind = schema.field(path[0]).type
    for part in path[1:]:
        inner = element_type(kind).field(part).type
        kind = pa.list_(inner) if is_list(kind) else inner
    return kind


def pick(batch: pa.RecordBatch, path: Path | None) -> pa.Array:
    """Returns the column at a path `[n]`; nulls for None."""
    if path is None:
        return pa.nulls(batch.num_rows, pa.string())
    column = batch.column(path[0])
    for part in path[1:]:
        column = _field(column, part)
    return column


def pick_name(batch: pa.RecordBatch, name: str) -> pa.Array:
    """Returns the column with a name `[n]`; nulls if there is none.

    If objects in lists have no such field, each object gets a null.
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
    """Returns the names of all columns, nested ones as `a.b`."""
    return list(_leaves("", schema))


def _leaves(prefix: str, fields: Iterable[pa.Field]) -> Iterable[str]:
    for field in fields:
        inner = _fields(field.type)
        if inner:
            yield from _leaves(f"{prefix}{field.name}.", inner)
        else:
            yield f"{prefix}{field.name}"


def element_type(kind: pa.DataType) -> pa.DataType:
    """Returns the type of a list's elements, or the type itself if it is no list."""
    return kind.value_type if is_list(kind) else kind


def _fields(kind: pa.DataType) -> list[pa.Field]:
    """Returns the fields of objects, or of the objects in lists; none for other types."""
    return list(element_type(kind)) if pa.types.is_struct(element_type(kind)) else []


def _field(column: pa.Array, name: str) -> pa.Array:
    """Returns a field of objects `[n]`, or lists of it if the objects are in lists."""
    if not is_list(column.type):
        return pc.struct_field(column, [name])
    if not pa.types.is_list(column.type):
        column = column.cast(pa.list_(column.type.value_type))
    return _listed(column, pc.struct_field(column.values, [name]))


def _listed(column: pa.Array, values: pa.Array) -> pa.Array:
    """Returns a column's lists `[n]` with other values."""
    offsets = pa.array(column.offsets.to_numpy())
    return pa.ListArray.from_arrays(offsets, values, mask=column.is_null())


# --- one row per event


def explode(batch: RawBatch, events: ListOfEvents) -> Iterator[RawBatch]:
    """Yields the events of rows; the other columns are repeated for each event.

    A row without a list, or whose list would take too much memory, is one dead letter. A row
    with an empty list is counted, and has no events.

    Args:
        batch: Rows with lists in columns.
        events: The columns of the lists.
    """
    names = batch.columns.schema.names
    lists = {
        name: _as_lists(batch.columns.column(name), events) for name in names if events.holds(name)
    }
    if not lists:
        yield batch
        return
    lengths, reason = _judge(batch, lists)
    is_good = reason == ""
    bad = pa.array(~is_good)
    rejected = RawBatch(
        batch.file,
        batch.columns.slice(0, 0),
        batch.position[:0],
        batch.reject(bad, reason[~is_good].tolist()),
        n_empty=int((is_good & (lengths == 0)).sum()),
    )
    portions = _portions(np.flatnonzero(is_good & (lengths > 0)), lengths)
    found = (_events(batch, lists, rows, lengths[rows]) for rows in portions)
    for part in itertools.chain([rejected], found):
        yield part if events.fields is None else _divided(part, events.column, events.fields)


def _as_lists(column: pa.Array, events: ListOfEvents) -> pa.Array:
    """Returns a column of lists `[n]`; a single value becomes a list of one, null stays null."""
    kind = column.type
    if pa.types.is_dictionary(kind):
        return _as_lists(column.dictionary_decode(), events)
    if pa.types.is_list(kind) or pa.types.is_large_list(kind):
        return column
    if pa.types.is_fixed_size_list(kind):
        return column.cast(pa.list_(kind.value_type))
    if pa.types.is_string(kind) or pa.types.is_large_string(kind):
        return _split(column.cast(pa.string()), events)
    is_there = column.is_valid().to_numpy(zero_copy_only=False)
    return lists_of(column.drop_null(), is_there, mask=pa.array(~is_there))


def _split(text: pa.Array, events: ListOfEvents) -> pa.Array:
    """Returns the parts of texts `[n]`, or of lists as text, without empty ones.

    Parallel lists keep empty parts, unless the separator is a blank: a label may be missing.
    """
    lists = split_lists(pc.fill_null(text, ""), events.separator)
    parts = pc.utf8_trim_whitespace(lists.flatten())
    is_part = np.ones(len(parts), bool)
    if events.separator is not None:
        is_part = pc.not_equal(parts, "").to_numpy(zero_copy_only=False)
        if events.parallel and events.separator.strip():
            is_several = pc.greater(pc.list_value_length(lists), 1)
            is_part |= np.repeat(_flags(is_several), list_lengths(lists))
    parents = pc.list_parent_indices(lists).to_numpy(zero_copy_only=False)
    counts = np.bincount(parents[is_part], minlength=len(text))
    mask = pc.or_(text.is_null(), lists.is_null())
    return lists_of(parts.filter(pa.array(is_part)), counts, mask=mask)


def _judge(batch: RawBatch, lists: Mapping[str, pa.Array]) -> tuple[np.ndarray, np.ndarray]:
    """Returns the number of events of each row `[n]`, and the reason of its fault, or ""."""
    lengths_of = [
        pc.fill_null(pc.list_value_length(column), -1).to_numpy(zero_copy_only=False)
        for column in lists.values()
    ]
    lengths = np.maximum(lengths_of[0], 0).astype(np.int64)
    is_unequal = np.any([other != lengths_of[0] for other in lengths_of], axis=0)
    beside = _bytes_beside(batch.columns, lists)
    reason = np.full(len(lengths), "", object)
    reason[(lengths > MOST_EVENTS) | (lengths * beside > _MOST_BYTES)] = TOO_LONG
    for at in np.flatnonzero(is_unequal).tolist():
        counts = zip(lists, lengths_of, strict=True)
        reason[at] = f"{UNEQUAL} ({', '.join(f'{name} {of[at]}' for name, of in counts)})"
    reason[np.any([other < 0 for other in lengths_of], axis=0)] = NO_LIST
    return lengths, reason


def _bytes_beside(columns: pa.RecordBatch, lists: Mapping[str, pa.Array]) -> np.ndarray:
    """Returns the size of the texts outside the list in each row `[n]` [bytes]."""
    total = np.zeros(columns.num_rows, np.int64)
    for name, column in zip(columns.schema.names, columns.columns, strict=True):
        is_text = pa.types.is_string(column.type) or pa.types.is_binary(column.type)
        if name not in lists and is_text:
            total += pc.fill_null(pc.binary_length(column), 0).to_numpy(zero_copy_only=False)
    return total


def _portions(rows: np.ndarray, lengths: np.ndarray) -> Iterator[np.ndarray]:
    """Yields groups of rows with a bounded number of events, or single rows with more."""
    before = np.cumsum(lengths[rows]) - lengths[rows]
    cuts = np.flatnonzero(np.diff(before // _BATCH_EVENTS)) + 1
    yield from (part for part in np.split(rows, cuts) if len(part))


def _events(
    batch: RawBatch, lists: Mapping[str, pa.Array], rows: np.ndarray, lengths: np.ndarray
) -> RawBatch:
    taken = pa.array(rows)
    parent = np.repeat(rows, lengths)
    element = np.arange(len(parent)) - np.repeat(np.cumsum(lengths) - lengths, lengths)
    columns = [
        lists[name].take(taken).flatten() if name in lists else column.take(pa.array(parent))
        for name, column in zip(batch.columns.schema.names, batch.columns.columns, strict=True)
    ]
    names = batch.columns.schema.names
    return dataclasses.replace(
        batch,
        columns=pa.RecordBatch.from_arrays(columns, names=names),
        position=batch.position[parent],
        rejected=batch.rejected.slice(0, 0),
        raw_rows=None,  # The JSON of one event is short, even if its list is long.
        element=element,
        shares_position=True,
        lines=lambda at: batch.line(parent[at]),
    )


def _divided(batch: RawBatch, column: str, fields: ElementFields) -> RawBatch:
    """Returns events with the fields of a text as columns; others are dead letters."""
    names = batch.columns.schema.names
    texts = pc.fill_null(to_words(batch.columns.column(column)), "")
    parts = pc.split_pattern(texts, fields.separator)
    is_whole = list_lengths(parts) == len(fields.names)
    n_bad = int(np.count_nonzero(~is_whole))
    rejected = batch.reject(pa.array(~is_whole), [NO_FIELDS] * n_bad)
    good = batch.take(is_whole)
    values = parts.filter(pa.array(is_whole)).flatten()
    columns = {name: good.columns.column(name) for name in names if name != column}
    for at, name in enumerate(fields.names):
        rows = np.arange(at, len(values), len(fields.names))
        columns[f"{column}.{name}"] = values.take(pa.array(rows))
    divided = pa.RecordBatch.from_arrays(list(columns.values()), names=list(columns))
    return dataclasses.replace(good, columns=divided, rejected=rejected)


def _flags(values: pa.Array) -> np.ndarray:
    return pc.fill_null(values, False).to_numpy(zero_copy_only=False)
