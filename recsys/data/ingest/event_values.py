"""Values of event features in segments: what they learn from them, and their tokens or numbers.

Features learn from events before the cut: texts with their counts, numbers from a sample. The
sample are the `SAMPLE` events with the lowest hash of user, item and time, so it does not depend
on how the events are divided into segments and buckets.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from recsys.data.config import InteractionsConfig
from recsys.data.event_features import (
    NOT_STORED,
    EventFeature,
    LearnedFeature,
    load_event_features,
    save_event_features,
)
from recsys.data.hashes import fingerprints, mix
from recsys.data.ingest.segment_parts import ITEMS, MISSING, USERS, SegmentPart, read_parts

SAMPLE = 1 << 17
"""Number of events from which features of numbers and vectors learn; all if there are fewer."""
_SALT = np.uint64(3)


def learn_event_features(
    examples: Path, config: InteractionsConfig, previous: Path | None, out: Path
) -> None:
    """Writes what event features learn from the events before the cut.

    Args:
        examples: Folder that InteractionGen or `ingest` wrote.
        config: The features, and the column of times.
        previous: Folder of the previous run's event features, whose tokens keep their rows.
        out: Folder to write; nothing is written without features and labels.
    """
    if not (config.features or config.labels):
        return
    parts = read_parts(examples, "train")
    before = {one.name: one for one in load_event_features(previous)} if previous else {}
    learned = []
    for feature in config.features:
        if feature.value == "statistic":  # They learn once the store is written.
            learned.append(LearnedFeature(feature, pa.table({})))
            continue
        earlier = before.get(feature.name)
        is_alike = earlier is not None and earlier.feature.kind == feature.kind
        table = earlier.learned if earlier and is_alike and earlier.learned.num_columns else None
        learned.append(LearnedFeature(feature, feature.learn(_counted(parts, feature), table)))
    save_event_features(out, learned, config.columns.timestamp, config.labels)


def _counted(parts: Sequence[SegmentPart], feature: EventFeature) -> pa.Table:
    """Returns the unique values of a feature, ascending, with their counts; see `learn`."""
    is_stored = feature.value not in NOT_STORED
    if not is_stored or type(feature).learn is EventFeature.learn:
        return pa.table({"value": pa.nulls(0), "count": pa.array([], pa.int64())})
    if feature.value == "text":
        tables = [_count_texts(part, _file(feature.name)) for part in parts]
        counted = pa.concat_tables([pa.table(_TEXTS.empty_table()), *tables])
        counted = counted.group_by("value").aggregate([("count", "sum")])
        counts = pa.table({"value": counted["value"], "count": counted["count_sum"]})
        return counts.sort_by("value").combine_chunks()
    values = _sample(parts, _file(feature.name))
    if values.ndim == 2:
        return pa.table({"value": as_arrow(values), "count": np.ones(len(values), np.int64)})
    unique, count = np.unique(values, return_counts=True)
    return pa.table({"value": unique, "count": count})


_TEXTS = pa.schema({"value": pa.string(), "count": pa.int64()})


def _file(feature: str) -> str:
    return f"feature.{feature}"


def _count_texts(part: SegmentPart, file: str) -> pa.Table:
    codes, texts = part.stored(file)[part.inside], _texts(part, file)
    count = np.bincount(codes[codes >= 0], minlength=len(texts))
    return pa.table([texts, count], schema=_TEXTS).filter(pa.array(count > 0))


def _texts(part: SegmentPart, file: str) -> pa.Array:
    return part.ids(f"{file}.parquet").cast(pa.string())


def _sample(parts: Sequence[SegmentPart], file: str) -> np.ndarray:
    """Returns the values, without missing ones, of the events with the lowest hashes."""
    kept = np.zeros(0, np.uint64)
    values = np.zeros(0, np.float32)
    for part in parts:
        column = part.stored(file)
        is_there = _is_there(column)
        if isinstance(inside := part.inside, np.ndarray):
            is_there &= inside
        at = np.flatnonzero(is_there)
        hashes = _hashes(part, at)
        if len(kept) == SAMPLE:
            at, hashes = (part_of[hashes < kept.max()] for part_of in (at, hashes))
        new = column[at]
        values = np.concatenate([values, new]) if len(kept) else new
        kept = np.concatenate([kept, hashes])
        lowest = np.argsort(kept, kind="stable")[:SAMPLE]
        kept, values = kept[lowest], values[lowest]
    return values


def _hashes(part: SegmentPart, at: np.ndarray) -> np.ndarray:
    """Returns a hash `[n]` uint64 of the user, item and time of the events `at` `[n]`."""
    users, items = (mix(fingerprints(part.ids(file)) + _SALT) for file in (USERS, ITEMS))
    user = np.searchsorted(part.offsets, at, side="right") - 1
    hashes = mix(users[user] ^ items[part.stored("item")[at]] * _SALT)
    return mix(hashes ^ part.time[at].view(np.uint64))


def _is_there(column: np.ndarray) -> np.ndarray:
    """Returns which values of a stored column are known `[n]` bool."""
    if column.ndim == 2:
        return ~np.isnan(column[:, 0]) if column.shape[1] else np.zeros(len(column), bool)
    if column.dtype == np.float32:
        return ~np.isnan(column)
    known: np.ndarray = column != MISSING[column.dtype.type]
    return known


def as_arrow(column: np.ndarray) -> pa.Array:
    """Returns values of a stored column as typed values; missing ones are null."""
    mask = ~_is_there(column)
    if column.ndim == 1:
        return pa.array(column, mask=mask)
    width, known = column.shape[1], ~mask
    ends = np.cumsum(np.append(0, known) * width)
    offsets = pa.array(ends, mask=np.append(mask, False))
    return pa.LargeListArray.from_arrays(offsets, pa.array(column[known].ravel()))


def encoder(part: SegmentPart, feature: LearnedFeature) -> Callable[[np.ndarray], np.ndarray]:
    """Returns a function that encodes a feature of the part's events at indices `[n]`.

    It returns token rows `[n, width]` in the smallest type, or numbers `[n, floats]` float32.
    """
    file = _file(feature.name)
    column = part.stored(file)
    if feature.feature.value != "text":
        return lambda at: smallest(feature.encode(as_arrow(column[at])), feature.rows)
    texts = _texts(part, file)
    # The code of a missing text is -1.
    known = feature.encode(pa.concat_arrays([texts, pa.nulls(1, texts.type)]))
    rows = smallest(known, feature.rows)
    return lambda at: rows[column[at]]


def smallest(encoded: np.ndarray, n_rows: int) -> np.ndarray:
    """Returns token rows in the smallest type for a table of `n_rows` rows; numbers as they are."""
    if not n_rows:
        return encoded
    types = (np.uint8, np.uint16, np.int32)
    return encoded.astype(next(t for t in types if n_rows - 1 <= np.iinfo(t).max), copy=False)
