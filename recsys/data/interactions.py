"""Raw text to typed interactions; a row that breaks a rule becomes a dead letter."""

from __future__ import annotations

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.config import InteractionColumns
from recsys.data.csv_columns import CsvBatch
from recsys.data.duplicates import POSITION, keep_first, positions

NO_USER = "empty user id"
NO_ITEM = "empty item id"
NO_TIME = "timestamp is not a whole number"
OUT_OF_TIME = "timestamp before 1971 or in the future"
NO_RATING = "rating is not a finite number"

EARLIEST = 31_536_000
"""1971-01-01 UTC [seconds since 1970]: what lies before it is a small number, not a time."""

SCHEMA = pa.schema(
    [
        ("user_id", pa.string()),
        ("item_id", pa.string()),
        ("timestamp", pa.int64()),
        ("rating", pa.float32()),
        ("label", pa.int64()),
    ]
)


def parse_interactions(
    batch: CsvBatch,
    columns: InteractionColumns,
    positive_at_least: float | None,
    now: int,
    file_index: int = 0,
) -> tuple[pa.RecordBatch, pa.RecordBatch]:
    """Types the rows of a batch.

    Args:
        batch: Rows of text.
        columns: Which column holds what.
        positive_at_least: Ratings from here up have label 1; `None`: every row has.
        now: The latest time that a row may have [seconds since 1970, UTC].
        file_index: Place of the batch's file among the files of the run.

    Returns:
        The good rows in the columns of `SCHEMA` and `POSITION`, and the dead
        letters, those of the batch included.
    """
    text = batch.columns
    user = pc.utf8_trim_whitespace(text.column(columns.user))
    item = pc.utf8_trim_whitespace(text.column(columns.item))
    timestamp = _whole_numbers(text.column(columns.timestamp))
    rating = (
        pa.array(np.ones(len(user), np.float32))
        if columns.rating is None
        else _finite_numbers(text.column(columns.rating))
    )
    in_time = pc.and_(pc.greater_equal(timestamp, EARLIEST), pc.less_equal(timestamp, now))
    reason = pc.case_when(
        pc.make_struct(
            pc.equal(user, ""),
            pc.equal(item, ""),
            pc.is_null(timestamp),
            pc.invert(pc.fill_null(in_time, False)),
            pc.is_null(rating),
        ),
        *(pa.scalar(name) for name in (NO_USER, NO_ITEM, NO_TIME, OUT_OF_TIME, NO_RATING)),
    )
    position = positions(file_index, batch.line)
    label = _labels(rating, positive_at_least)
    typed = pa.RecordBatch.from_arrays(
        [user, item, timestamp, rating, label, position], schema=SCHEMA.append(POSITION)
    )
    bad = pc.is_valid(reason)
    rejected = batch.reject(bad, reason.filter(bad).to_pylist())
    return typed.filter(pc.invert(bad)), rejected


def drop_duplicates(table: pa.Table) -> tuple[pa.Table, int]:
    """Keeps the first row of each (user, item, timestamp); returns the rest's number too.

    Args:
        table: Interactions with a column `position`, all rows of a user among them.
    """
    return keep_first(table, ("user_id", "item_id", "timestamp"))


def _whole_numbers(text: pa.Array) -> pa.Array:
    """Returns int64 numbers, null where there is none; `12.0` is one."""
    trimmed = pc.utf8_trim_whitespace(text)
    is_whole = pc.match_substring_regex(trimmed, r"^-?[0-9]{1,18}(\.0*)?$")
    digits = pc.replace_substring_regex(trimmed, r"\.0*$", "")
    return pc.if_else(is_whole, digits, None).cast(pa.int64())


def _finite_numbers(text: pa.Array) -> pa.Array:
    """Returns float32 numbers, null where there is no finite one."""
    trimmed = pc.utf8_trim_whitespace(text)
    is_number = pc.match_substring_regex(
        trimmed, r"^-?([0-9]+\.?[0-9]*|\.[0-9]+)([eE][+-]?[0-9]+)?$"
    )
    numbers = pc.if_else(is_number, trimmed, None).cast(pa.float64()).cast(pa.float32())
    return pc.if_else(pc.is_finite(numbers), numbers, None)


def _labels(rating: pa.Array, positive_at_least: float | None) -> pa.Array:
    if positive_at_least is None:
        return pa.array(np.ones(len(rating), np.int64))
    # In the same precision: float32(4.1) would lie above float64(4.1).
    threshold = pa.scalar(positive_at_least, pa.float32())
    return pc.fill_null(pc.greater_equal(rating, threshold), False).cast(pa.int64())
