"""Examples and vocabularies to the parts of the interaction store.

A part holds all events of some users, sorted; parts laid end to end, in order,
are the log. So the sorting is spread over workers, and no process holds all
events.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from recsys.data.buckets import hash_buckets
from recsys.data.catalogue import Catalogue, FeatureBags
from recsys.data.store import EventLog
from recsys.data.vocabulary import Vocabulary

COLUMNS = ("user_id", "item_id", "timestamp", "label")
"""Columns of the examples that the store is made of."""


def encode_positives(table: pa.Table, users: Vocabulary, items: Vocabulary) -> pa.RecordBatch:
    """Returns the positives of `table` with rows in the place of ids.

    Args:
        table: Examples with the columns `COLUMNS`.
        users: Vocabulary of the users.
        items: Vocabulary of the items.

    Returns:
        Columns `user_id`, `user_row`, `item_row`, `timestamp`.
    """
    positives = table.filter(pc.equal(table["label"], 1)).combine_chunks()
    user_ids = positives["user_id"].combine_chunks()
    return pa.RecordBatch.from_pydict(
        {
            "user_id": user_ids,
            "user_row": users.rows(user_ids),
            "item_row": items.rows(positives["item_id"].combine_chunks()),
            "timestamp": positives["timestamp"].combine_chunks(),
        }
    )


def train_buckets(events: pa.RecordBatch, n_rows: int, n_buckets: int) -> np.ndarray:
    """Returns the part `[n]` of each event: a range of user rows each."""
    return _to_numpy(events, "user_row").astype(np.int64) * n_buckets // n_rows


def eval_buckets(events: pa.RecordBatch, n_buckets: int) -> np.ndarray:
    """Returns the part `[n]` of each event; all events of a user have one."""
    return hash_buckets(events.column("user_id"), n_buckets)


def train_part(events: pa.Table, bucket: int, n_rows: int, n_buckets: int) -> EventLog:
    """Returns the part `bucket` of the training log; its users are a range of rows."""
    start, end = (-(-edge * n_rows // n_buckets) for edge in (bucket, bucket + 1))
    user_row = events["user_row"].to_numpy()
    return EventLog.from_events(
        user_index=user_row.astype(np.int64) - start,
        user_row=user_row,
        item_row=events["item_row"].to_numpy(),
        timestamp=events["timestamp"].to_numpy(),
        n_users=end - start,
    )


def eval_part(events: pa.Table) -> tuple[EventLog, list[str], np.ndarray]:
    """Returns a part of the evaluation log, the ids of its users and their rows."""
    encoded = events["user_id"].combine_chunks().dictionary_encode()
    order = pc.sort_indices(encoded.dictionary).to_numpy()
    rank = np.empty(len(order), np.int64)
    rank[order] = np.arange(len(order))
    index = rank[encoded.indices.to_numpy()]
    user_row = events["user_row"].to_numpy()
    row_of_user = np.zeros(len(order), np.int32)
    row_of_user[index] = user_row
    log = EventLog.from_events(
        user_index=index,
        user_row=user_row,
        item_row=events["item_row"].to_numpy(),
        timestamp=events["timestamp"].to_numpy(),
        n_users=len(order),
    )
    return log, encoded.dictionary.take(pa.array(order)).to_pylist(), row_of_user


def join_parts(parts: Sequence[EventLog]) -> EventLog:
    """Lays the parts of a log end to end."""
    offsets = [np.zeros(1, np.int64)]
    for part in parts:
        offsets.append(part.offsets[1:] + offsets[-1][-1])

    def joined(name: str, dtype: type) -> np.ndarray:
        columns = [getattr(part, name) for part in parts]
        return np.concatenate(columns) if columns else np.zeros(0, dtype)

    return EventLog(
        user_row=joined("user_row", np.int32),
        item_row=joined("item_row", np.int32),
        timestamp=joined("timestamp", np.int64),
        tied=joined("tied", np.int32),
        offsets=np.concatenate(offsets),
    )


def build_catalogue(
    items: Vocabulary,
    titles: pa.Table,
    features: Sequence[FeatureBags],
    feature_ids: pa.Array,
) -> Catalogue:
    """Brings titles and features into the order of the item rows.

    Args:
        items: Vocabulary of the items.
        titles: Columns `item_id` and `title`, in any order.
        features: Features whose bags `[n, width]` are in the order of `feature_ids`.
        feature_ids: Ids of the items of the bags `[n]`.
    """
    ids = ["", *items.ids.to_pylist()]
    names = list(ids)
    for row, title in zip(
        items.rows(titles["item_id"].combine_chunks()).tolist(),
        titles["title"].to_pylist(),
        strict=True,
    ):
        names[row] = title
    names[0] = ""
    rows = items.rows(feature_ids)
    by_row = []
    for feature in features:
        bags = np.zeros((items.n_rows, feature.bags.shape[1]), np.int32)
        bags[rows] = feature.bags
        bags[0] = 0
        by_row.append(FeatureBags(feature.name, feature.rows, bags))
    return Catalogue(ids=ids, titles=names, features=tuple(by_row))


def count_ids(ids: pa.ChunkedArray, counts: dict[str, int]) -> None:
    """Adds to `counts` how often each id stands in `ids`."""
    counted = pc.value_counts(ids.combine_chunks())
    values, numbers = counted.field("values").to_pylist(), counted.field("counts").to_pylist()
    for id_, number in zip(values, numbers, strict=True):
        counts[id_] = counts.get(id_, 0) + number


def build_vocabulary(counts: dict[str, int]) -> Vocabulary:
    """Returns the vocabulary of `counts`: most frequent first, then by id."""
    ids = sorted(counts, key=lambda id_: (-counts[id_], id_))
    return Vocabulary(
        pa.array(ids, pa.large_string()), np.array([counts[id_] for id_ in ids], np.int64)
    )


def make_part_folder(folder: Path, part: int) -> Path:
    """Makes the folder of a part of a log and returns it."""
    path = folder / f"{part:05d}"
    path.mkdir(parents=True, exist_ok=True)
    return path


def open_parts(folder: Path) -> list[EventLog]:
    """Maps the parts of a log into memory, in order."""
    return [EventLog.open(part) for part in sorted(folder.glob("[0-9]*")) if part.is_dir()]


def _to_numpy(batch: pa.RecordBatch, name: str) -> np.ndarray:
    return batch.column(name).to_numpy()
