"""Types raw interactions and drops duplicates; a row that breaks a rule is a dead letter."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from typing import get_args

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.config import InteractionsConfig, TimestampUnit
from recsys.data.hashes import repeated_hashes
from recsys.data.labels import (
    HISTORY,
    IMPRESSION,
    RATE,
    SHOWN_AT,
    is_positive,
    key_codes,
    label_columns,
    label_fields,
    merge_impressions,
    row_impressions,
    type_features,
    type_labels,
    type_positions,
    type_rates,
    working_fields,
)
from recsys.data.sources.source import RawBatch
from recsys.data.sources.values import has_byte, to_ids, to_numbers, to_times
from recsys.data.split import (
    COLUMN,
    PART,
    PLACE,
    TIME,
    Part,
    file_positions,
    positions_of_users,
)

LONGEST_ID = 1024
"""Maximum length of an id in UTF-8 [bytes]."""

NO_USER = "empty user id"
NO_ITEM = "empty item id"
BAD_USER = f"user id over {LONGEST_ID} bytes, or with a NUL"
BAD_ITEM = f"item id over {LONGEST_ID} bytes, or with a NUL"
BAD_IMPRESSION = f"impression id over {LONGEST_ID} bytes, or with a NUL"
NO_TIME = "timestamp is no time"
OUT_OF_TIME = "timestamp before 1971 or in the future"
NO_RATING = "rating is not a finite number"
NO_WEIGHT = "weight is not a finite number"
NEGATIVE_WEIGHT = "weight is negative"
NO_EVENT = "no kind of event"
NO_PART = "part is in neither train_parts nor eval_parts"

POSITION = pa.field("position", pa.int64())
"""Position of a row in all files, from the indices of the file and the line."""
POSITION_FILE_BITS = 40

EARLIEST = 31_536_000
"""1971-01-01 UTC [seconds since 1970]: lower values are small numbers, not times."""

_NEARLY_ALL = 0.9

_Rule = tuple[pa.Array, str]
"""Which rows break the rule `[n]` bool, and the reason for the dead letter."""


def interaction_columns(config: InteractionsConfig) -> list[str]:
    """Returns the columns that a run reads from the raw interactions."""
    return list(dict.fromkeys(config.raw_names()))


def interaction_schema(config: InteractionsConfig) -> pa.Schema:
    """Returns the schema of typed interactions.

    It has `timestamp`, `rating`, `weight`, `event` and `part` if the config has their columns,
    and `place` if the order is that of the files. `label` is 1 for positives. Columns of labels,
    impressions and features follow, see `recsys.data.labels.label_fields`.
    """
    order = COLUMN[config.ordered_by]
    fields = [("user_id", pa.string()), ("item_id", pa.string())]
    fields += [] if order is None else [(order.name, order.type)]
    optional = {"rating": pa.float32(), "weight": pa.float32(), "event": pa.string()}
    fields += [(n, kind) for n, kind in optional.items() if getattr(config.columns, n) is not None]
    if config.columns.part is not None or config.eval_files:
        fields.append((PART.name, PART.type))
    return pa.schema([*fields, ("label", pa.int64()), *label_fields(config)])


def parse_interactions(
    batch: RawBatch,
    config: InteractionsConfig,
    now: int,
    file_index: int = 0,
    parts: Mapping[str, Part] | None = None,
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Types the rows of a batch.

    Args:
        batch: Rows with the columns `interaction_columns(config)`.
        config: Columns and types, and the rules for positives.
        now: The latest valid time of a row [seconds since 1970, UTC].
        file_index: Index of the batch's file among the files of the run.
        parts: Part of each file that matches `config.valid_files` or `config.eval_files`.

    Returns:
        The good rows in the columns of `interaction_schema`, `working_fields` and `POSITION`, and
        the dead letters, including those of the batch.
    """
    names, raw, decimal = config.columns, batch.columns.column, config.csv_format.decimal
    user, item = to_ids(raw(names.user)), to_ids(raw(names.item))
    columns = {"user_id": user, "item_id": item}
    rules: list[_Rule] = [
        (user.is_null(), NO_USER),
        (item.is_null(), NO_ITEM),
        (is_bad_id(user), BAD_USER),
        (is_bad_id(item), BAD_ITEM),
    ]
    if config.ordered_by == "file":
        element = batch.element if batch.shares_position else None
        columns[PLACE.name] = file_positions(file_index, batch.position, element)
    if names.timestamp is not None:
        times = columns[TIME.name] = raw_times(raw(names.timestamp), config)
        rules += [(times.is_null(), NO_TIME), (_is_out_of_time(times, now), OUT_OF_TIME)]
    if names.rating is not None:
        columns["rating"] = to_numbers(raw(names.rating), decimal)
        rules.append((columns["rating"].is_null(), NO_RATING))
    if names.weight is not None:
        weight = to_numbers(raw(names.weight), decimal)
        rules += [(weight.is_null(), NO_WEIGHT), (pc.less(weight, 0.0), NEGATIVE_WEIGHT)]
        columns["weight"] = pc.log1p(weight) if config.weight_scale == "log" else weight
    if names.event is not None:
        columns["event"] = to_ids(raw(names.event))
        rules.append((columns["event"].is_null(), NO_EVENT))
    if config.eval_files:
        part = (parts or {}).get(batch.file, "train")
        columns[PART.name] = pa.repeat(pa.scalar(part), batch.columns.num_rows)
    if names.part is not None:
        values = to_ids(raw(names.part))
        trained, tried, held = (
            pc.is_in(values, value_set=to_ids(pa.array(known, pa.string())), skip_nulls=True)
            for known in (config.train_parts, config.valid_parts, config.eval_parts)
        )
        columns[PART.name] = pc.if_else(held, "eval", pc.if_else(tried, "valid", "train"))
        rules.append((pc.invert(pc.or_(pc.or_(trained, tried), held)), NO_PART))
    raw_columns = {name: raw(name) for name in batch.columns.schema.names}
    labels, bad_labels = type_labels(raw_columns, config)
    positive = _positives(columns, labels, config, len(user))
    shown, bad_shown = _shown(batch, columns, config)
    features, bad_features = type_features(raw_columns, config)
    columns |= label_columns(labels, positive, config) | shown | features
    if config.history_events == "all":
        columns[HISTORY.name] = pa.repeat(pa.scalar(1, pa.int8()), len(user))
    elif config.history_events:
        columns[HISTORY.name] = _is_kind(columns["event"], config.history_events).cast(pa.int8())
    columns[POSITION.name] = positions(file_index, batch.position)
    rules += [*bad_labels, *bad_shown, *bad_features]
    schema = pa.schema([*interaction_schema(config), *working_fields(config), POSITION])
    typed = pa.RecordBatch.from_arrays([columns[name] for name in schema.names], schema=schema)
    return split_by_rules(batch, typed, rules)


