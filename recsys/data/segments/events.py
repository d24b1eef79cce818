"""The positives of a segment, sorted by user, with the ids of the segment alone.

    users.parquet items.parquet   id, count and last_seen of each id, in order of the id
    offsets.npy                   first event of each user, and the end
    item.npy                      which item each event is of
    timestamp.npy weight.npy      one value an event

No row of a vocabulary is in them, and no cut: what was written once stays true, whatever
the vocabularies become. Rows come in when a store is made of segments (`store.py`).
"""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.event_order import event_order
from recsys.data.id_counts import SCHEMA

USERS, ITEMS = "users.parquet", "items.parquet"
COLUMNS = {"offsets": np.int64, "item": np.int32, "timestamp": np.int64, "weight": np.float32}
"""Columns of the events; `weight` only where the data have one."""


def write_events(folder: Path, positives: pa.Table) -> int:
    """Writes the positives of one bucket of a segment.

    Args:
        folder: Where to, made where there is none.
        positives: Columns `user_id`, `item_id`, `timestamp`, and `weight` where the data
            have one; all positives that the segment has of these users.

    Returns:
        How many there are; without one nothing is written.
    """
    if not positives.num_rows:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    user, user_ids = _encode(positives["user_id"])
    item, item_ids = _encode(positives["item_id"])
    time = positives["timestamp"].to_numpy()
    weight = positives["weight"].to_numpy() if "weight" in positives.column_names else None
    order = event_order(user, time, item, weight)
    count = np.bincount(user, minlength=len(user_ids))
    columns = {
        "offsets": np.concatenate([[0], np.cumsum(count)]),
        "item": item[order],
        "timestamp": time[order],
        "weight": None if weight is None else weight[order],
    }
    for name, dtype in COLUMNS.items():
        column = columns[name]
        if column is not None:
            np.save(folder / f"{name}.npy", column.astype(dtype, copy=False))
    pq.write_table(_counted(user_ids, user, time), folder / USERS)
    pq.write_table(_counted(item_ids, item, time), folder / ITEMS)
    return positives.num_rows


def read_ids(folder: Path, file: str) -> pa.Array:
    """Returns the ids of a bucket's users or items, `large_string`, in order."""
    table = pq.read_table(folder / file, columns=["id"], schema=SCHEMA)
    return pa.chunked_array(table["id"].chunks, pa.large_string()).combine_chunks()


def _encode(ids: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Returns the code `[n]` int32 of each id, and the ids by code: in order of the id."""
    encoded = ids.cast(pa.large_string()).combine_chunks().dictionary_encode()
    order = pc.array_sort_indices(encoded.dictionary)
    place = np.empty(len(order), np.int32)
    place[order.to_numpy()] = np.arange(len(order), dtype=np.int32)
    return place[encoded.indices.to_numpy()], encoded.dictionary.take(order)


def _counted(ids: pa.Array, codes: np.ndarray, time: np.ndarray) -> pa.Table:
    last_seen = np.full(len(ids), np.iinfo(np.int64).min)
    np.maximum.at(last_seen, codes, time)
    count = pa.array(np.bincount(codes, minlength=len(ids)), pa.int64())
    return pa.Table.from_arrays([ids, count, pa.array(last_seen)], schema=SCHEMA)
