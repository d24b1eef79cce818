"""Typed labels, impressions and features of events, and the merging of rows of one impression.

Rows of a user and an item with one impression are one event. Each of its labels, its rate and its
weight are the maximum, its time is the first, and its other columns are those of the first row.

A label with `given` is unknown where the other label isn't yes, which is known only after merging:
the column `label:buy|click` holds `buy` until then.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import InteractionsConfig
from recsys.data.feature_options import VectorOptions
from recsys.data.hashes import fingerprints, mix, repeated_hashes
from recsys.data.label_config import LabelConfig, SampledConfig, dependencies_first
from recsys.data.sources.source import RawBatch
from recsys.data.sources.values import (
    is_invalid,
    to_ids,
    to_numbers,
    to_times,
    to_words,
)
from recsys.data.sources.vectors import Rules, to_vectors
from recsys.data.split import PART, PLACE, TIME, codes_of
from recsys.ragged import run_starts

LABEL, FEATURE = "label:", "feature:"
"""Prefixes of the columns of labels and features."""
RATE = pa.field("rate", pa.float32())
"""Share of such rows that the source kept (0..1]."""
IMPRESSION = pa.field("impression", pa.string())
"""Id of what was shown at once."""
HISTORY = pa.field("history", pa.int8())
"""Whether `data.interactions.history_events` puts an event into histories."""
SHOWN_AT = pa.field("shown_at", pa.int32())
"""Position in what was shown, from 0 on."""

BAD_POSITION = "position is not a whole number from 0 on"

_POSITIVE = "label"
_GIVEN = "|"
_VALUES = {
    "text": pa.string(),
    "number": pa.float32(),
    "time": pa.int64(),
    "vector": pa.list_(pa.float32()),
}
_MOST_POSITION = 1 << 24


def bad_label(name: str) -> str:
    """Returns the reason for a row whose label is no number."""
    return f"label {name} is not a finite number"


def label_fields(config: InteractionsConfig) -> list[pa.Field]:
    """Returns the columns of labels, impressions and features of a config."""
    fields = [
        pa.field(f"{LABEL}{name}", _label_type(config.labels[name]))
        for name in dependencies_first(config.labels)
    ]
    fields += [] if config.sampled is None else [RATE]
    fields += [IMPRESSION] if config.has_impressions else []
    fields += [SHOWN_AT] if config.has_positions else []
    fields += [HISTORY] if config.history_events else []
    return fields + [
        pa.field(f"{FEATURE}{feature.name}", _VALUES[feature.value])
        for feature in config.features
        if feature.column is not None
    ]


def time_columns(config: InteractionsConfig) -> list[str]:
    """Returns the columns of features that are read from times."""
    return [f"{FEATURE}{feature.name}" for feature in config.features if feature.value == "time"]


def working_fields(config: InteractionsConfig) -> list[pa.Field]:
    """Returns the columns of labels before `given`, if rows may be merged."""
    if not config.has_impressions:
        return []
    conditional = {name: label.given for name, label in config.labels.items() if label.given}
    fields = [
        pa.field(f"{LABEL}{name}{_GIVEN}{conditional[name]}", _label_type(config.labels[name]))
        for name in dependencies_first(config.labels)
        if name in conditional
    ]
    if config.positive_label in conditional:
        name = f"{_POSITIVE}{_GIVEN}{conditional[config.positive_label]}"
        fields.append(pa.field(name, pa.int64()))
    return fields


def is_working(name: str) -> bool:
    """Returns whether a column is only needed to merge rows."""
    return _GIVEN in name


def _label_type(label: LabelConfig) -> pa.DataType:
    return pa.float32() if label.is_amount else pa.int8()


# --- typing


def type_labels(
    raw: Mapping[str, pa.Array], config: InteractionsConfig
) -> tuple[dict[str, pa.Array], list[tuple[pa.Array, str]]]:
    """Returns the labels by name `[n]`, without regard to `given`; and rules that rows break."""
    labels, rules = {}, []
    for name, label in config.labels.items():
        column = raw[label.column]
        if label.values:
            labels[name] = _is_among(column, label.values).cast(pa.int8())
            continue
        numbers = to_numbers(column, config.csv_format.decimal)
        rules.append((is_invalid(column, numbers), bad_label(name)))
        if label.at_least is not None:
            # In the same precision: float32(4.1) is greater than float64(4.1).
            threshold = pa.scalar(np.float32(label.at_least), pa.float32())
            numbers = pc.greater_equal(numbers, threshold).cast(pa.int8())
        labels[name] = numbers
    return labels, rules


def label_columns(
    labels: Mapping[str, pa.Array], positive: pa.Array, config: InteractionsConfig
) -> dict[str, pa.Array]:
    """Returns the columns of `label_fields` and `working_fields` for labels, and the positives.

    Args:
        labels: The result of `type_labels`.
        positive: 1 for positives without regard to `given` `[n]` int64.
        config: The labels.
    """
    columns, found = {_POSITIVE: positive}, config.positive_label
    for name in dependencies_first(config.labels):
        given = config.labels[name].given
        columns[f"{LABEL}{name}"] = values = labels[name]
        if given is not None:
            columns[f"{LABEL}{name}{_GIVEN}{given}"] = values
            columns[f"{LABEL}{name}"] = _known_if(values, columns[f"{LABEL}{given}"])
    given = None if found is None else config.labels[found].given
    if given is not None:
        columns[f"{_POSITIVE}{_GIVEN}{given}"] = positive
        columns[_POSITIVE] = pc.fill_null(_known_if(positive, columns[f"{LABEL}{given}"]), 0)
    return columns


def is_positive(label: pa.Array) -> np.ndarray:
    """Returns whether a label is yes, or an amount above 0 `[n]` bool."""
    return pc.fill_null(pc.greater(label, 0), False).to_numpy(zero_copy_only=False)


def _known_if(values: pa.Array, other: pa.Array) -> pa.Array:
    """Returns `values` `[n]`; null where the other label isn't yes."""
    is_yes = pc.fill_null(pc.equal(other, 1), False)
    return pc.if_else(is_yes, values, pa.scalar(None, values.type))


