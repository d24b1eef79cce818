"""The files of a segment's bucket, and their index.

    segments.json                    the segments, the oldest first
    segments/00007-00000/            events of a bucket of the eighth segment, sorted by user
        users.parquet items.parquet  the unique ids, in ascending order
        offsets.npy                  index of each user's first event, and the end
        item.npy                     index of each event's item
        timestamp.npy                one value per event; so are the others, if the data have them:
        weight.npy                   weight in the loss
        valid.npy                    whether validation holds the event back
        feature.<name>.npy           value of a feature, or index of a text; see `_values`
        feature.<name>.parquet       the unique texts, in ascending order
    Split-train/data-….parquet       its rows as examples, in the place that TFX expects

Without `data.interactions.labels` the events are the positives and, with `history_events`, those
of other kinds (then with `positive.npy`). With it they are all good rows:

        positive.npy                 whether the event is a positive
        history.npy                  whether histories hold the event, if not only positives
        label.<name>.npy             int8, 1, 0 or -1 (unknown); amounts: float32, NaN if unknown
        rate.npy                     share of such rows that the source kept
        impression.npy               hash of the impression's id, 0: none
        position.npy                 position in the impression, -1 if unknown

Users and items are numbered within the bucket: the files contain neither vocabulary rows nor the
cut, so they stay valid. The events of a folder are in one split, or are split at the cut when they
are read.
"""

from __future__ import annotations

import dataclasses
import functools
import json
import shutil
import uuid
from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.parquet as pq

from recsys.data.example_files import write_examples
from recsys.data.hashes import fingerprints
from recsys.data.labels import FEATURE, HISTORY, IMPRESSION, LABEL
from recsys.data.split import PART, count_days, event_times
from recsys.data.store import event_order, map_array
from recsys.data.vocabulary import count_codes

USERS, ITEMS = "users.parquet", "items.parquet"
EXAMPLES = "examples.parquet"
INDEX, FOLDER = "segments.json", "segments"
MISSING: dict[Any, float] = {
    np.int8: -1,
    np.float32: np.nan,
    np.int64: np.iinfo(np.int64).min,
}
"""Value that stands for null, by the type of a column."""


def write_part(folder: Path, name: str, rows: pa.Table, with_examples: bool) -> dict[str, Any]:
    temporary = folder / f".{name}-{uuid.uuid4().hex}"  # Beam may run a task twice.
    temporary.mkdir()
    if with_examples:
        with (temporary / EXAMPLES).open("wb") as sink:
            write_examples(_as_text(rows), sink)
    has_labels = any(column.startswith(LABEL) for column in rows.column_names)
    n_events = write_events(temporary, rows if has_labels else rows.filter(_is_in_history(rows)))
    shutil.rmtree(folder / name, ignore_errors=True)
    temporary.rename(folder / name)
    n_positives = pc.sum(_is_positive(rows)).as_py() or 0
    counts = {"rows": rows.num_rows, "positives": n_positives, "events": n_events}
    return {"name": name, **counts, "days": count_days(rows)}


def write_events(folder: Path, events: pa.Table) -> int:
    """Writes the events of one bucket of a segment.

    Args:
        folder: Folder to write to, created if missing.
        events: Typed rows in the columns of `recsys.data.interactions.interaction_schema`: all
            events of these users in the segment.

    Returns:
        Number of events; nothing is written if it is 0.
    """
    if not events.num_rows:
        return 0
    folder.mkdir(parents=True, exist_ok=True)
    user, user_ids = _encode(events["user_id"])
    item, item_ids = _encode(events["item_id"])
    time = event_times(events).to_numpy()
    columns: dict[str, np.ndarray] = {"item": item, "timestamp": time}
    for name, values in _other_columns(events):
        if pa.types.is_string(values.type) or pa.types.is_dictionary(values.type):
            columns[name], texts = _encode(values)
            _write_ids(folder / f"{name}.parquet", texts)
        else:
            columns[name] = _values(values)
    ties = [
        part for name, c in columns.items() if name != "timestamp" for part in np.atleast_2d(c.T)
    ]
    order = event_order(user, time, ties)
    ends = np.cumsum(np.bincount(user, minlength=len(user_ids)))
    np.save(folder / "offsets.npy", np.concatenate([[0], ends]))
    for name, column in columns.items():
        np.save(folder / f"{name}.npy", column[order])
    _write_ids(folder / USERS, user_ids)
    _write_ids(folder / ITEMS, item_ids)
    return events.num_rows


