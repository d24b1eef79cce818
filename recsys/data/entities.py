"""Converts raw columns of items and users to typed ones; invalid rows are rejected.

The examples hold the id, the title of items, and a column for each feature; features that read
the same raw column in the same way share it:

    category, words   string, NFC, without surrounding whitespace
    categories        list<string>
    number            float32
    date              int64 [seconds since 1970, UTC]
    vector            list<float32>

A missing value is null, or an empty list.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import ItemsConfig, UsersConfig, write_feature
from recsys.data.features import Feature, Value
from recsys.data.hashes import fingerprints, mix
from recsys.data.interactions import (
    BAD_ITEM,
    BAD_USER,
    NO_ITEM,
    NO_USER,
    POSITION,
    is_bad_id,
    keep_first,
    positions,
    split_by_rules,
)
from recsys.data.sources.source import RawBatch
from recsys.data.sources.values import (
    is_invalid,
    is_list,
    last_values,
    list_lengths,
    lists_of,
    to_ids,
    to_lists,
    to_numbers,
    to_ranks,
    to_text,
    to_times,
)
from recsys.data.sources.vectors import to_vectors
from recsys.errors import RecsysError

EntityConfig = ItemsConfig | UsersConfig

_ARROW: dict[Value, pa.DataType] = {
    "text": pa.string(),
    "list": pa.list_(pa.string()),
    "number": pa.float32(),
    "date": pa.int64(),
    "vector": pa.list_(pa.float32()),
}
_TITLE = "title"
LATEST = pa.field("_latest", pa.float64())
"""Priority of a row among the rows of its id: the row with the highest value is used."""
# Names of the signatures' other inputs.
_TAKEN = ("user_id", "item_id", "history", "exclude_seen", POSITION.name, LATEST.name)

_YEARS = (1000, 3000)
EARLIEST_DATE, _LATEST = 100_000_000, 32_503_680_000
"""1973-03-03 and the year 3000 [seconds since 1970, UTC]: integers in between are times."""

LEAST_JOIN = 0.01
"""Lowest share of events whose item or user is in the files of items or users [0..1]."""

_Key = tuple[str, Value, str]
"""Raw column, type of the value, and the feature's `detail`."""


def id_column(config: EntityConfig) -> str:
    """Returns the name of the id column in the examples."""
    return "item_id" if isinstance(config, ItemsConfig) else "user_id"


def raw_columns(config: EntityConfig) -> list[str]:
    """Returns the columns that a run reads from the raw files."""
    features = [feature.column for feature in config.features if feature.column is not None]
    title = [column for column in (_raw_title(config),) if column is not None]
    latest = [] if config.latest is None else [config.latest]
    return list(dict.fromkeys([_raw_id(config), *title, *features, *latest]))


def example_columns(config: EntityConfig) -> dict[str, str]:
    """Returns the column of the examples for each feature that reads one, by feature name.

    It has the name of the raw column; if several columns are made from one raw column, the
    later ones have a suffix for the type.
    """
    names = _names(config)
    read = (feature for feature in config.features if feature.column is not None)
    return {feature.name: names[_key(feature)] for feature in read}


def date_columns(config: EntityConfig) -> tuple[str, ...]:
    """Returns the columns of the examples that are dates."""
    return tuple(name for (_, type_, _), name in _names(config).items() if type_ == "date")


def example_schema(config: EntityConfig) -> pa.Schema:
    """Returns the schema of the examples."""
    fields = [(name, _ARROW[type_]) for (_, type_, _), name in _names(config).items()]
    return pa.schema([(id_column(config), pa.string()), *fields])


def feature_settings(config: EntityConfig) -> dict[str, Any]:
    """Returns the `custom_config` of `transform.preprocessing_fn`.

    A process that reads it imports the modules of the features, which plugins may define.
    """
    columns = example_columns(config)
    parts = [
        {
            "column": columns.get(feature.name),
            "feature": write_feature(feature),
            "modules": [type(feature).__module__],
        }
        for feature in config.features
    ]
    return {"id": id_column(config), "features": parts}


