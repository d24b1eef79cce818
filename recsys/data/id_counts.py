"""How often ids were seen, and when last: what a vocabulary is grown from."""

from __future__ import annotations

from collections.abc import Sequence

import pyarrow as pa

SCHEMA = pa.schema({"id": pa.large_string(), "count": pa.int64(), "last_seen": pa.int64()})
"""Columns of a table of counted ids; each id stands there once."""


def count_ids(ids: pa.Array | pa.ChunkedArray, timestamps: pa.Array | pa.ChunkedArray) -> pa.Table:
    """Counts the ids of events.

    Args:
        ids: Id of each event `[n]`, text.
        timestamps: Time of each event `[n]` int64 [seconds since 1970, UTC].

    Returns:
        The ids with their `count` and `last_seen`, in any order.
    """
    table = pa.table({"id": ids.cast(pa.large_string()), "time": timestamps})
    counted = table.group_by("id").aggregate([("time", "count"), ("time", "max")])
    return _in_order(counted, "time_count", "time_max")


def merge_counts(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns the sum of tables of counted ids."""
    table = pa.concat_tables([SCHEMA.empty_table(), *tables])
    merged = table.group_by("id").aggregate([("count", "sum"), ("last_seen", "max")])
    return _in_order(merged, "count_sum", "last_seen_max")


def _in_order(table: pa.Table, count: str, last_seen: str) -> pa.Table:
    columns = [table["id"], table[count], table[last_seen]]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