def _is_positive(rows: pa.Table) -> pa.ChunkedArray:
    return pc.equal(rows["label"], 1)


def _is_in_history(rows: pa.Table) -> pa.ChunkedArray:
    """Returns which rows histories hold `[n]` bool."""
    is_positive = _is_positive(rows)
    if HISTORY.name not in rows.column_names:
        return is_positive
    return pc.or_(is_positive, pc.equal(rows[HISTORY.name], 1))


def _other_columns(events: pa.Table) -> Iterator[tuple[str, pa.ChunkedArray]]:
    """Yields the columns besides user, item and time that are written, by the names of files."""
    names = events.column_names
    if "weight" in names:
        yield "weight", events["weight"]
    if PART.name in names:
        yield "valid", pc.equal(events[PART.name], "valid")
    labels = [name for name in names if name.startswith(LABEL)]
    if labels or HISTORY.name in names:
        yield "positive", _is_positive(events)
    if labels and HISTORY.name in names:
        yield "history", _is_in_history(events)
    if "rate" in names:
        yield "rate", pc.fill_null(events["rate"], 1.0)
    if "impression" in names:
        ids = events["impression"].cast(pa.string()).combine_chunks()
        hashes = pa.array(fingerprints(ids), mask=ids.is_null().to_numpy(zero_copy_only=False))
        yield "impression", pa.chunked_array([pc.fill_null(hashes, 0)])
    if "shown_at" in names:
        yield "position", pc.fill_null(events["shown_at"], -1)
    for name in (*labels, *(name for name in names if name.startswith(FEATURE))):
        yield name.replace(":", ".", 1), events[name]