def parse_entities(
    batch: RawBatch, config: EntityConfig, file_index: int = 0
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Converts the columns of a batch to their types.

    Args:
        batch: Rows with the columns `raw_columns(config)`.
        config: Columns and types.
        file_index: Index of the batch's file among the files of the run.

    Returns:
        The good rows in the columns of `example_schema`, `LATEST` if the config has its column,
        and `POSITION`; and the dead letters, including those of the batch: rows without an id,
        with an id that is too long, or with a value that can't be parsed.

    Raises:
        RecsysError: A column holds lists but its feature takes one value.
    """
    ids = to_ids(batch.columns.column(_raw_id(config)))
    no_id, bad_id = (NO_ITEM, BAD_ITEM) if isinstance(config, ItemsConfig) else (NO_USER, BAD_USER)
    columns, rules = [ids], [(ids.is_null(), no_id), (is_bad_id(ids), bad_id)]
    for key in _names(config):
        raw, type_, detail = key
        column = batch.columns.column(raw)
        if type_ == "list":
            lists = to_lists(column, detail)
            columns.append(lists)
            rules.append((lists.is_null(), f"{raw} is no list of plain values"))
            continue
        if type_ == "vector":
            vectors, broken = to_vectors(column, raw, int(detail), config.csv_format.decimal)
            columns.append(vectors)
            rules += broken
            continue
        column = _of_one_value(column, raw, batch.file)
        typed = _typed(column, type_, detail, config.csv_format.decimal)
        columns.append(typed)
        rules.append((is_invalid(column, typed), f"{raw} is no {type_}"))
    schema = example_schema(config)
    if config.latest is not None:
        column = _of_one_value(batch.columns.column(config.latest), config.latest, batch.file)
        columns.append(to_ranks(column))
        reason = f"{config.latest} is neither a number nor a time"
        rules.append((is_invalid(column, columns[-1]), reason))
        schema = schema.append(LATEST)
    rows = pa.RecordBatch.from_arrays(
        [*columns, positions(file_index, batch.position)], schema=schema.append(POSITION)
    )
    return split_by_rules(batch, rows, rules)


def keep_latest(rows: pa.Table, key: str) -> tuple[pa.Table, int, int]:
    """Keeps one row of each id: the first, or the one with the highest `LATEST`, if present.

    Args:
        rows: Typed rows, as `parse_entities` returns them.
        key: Column of the id.

    Returns:
        The rows kept, in the columns of `example_schema`; the number of dropped rows; and the
        number of rows that differ from all earlier rows of their id.
    """
    prefer = rows[LATEST.name] if LATEST.name in rows.column_names else None
    kept, n_dropped = keep_first(rows, (key,), prefer)
    n_conflicts = 0
    if n_dropped:
        n_different = len(np.unique(np.concatenate([row_hashes(b) for b in rows.to_batches()])))
        n_conflicts = n_different - kept.num_rows
    beside = [name for name in (LATEST.name, POSITION.name) if name in kept.column_names]
    return kept.drop_columns(beside), n_dropped, n_conflicts


def remark_on_conflicts(what: str, n_conflicts: int) -> str:
    """Returns a remark on `n_conflicts` rows of `what` that `keep_latest` found."""
    return (
        f"{n_conflicts:,} rows of {what} have other values than an earlier row with their id, of"
        f" which the first is used. Set data.{what}.latest to the column that says which is newest"
    )


def row_hashes(rows: pa.RecordBatch) -> np.ndarray:
    """Returns a hash of each row's example columns `[n]` uint64."""
    hashes = np.zeros(rows.num_rows, np.uint64)
    for name, column in zip(rows.schema.names, rows.columns, strict=True):
        if name in (LATEST.name, POSITION.name):
            continue
        if is_list(column.type):
            texts = column.flatten().cast(pa.string())
            lists = lists_of(texts, list_lengths(column), column.is_null())
            column = pc.binary_join(lists, "\x1f")
        if not pa.types.is_string(column.type):
            column = column.cast(pa.string())
        hashes = mix(hashes ^ fingerprints(column))
    return hashes


def _raw_id(config: EntityConfig) -> str:
    return config.columns.item if isinstance(config, ItemsConfig) else config.columns.user


def _raw_title(config: EntityConfig) -> str | None:
    return config.columns.title if isinstance(config, ItemsConfig) else None


def _key(feature: Feature) -> _Key:
    return feature.column or "", feature.value, feature.detail


def _names(config: EntityConfig) -> dict[_Key, str]:
    """Returns the example column for each column read."""
    title = _raw_title(config)
    names: dict[_Key, str] = {} if title is None else {(title, "text", ""): _TITLE}
    for feature in config.features:
        key = _key(feature)
        if feature.column is not None and key not in names:
            taken = {*_TAKEN, _TITLE, *names.values()}
            names[key] = next(name for name in _proposals(*key[:2]) if name not in taken)
    return names


def _proposals(raw: str, type_: Value) -> Iterator[str]:
    yield raw
    yield f"raw_{raw}"
    yield f"{raw}_as_{type_}"
    for number in itertools.count(2):
        yield f"{raw}_as_{type_}_{number}"


def _of_one_value(column: pa.Array, raw: str, file: str) -> pa.Array:
    """Returns a column without lists and dictionaries; each list must hold one value."""
    if pa.types.is_dictionary(column.type):
        column = column.dictionary.take(column.indices)
    if not pa.types.is_nested(column.type):
        return column
    length = list_lengths(column) if is_list(column.type) else None
    if length is None or (length > 1).any():
        raise RecsysError(
            "R260",
            f"The column {raw!r} of {file!r} must hold one value a row, as its feature takes it.",
            "Use a feature of the kind categories, or another column.",
            str(column.type),
        )
    return last_values(column, length == 0)


def _typed(column: pa.Array, type_: Value, detail: str, decimal: str) -> pa.Array:
    """Converts single values `[n]` to a type; null if one can't be parsed."""
    if type_ == "number":
        return to_numbers(column, decimal)
    if type_ == "date":
        return to_times(column, "iso8601", detail) if detail else to_dates(column)
    text = pc.utf8_trim_whitespace(to_text(column))
    return pc.if_else(pc.equal(text, ""), pa.scalar(None, text.type), text)


def to_dates(column: pa.Array) -> pa.Array:
    """Returns dates as int64 seconds since 1970, UTC; null for values that aren't dates.

    A date is a value of an Arrow type for time, ISO 8601 text, or an integer: a year from
    1000 to 3000, meaning its first day, or the seconds since 1970, UTC, from 100,000,000
    (1973) to the year 3000. Other numbers, such as 19991231 or milliseconds, are ambiguous
    and not accepted.
    """
    if pa.types.is_temporal(column.type):
        return to_times(column, "seconds")
    if pa.types.is_integer(column.type) or pa.types.is_floating(column.type):
        return _dates_of_numbers(_whole(column))
    text = pc.utf8_trim_whitespace(to_text(column))
    is_number = pc.fill_null(pc.match_substring_regex(text, r"^[0-9]{1,18}(\.0*)?$"), False)
    digits = pc.replace_substring_regex(text, r"\.0*$", "")
    numbers = pc.if_else(is_number, digits, pa.scalar(None, text.type)).cast(pa.int64())
    times = pc.if_else(is_number, pa.scalar(None, text.type), text)
    return pc.coalesce(_dates_of_numbers(numbers), to_times(times, "iso8601"))


def _whole(column: pa.Array) -> pa.Array:
    """Returns numbers as int64; null for fractions."""
    if pa.types.is_integer(column.type):
        return column.cast(pa.int64(), safe=False)
    values = column.cast(pa.float64())
    is_whole = pc.and_(pc.equal(values, pc.trunc(values)), pc.less(pc.abs(values), 2.0**53))
    return pc.if_else(is_whole, values, pa.scalar(None, pa.float64())).cast(pa.int64())


def _dates_of_numbers(numbers: pa.Array) -> pa.Array:
    is_null = numbers.is_null().to_numpy(zero_copy_only=False)
    values = pc.fill_null(numbers, 0).to_numpy(zero_copy_only=False)
    is_year = (values >= _YEARS[0]) & (values <= _YEARS[1])
    is_time = (values >= EARLIEST_DATE) & (values < _LATEST)
    years = np.where(is_year, values, 1970) - 1970
    first_days = years.astype("datetime64[Y]").astype("datetime64[s]").astype(np.int64)
    seconds = np.where(is_year, first_days, values)
    return pa.array(seconds, mask=is_null | ~(is_year | is_time))
