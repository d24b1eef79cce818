"""Examples and vocabularies to events whose ids are rows: what the store is made of."""

from __future__ import annotations

import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.event_times import event_times, time_columns
from recsys.data.vocabulary import Vocabulary

_COLUMNS = ["user_id", "item_id", "label"]
_WEIGHT = "weight"


def columns(file: str) -> list[str]:
    """Returns the columns that the store is made of, of a file of examples."""
    names = pq.read_schema(file).names
    return [*_COLUMNS, *time_columns(names), *([_WEIGHT] if _WEIGHT in names else [])]


def encode_positives(table: pa.Table, users: Vocabulary, items: Vocabulary) -> pa.RecordBatch:
    """Returns the positives of `table` with rows in the place of ids.

    Args:
        table: Examples with the columns that `columns` names.
        users: Vocabulary of the users.
        items: Vocabulary of the items.

    Returns:
        Columns `user_id`, `user_row`, `item_row`, `timestamp` (see `event_times`), and
        `weight` where the examples have one.
    """
    positives = table.filter(pc.equal(table["label"], 1)).combine_chunks()
    user_ids = positives["user_id"].combine_chunks()
    events = {
        "user_id": user_ids,
        "user_row": users.rows(user_ids),
        "item_row": items.rows(positives["item_id"]),
        "timestamp": event_times(positives),
    }
    if _WEIGHT in positives.column_names:
        events[_WEIGHT] = positives[_WEIGHT].combine_chunks()
    return pa.RecordBatch.from_pydict(events)