def _is_among(column: pa.Array, values: Sequence[str]) -> pa.Array:
    """Returns whether a raw value is one of `values` `[n]` bool; null if it is empty."""
    words = to_ids(column)
    is_in = pc.is_in(words, value_set=to_ids(pa.array(values, pa.string())), skip_nulls=True)
    return pc.if_else(words.is_valid(), is_in, pa.scalar(None, pa.bool_()))


def type_rates(column: pa.Array, sampled: SampledConfig) -> pa.Array:
    """Returns the share of rows like each that the source kept `[n]` float32."""
    values = to_ids(pa.array(list(sampled.rates), pa.string()))
    at = pc.index_in(to_ids(column), value_set=values)
    rates = pa.array(np.fromiter(sampled.rates.values(), np.float32), pa.float32())
    return pc.fill_null(rates.take(at), np.float32(1.0))


def type_positions(
    batch: RawBatch, column: pa.Array | None
) -> tuple[pa.Array, list[tuple[pa.Array, str]]]:
    """Returns positions in what was shown `[n]` int32, and rules that rows break.

    Args:
        batch: The rows.
        column: Raw positions; None: the index in the list.
    """
    if column is None:
        index = np.zeros(len(batch.position)) if batch.element is None else batch.element
        return pa.array(index.astype(np.int32)), []
    numbers = to_numbers(column)
    is_whole = pc.and_(
        pc.equal(numbers, pc.trunc(numbers)),
        pc.and_(pc.greater_equal(numbers, 0), pc.less(numbers, _MOST_POSITION)),
    )
    is_bad = pc.or_(pc.invert(pc.fill_null(is_whole, True)), is_invalid(column, numbers))
    return pc.if_else(is_whole, numbers, None).cast(pa.int32()), [(is_bad, BAD_POSITION)]


def row_impressions(batch: RawBatch, user: pa.Array, item: pa.Array, time: pa.Array) -> pa.Array:
    """Returns an id for each row that lists what was shown, the same for each of its events.

    It depends on the user, the time and the items, and not on the files: equal rows, which are
    duplicates, have equal ids.

    Args:
        batch: Events of lists; the events of a row follow each other.
        user: Users `[n]`.
        item: Items `[n]`.
        time: Times `[n]`.
    """
    n = len(user)
    if n == 0:
        return pa.array([], IMPRESSION.type)
    index = np.zeros(n, np.int64) if batch.element is None else batch.element
    starts = np.flatnonzero(np.append(True, np.diff(index) <= 0))
    shown = mix(fingerprints(item) + mix(index.astype(np.uint64)))
    of_user = fingerprints(user.take(pa.array(starts)))
    at = pc.fill_null(time, 0).to_numpy()[starts].astype(np.uint64)
    rows = mix(mix(np.add.reduceat(shown, starts) ^ of_user) ^ at)
    ids = pa.array([f"{row:016x}" for row in rows.tolist()], IMPRESSION.type)
    lengths = np.diff(np.append(starts, n))
    return ids.take(pa.array(np.repeat(np.arange(len(starts)), lengths)))


