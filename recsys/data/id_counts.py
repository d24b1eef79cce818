"""How often ids were seen, and when last: what a vocabulary is grown from."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import pyarrow as pa

SCHEMA = pa.schema({"id": pa.large_string(), "count": pa.int64(), "last_seen": pa.int64()})
"""Columns of a table of counted ids; each id stands there once."""


def count_ids(
    ids: pa.Array | pa.ChunkedArray, timestamps: pa.Array | pa.ChunkedArray | None
) -> pa.Table:
    """Counts the ids of events.

    Args:
        ids: Id of each event `[n]`, text.
        timestamps: Time of each event `[n]` int64 [seconds since 1970, UTC]; None: there
            are none, and `last_seen` is 0.

    Returns:
        The ids with their `count` and `last_seen`, in any order.
    """
    chunked = ids if isinstance(ids, pa.ChunkedArray) else pa.chunked_array([ids])
    # Three times as fast as a group_by.
    encoded = chunked.cast(pa.large_string()).combine_chunks().dictionary_encode()
    codes, n_ids = encoded.indices.to_numpy(), len(encoded.dictionary)
    last_seen = np.zeros(n_ids, np.int64)
    if timestamps is not None:
        last_seen[:] = np.iinfo(np.int64).min
        np.maximum.at(last_seen, codes, timestamps.to_numpy())
    count = np.bincount(codes, minlength=n_ids)
    columns = [encoded.dictionary, pa.array(count, pa.int64()), pa.array(last_seen)]
    return pa.Table.from_arrays(columns, schema=SCHEMA)


def merge_counts(tables: Sequence[pa.Table]) -> pa.Table:
    """Returns the sum of tables of counted ids."""
    table = pa.concat_tables([SCHEMA.empty_table(), *tables])
    merged = table.group_by("id").aggregate([("count", "sum"), ("last_seen", "max")])
    return _in_order(merged, "count_sum", "last_seen_max")


def _in_order(table: pa.Table, count: str, last_seen: str) -> pa.Table:
    columns = [table["id"], table[count], table[last_seen]]
    return pa.Table.from_arrays(columns, schema=SCHEMA)