def raw_times(column: pa.Array, config: InteractionsConfig) -> pa.Array:
    """Returns the times of a raw column `[n]` int64 [seconds]; null if invalid."""
    return to_times(column, config.timestamp_unit, config.timestamp_format)


def split_by_rules(
    batch: RawBatch, typed: pa.RecordBatch, rules: Sequence[_Rule]
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Returns the rows that break no rule, and the dead letters for the others."""
    broken = [(flags, reason) for flags, reason in rules if pc.any(flags).as_py()]
    if not broken:
        return typed, batch.rejected
    flags = [pc.fill_null(is_broken, False) for is_broken, _ in broken]
    bad = functools.reduce(pc.or_, flags)
    reason = pc.case_when(
        pc.make_struct(*(is_broken.filter(bad) for is_broken in flags)),
        *(pa.scalar(name) for _, name in broken),
    )
    return typed.filter(pc.invert(bad)), batch.reject(bad, reason.to_pylist())


def is_bad_id(ids: pa.Array) -> pa.Array:
    """Returns which ids `[n]` bool are too long, or contain a NUL; null for a null id."""
    is_long = pc.greater(pc.binary_length(ids), LONGEST_ID)
    return pc.or_(is_long, pc.match_substring(ids, "\0")) if has_byte(ids, b"\0") else is_long


def _is_out_of_time(timestamp: pa.Array, now: int) -> pa.Array:
    return pc.or_(pc.less(timestamp, EARLIEST), pc.greater(timestamp, now))


def _positives(
    columns: Mapping[str, pa.Array],
    labels: Mapping[str, pa.Array],
    config: InteractionsConfig,
    n_rows: int,
) -> pa.Array:
    """Returns 1 for rows that satisfy all rules of the config for positives, else 0 `[n]` int64."""
    are_positive = np.ones(n_rows, bool)
    if config.positive_label is not None:
        are_positive &= is_positive(labels[config.positive_label])
    if config.positive_at_least is not None:
        # In the same precision: float32(4.1) is greater than float64(4.1).
        threshold = np.float32(config.positive_at_least)
        are_positive &= pc.fill_null(columns["rating"], 0.0).to_numpy() >= threshold
    if config.positive_events:
        is_kind = _is_kind(columns["event"], config.positive_events)
        are_positive &= is_kind.to_numpy(zero_copy_only=False)
    if config.columns.weight is not None:
        are_positive &= pc.fill_null(columns["weight"], 0.0).to_numpy() > 0.0
    return pa.array(are_positive.astype(np.int64))


def _is_kind(events: pa.Array, kinds: Sequence[str]) -> pa.Array:
    """Returns which events have one of the kinds `[n]` bool."""
    return pc.is_in(events, value_set=to_ids(pa.array(kinds, pa.string())), skip_nulls=True)


def _shown(
    batch: RawBatch, columns: Mapping[str, pa.Array], config: InteractionsConfig
) -> tuple[dict[str, pa.Array], list[_Rule]]:
    """Returns the columns on what was shown, and the rules that rows break."""
    raw, names, shown, rules = batch.columns.column, config.columns, {}, list[_Rule]()
    if config.sampled is not None:
        shown[RATE.name] = type_rates(raw(config.sampled.column), config.sampled)
    if names.impression is not None:
        shown[IMPRESSION.name] = ids = to_ids(raw(names.impression))
        rules.append((is_bad_id(ids), BAD_IMPRESSION))
    elif config.has_impressions:
        user, item = columns["user_id"], columns["item_id"]
        shown[IMPRESSION.name] = row_impressions(batch, user, item, columns.get(TIME.name))
    if config.has_positions:
        column = None if names.position is None else raw(names.position)
        shown[SHOWN_AT.name], bad_positions = type_positions(batch, column)
        rules += bad_positions
    return shown, rules


def remark_on_ratings(config: InteractionsConfig) -> str | None:
    """Returns a sentence if low ratings count as positives, too; else None."""
    is_used = config.positive_at_least is not None or config.positive_label is not None
    if config.columns.rating is None or is_used:
        return None
    return (
        f"every rating in {config.columns.rating!r} counts as a positive, the lowest ones too, as"
        " data.interactions.positive_at_least is not set. Set it, or leave columns.rating out."
    )


_FEW_ROWS = 0.01


def remark_on_positives(config: InteractionsConfig, n_positive: int, n_rows: int) -> str | None:
    """Returns a sentence if a rule makes nearly all rows positives, or nearly none; else None.

    Args:
        config: Config with the rule.
        n_positive: Number of positives.
        n_rows: Number of rows that are neither rejected nor duplicates.
    """
    rules = {
        "positive": config.positive_label,
        "positive_at_least": config.positive_at_least,
        "positive_events": list(config.positive_events) or None,
    }
    if not any(rule is not None for rule in rules.values()):
        return None
    if not n_rows or _FEW_ROWS <= n_positive / n_rows <= 1 - _FEW_ROWS:
        return None
    named = " and ".join(f"{key}: {rule}" for key, rule in rules.items() if rule is not None)
    return (
        f"{n_positive:,} of {n_rows:,} good rows ({n_positive / n_rows:.2%}) are positives by"
        f" data.interactions.{named}. See whether that separates what is liked."
    )


def suggest_unit(batch: RawBatch, config: InteractionsConfig, now: int) -> TimestampUnit | None:
    """Returns the only unit in which nearly all times of a batch would be valid.

    Args:
        batch: Rows with the column of the times.
        config: Name of that column, and the unit that doesn't fit.
        now: The latest valid time of a row [seconds since 1970, UTC].

    Returns:
        The unit; `None` if none fits, several fit, it is the config's, or there are no times.
    """
    if config.columns.timestamp is None or config.timestamp_format is not None:
        return None
    column = batch.columns.column(config.columns.timestamp)
    fitting = [unit for unit in UNITS if good_times(to_times(column, unit), now) >= _NEARLY_ALL]
    return fitting[0] if len(fitting) == 1 and fitting[0] != config.timestamp_unit else None


UNITS: tuple[TimestampUnit, ...] = get_args(TimestampUnit)
"""Units of timestamps."""


def good_times(timestamp: pa.Array, now: int) -> float:
    """Returns the share of valid times [0..1]."""
    bad = pc.fill_null(_is_out_of_time(timestamp, now), True)
    return 1.0 - (pc.sum(bad).as_py() or 0) / max(1, len(timestamp))


# --- duplicates: of rows with the same key, the first is kept


def positions(file_index: int, line: np.ndarray) -> pa.Array:
    """Returns the position of each line `[n]` of the file at `file_index`."""
    return pa.array((file_index << POSITION_FILE_BITS) + line, POSITION.type)


def keep_first(
    table: pa.Table, keys: Sequence[str], prefer: pa.ChunkedArray | None = None
) -> tuple[pa.Table, int]:
    """Keeps the first row of each key.

    Args:
        table: Rows with the columns `keys` and `position`.
        keys: Columns that are equal in duplicates.
        prefer: Priorities `[n]`: the row of a key with the highest is kept, or the first of
            several; null is the lowest. None: the first row is kept.

    Returns:
        The rows kept, sorted by position, and the number of dropped rows.
    """
    position = table[POSITION.name].to_numpy()
    codes = [key_codes(table, key) for key in keys]
    is_kept = np.ones(len(position), bool)
    suspects = repeated_hashes(codes)
    order = [position[suspects]]
    if prefer is not None:
        order.append(-pc.fill_null(prefer, -np.inf).to_numpy()[suspects])
    is_kept[suspects[_is_repeated(order, [code[suspects] for code in codes])]] = False
    kept = np.flatnonzero(is_kept)
    # They are mostly in order, which makes a stable sort fast.
    kept = kept[np.argsort(position[kept], kind="stable")]
    return table.combine_chunks().take(pa.array(kept)), len(position) - len(kept)


def _is_repeated(ranks: Sequence[np.ndarray], codes: Sequence[np.ndarray]) -> np.ndarray:
    """Returns which rows `[n]` repeat an earlier one, in the order of `ranks` (the last first)."""
    order = np.lexsort((*ranks, *codes))
    repeated = np.zeros(len(order), bool)
    equal = [code[order[1:]] == code[order[:-1]] for code in codes]
    repeated[order[1:]] = np.all(equal, axis=0)
    return repeated


def drop_duplicates(table: pa.Table) -> tuple[pa.Table, int]:
    """Keeps the first row of each user, item, and time, kind of event and part, if present.

    Rows of one impression are merged (`recsys.data.labels`), and no duplicates of other rows. If
    the order is that of the files, each row is a separate event, and its position becomes
    the one among its user's rows.

    Args:
        table: Interactions with a column `position`; all rows of their users.

    Returns:
        The rows kept, sorted by position, and the number of dropped rows.
    """
    merged, n_merged = merge_impressions(table)
    keys = duplicate_keys(merged.column_names)
    kept, n_dropped = keep_first(merged, keys)
    return (positions_of_users(kept) if PLACE.name in keys else kept), n_merged + n_dropped


def duplicate_keys(columns: Collection[str]) -> list[str]:
    """Returns the columns of interactions that are equal in duplicates."""
    more = (TIME.name, PLACE.name, "event", PART.name, IMPRESSION.name)
    return ["user_id", "item_id", *(name for name in more if name in columns)]