def type_features(
    raw: Mapping[str, pa.Array], config: InteractionsConfig
) -> tuple[dict[str, pa.Array], Rules]:
    """Returns the columns of features `[n]`, null for missing values; and rules that rows break."""
    columns: dict[str, pa.Array] = {}
    rules: Rules = []
    for feature in config.features:
        if feature.column is not None:
            typed, broken = _values(feature, raw[feature.column], config)
            columns[f"{FEATURE}{feature.name}"] = typed
            rules += broken
    return columns, rules


def _values(feature: Any, column: pa.Array, config: InteractionsConfig) -> tuple[pa.Array, Rules]:
    """Returns the values of a feature `[n]`, null for missing ones, and the rules for the rest."""
    name, decimal = feature.column, config.csv_format.decimal
    if isinstance(feature, VectorOptions):
        return to_vectors(column, name, feature.length, decimal)
    if feature.value == "number":
        numbers = to_numbers(column, decimal)
        return numbers, [(is_invalid(column, numbers), f"{name} is no number")]
    if feature.value == "time":
        times = to_times(column, config.timestamp_unit, config.timestamp_format)
        return times, [(is_invalid(column, times), f"{name} is no time")]
    return to_words(column), []


# --- rows of one impression


def merge_impressions(table: pa.Table) -> tuple[pa.Table, int]:
    """Merges the rows of each user, item and impression.

    The result doesn't depend on how often, and in which groups, rows are merged.

    Args:
        table: Interactions with a column `position`; all rows of their users.

    Returns:
        The events, and the number of rows that were merged into others.
    """
    if IMPRESSION.name not in table.column_names:
        return table, 0
    order, starts = _groups(table)
    if len(starts) == len(order):
        return table, 0
    first = order[starts]
    for at, field in enumerate(table.schema):
        if _takes_maximum(field.name):
            values = _maxima(table[field.name], order, starts, first)
            table = table.set_column(at, field, values)
    is_kept = np.ones(table.num_rows, bool)
    is_kept[order] = False
    is_kept[first] = True
    merged = table.filter(pa.array(is_kept))
    return _settle(merged), table.num_rows - merged.num_rows


def key_codes(table: pa.Table, name: str) -> np.ndarray:
    """Returns integers `[n]` that are equal for equal values of a column."""
    column = table[name]
    if name == IMPRESSION.name:
        return fingerprints(column.combine_chunks()).view(np.int64)
    return column.to_numpy() if pa.types.is_integer(column.type) else codes_of(column)


def _groups(table: pa.Table) -> tuple[np.ndarray, np.ndarray]:
    """Returns the rows `[m]` that may share an event, by event and time; and the events' starts."""
    rows = np.flatnonzero(table[IMPRESSION.name].is_valid().to_numpy())
    names = ["user_id", "item_id", IMPRESSION.name, PART.name]
    codes = [key_codes(table, name)[rows] for name in names if name in table.column_names]
    suspects = repeated_hashes(codes)
    rows, codes = rows[suspects], [code[suspects] for code in codes]
    times = [n for n in ("position", PLACE.name, TIME.name) if n in table.column_names]
    order = np.lexsort([*(table[name].to_numpy()[rows] for name in times), *codes])
    return rows[order], np.flatnonzero(run_starts(*(code[order] for code in codes)))


def _takes_maximum(name: str) -> bool:
    return name.startswith(_POSITIVE) or name in (RATE.name, HISTORY.name, "weight")


def _maxima(
    column: pa.ChunkedArray, order: np.ndarray, starts: np.ndarray, first: np.ndarray
) -> pa.Array:
    """Returns a column with the maximum of each group in the group's first row."""
    kind = column.type.to_pandas_dtype()
    lowest = -np.inf if pa.types.is_floating(column.type) else np.iinfo(kind).min
    values = pc.fill_null(column, pa.scalar(lowest, column.type)).to_numpy().copy()
    values[first] = np.maximum.reduceat(values[order], starts)
    return pa.array(values, column.type, mask=values == lowest)


def _settle(table: pa.Table) -> pa.Table:
    """Returns merged rows with the labels that `given` leaves known."""
    for name in filter(is_working, table.column_names):
        target, _, given = name.partition(_GIVEN)
        at = table.column_names.index(target)
        values = _known_if(table[name], table[f"{LABEL}{given}"])
        values = pc.fill_null(values, 0) if target == _POSITIVE else values
        table = table.set_column(at, table.schema.field(at), values)
    return table


def without_working(table: pa.Table) -> pa.Table:
    """Returns merged rows without the columns that only merging needs."""
    return table.drop_columns(list(filter(is_working, table.column_names)))