def _values(column: pa.ChunkedArray) -> np.ndarray:
    """Returns values as an array `[n]`, or `[n, width]` of lists; see `MISSING` for null."""
    values, kind = column.combine_chunks(), column.type
    if pa.types.is_list(kind) or pa.types.is_large_list(kind) or pa.types.is_fixed_size_list(kind):
        is_there = values.is_valid().to_numpy(zero_copy_only=False)
        given = values.drop_null().flatten().to_numpy(zero_copy_only=False)
        out = np.full((len(values), len(given) // max(1, is_there.sum())), np.nan, np.float32)
        out[is_there] = given.reshape(is_there.sum(), -1)
        return out
    if values.null_count:
        values = pc.fill_null(values, pa.scalar(MISSING[kind.to_pandas_dtype()], kind))
    return values.to_numpy(zero_copy_only=False)


def _write_ids(file: Path, ids: pa.Array) -> None:
    pq.write_table(pa.table({"id": ids}), file, use_dictionary=False)


def _as_text(rows: pa.Table) -> pa.Table:
    """Returns the columns of examples, with ids as text."""
    fields = [
        pa.field(field.name, pa.string()) if pa.types.is_dictionary(field.type) else field
        for field in rows.schema
        if field.name not in (PART.name, IMPRESSION.name, HISTORY.name)
    ]
    return rows.select([field.name for field in fields]).cast(pa.schema(fields))


def _encode(ids: pa.ChunkedArray) -> tuple[np.ndarray, pa.Array]:
    """Returns the code `[n]` int32 of each id, and the ids by code, in ascending order.

    The code of null is -1.
    """
    encoded = ids.combine_chunks().dictionary_encode()
    n = len(encoded.dictionary)
    codes = pc.fill_null(encoded.indices, n).to_numpy()
    used = np.flatnonzero(np.bincount(codes, minlength=n + 1)[:n])
    unique = encoded.dictionary.take(pa.array(used)).cast(pa.large_string())
    order = pc.array_sort_indices(unique)
    place = np.full(n + 1, -1, np.int32)
    place[used[order.to_numpy()]] = np.arange(len(used), dtype=np.int32)
    return place[codes], unique.take(order)


@dataclasses.dataclass(frozen=True)
class SegmentPart:
    """The positives of a bucket of a segment in one split.

    Attributes:
        split: The split; None: they are not split yet, see `read_parts`.
        folder: Their folder; older segments come first in the order of names.
        events: Number of positives in the folder.
        cut: Time at which the folder's positives are split [seconds since 1970, UTC]; None: all of
            them are in one split.
    """

    split: str | None
    folder: Path
    events: int
    cut: int | None = None

    def column(self, name: str) -> np.ndarray | None:
        """Returns a column of the folder, memory-mapped; None if it is missing."""
        return self.stored(name) if (self.folder / f"{name}.npy").exists() else None

    def stored(self, name: str) -> np.ndarray:
        """Returns a column that every folder has."""
        return map_array(self.folder / f"{name}.npy")

    @functools.cached_property
    def offsets(self) -> np.ndarray:
        """Index of each user's first event in the folder, and the end `[users + 1]` int64."""
        return self.stored("offsets")

    @property
    def time(self) -> np.ndarray:
        """Time of each event of the folder, or the number that orders it; memory-mapped."""
        # Mapped anew: the pages of all parts would stay in memory.
        return self.stored("timestamp")

    @property
    def inside(self) -> np.ndarray | slice:
        """The events of the folder that are in the split: `[n]` bool, or all."""
        return (
            slice(None) if self.cut is None else (self.time < self.cut) == (self.split == "train")
        )

    @functools.cached_property
    def bounds(self) -> tuple[np.ndarray, np.ndarray]:
        """Index of each user's first event in the split, and the end `[users]` int64 each."""
        starts, ends = self.offsets[:-1], self.offsets[1:]
        if self.cut is None:
            return starts, ends
        n_before = np.concatenate([[0], np.cumsum(self.time < self.cut)])
        borders = starts + n_before[ends] - n_before[starts]
        return (starts, borders) if self.split == "train" else (borders, ends)

    @functools.cached_property
    def users(self) -> np.ndarray:
        """Indices of the users with events in the split `[n]` int64, ascending."""
        starts, ends = self.bounds
        return np.flatnonzero(ends > starts)

    def n_ids(self, file: str) -> int:
        """Returns the number of its users or items, in any split."""
        return int(pq.read_metadata(self.folder / file).num_rows)

    def ids(self, file: str) -> pa.Array:
        """Returns its users or items, or the texts of a feature, `large_string`, ascending."""
        ids = pq.ParquetFile(self.folder / file).read()["id"]
        return pa.chunked_array(ids.chunks, pa.large_string()).combine_chunks()

    def counts(self, file: str) -> pa.Table:
        """Returns the users or items of the split, each with its counts and its newest time.

        Returns:
            `id`, `count` (positives), `last_seen`, and `events` if not all events are positives.
        """
        inside = self.inside
        if file == ITEMS:
            codes = self.stored("item")
        else:
            codes = np.repeat(np.arange(len(self.offsets) - 1), np.diff(self.offsets))
        codes, time, positive = codes[inside], self.time[inside], self.column("positive")
        is_positive = None if positive is None else positive[inside]
        if is_positive is not None and not any(self.folder.glob("label.*.npy")):
            codes, time, is_positive = codes[is_positive], time[is_positive], None
        return count_codes(self.ids(file), codes, time, is_positive)


def read_parts(examples: Path, split: str) -> list[SegmentPart]:
    """Returns the positives of a split, from the oldest segment to the newest.

    Args:
        examples: Folder that InteractionGen or `ingest` wrote.
        split: The split.
    """
    index = json.loads((examples / INDEX).read_text(encoding="utf-8"))
    return [
        SegmentPart(
            split,
            examples / FOLDER / part["name"],
            part["events"],
            index["cut"] if part["split"] is None else None,
        )
        for part in index["shards"]
        if part["split"] in (split, None)
    ]


def write_index(
    examples: Path, parts: Sequence[SegmentPart], cached: Iterable[str], cut: int | None = None
) -> None:
    """Writes `segments.json`.

    Args:
        examples: Folder of the examples.
        parts: The positives, from the oldest segment to the newest.
        cached: Names of the cached folders whose files are linked into it.
        cut: Time at which parts without a split are split [seconds since 1970, UTC].
    """
    shards = [{"name": p.folder.name, "split": p.split, "events": p.events} for p in parts]
    index = {"format": 3, "cut": cut, "kept": sorted(cached), "shards": shards}
    (examples / INDEX).write_text(json.dumps(index, indent=1) + "\n", encoding="utf-8")


def segments_in_use(examples: Sequence[Path]) -> set[str]:
    """Returns the names of the cached folders from which examples were made, for `sweep`.

    Args:
        examples: Folders of artifacts of examples; those without segments are ignored.
    """
    indices = [folder / INDEX for folder in examples if (folder / INDEX).is_file()]
    return {name for file in indices for name in json.loads(file.read_text())["kept"]}
