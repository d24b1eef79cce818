"""The rows of one span, from which segments are made.

Each bucket of users has a file, `rows-00007.arrow`, sorted by time: a day is a slice of it.
"""

from __future__ import annotations

import dataclasses
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.data.event_times import TIME
from recsys.data.farmhash import hash_buckets
from recsys.data.interactions import POSITION, POSITION_FILE_BITS, drop_duplicates
from recsys.data.split import DAY_S

Days = list[list[int]]
"""`[day, rows, positives]` of each UTC day [days since 1970], ascending."""
_BATCH_ROWS = 1 << 20
_PART = "recsys:part"  # No column of interactions has this name.


def write_span_rows(
    folder: Path, bucket: int, rows: pa.Table, by_time: bool = True
) -> dict[str, Any]:
    """Writes the rows of one bucket of a span, without duplicates.

    Args:
        folder: Folder of the span.
        bucket: Index of the bucket, by the hash of the user.
        rows: Interactions with a column `position`; all rows of their users.
        by_time: Whether to sort them by time, so that days are slices.

    Returns:
        `rows` and `duplicates`: numbers of rows written and dropped; `days`, empty without times.
    """
    kept, n_dropped = drop_duplicates(rows)
    days: Days = []
    if TIME.name in kept.column_names:
        time = kept[TIME.name].to_numpy()
        if by_time:
            order = np.argsort(time, kind="stable")
            kept, time = kept.take(pa.array(order)), time[order]
        day, place, counts = np.unique(time // DAY_S, return_inverse=True, return_counts=True)
        is_positive = kept["label"].to_numpy() == 1
        positives = np.bincount(place[is_positive], minlength=len(day))
        days = np.stack([day, counts, positives], axis=1).tolist()
    kept = kept.combine_chunks()
    with (
        pa.OSFile(str(folder / _bucket_file(bucket)), "wb") as sink,
        pa.ipc.new_file(sink, kept.schema) as writer,
    ):
        writer.write_table(kept, _BATCH_ROWS)
    return {"rows": kept.num_rows, "duplicates": n_dropped, "days": days}


def _bucket_file(bucket: int) -> str:
    return f"rows-{bucket:05d}.arrow"


@dataclasses.dataclass(frozen=True)
class SpanRows:
    """The rows of a span.

    Attributes:
        folder: Their folder.
        key: Hash of the files, the config and the code that they were made from.
        file_indices: Index of each of its files among all files of the window.
        buckets: The result of `write_span_rows` for each bucket; empty for one without rows.
            Their number is a power of two.
    """

    folder: Path
    key: str
    file_indices: tuple[int, ...]
    buckets: Sequence[dict[str, Any]]

    def days(self, column: int = 1) -> dict[int, int]:
        """Returns the rows of each day over all buckets; with `column` 2 the positives."""
        totals: Counter[int] = Counter()
        for bucket in self.buckets:
            for day in bucket.get("days", []):
                totals[day[0]] += day[column]
        return dict(sorted(totals.items()))

    def part(self, first: int, last: int) -> SpanPart:
        """Returns the rows of the days `first` … `last`."""
        slices = []
        for bucket in self.buckets:
            days = bucket.get("days", [])
            before = sum(rows for day, rows, _ in days if day < first)
            slices.append((before, sum(rows for day, rows, _ in days if first <= day <= last)))
        return SpanPart(self.folder, self.file_indices, tuple(slices))


@dataclasses.dataclass(frozen=True)
class SpanPart:
    """The rows of some days in one span.

    Attributes:
        folder: Folder of the span.
        file_indices: Index of each of its files among all files of the window.
        slices: For each bucket, the first row and the number of rows of these days.
    """

    folder: Path
    file_indices: tuple[int, ...]
    slices: tuple[tuple[int, int], ...]

    def read(self, bucket: int, n_buckets: int) -> pa.Table | None:
        """Returns the rows of `bucket` of `n_buckets`, a multiple of the span's, or None.

        Their positions are relative to all files of the window.
        """
        own = bucket % len(self.slices)
        start, length = self.slices[own]
        if not length:
            return None
        with pa.memory_map(str(self.folder / _bucket_file(own))) as file:
            rows = pa.ipc.open_file(file).read_all().slice(start, length)
        if n_buckets > len(self.slices):
            buckets = hash_buckets(rows["user_id"].combine_chunks(), n_buckets)
            rows = rows.filter(pa.array(buckets == bucket))
        position = rows[POSITION.name].to_numpy()
        file_index = position >> POSITION_FILE_BITS
        place = np.array(self.file_indices, np.int64)[file_index]
        moved = position + ((place - file_index) << POSITION_FILE_BITS)
        at = rows.column_names.index(POSITION.name)
        return rows.set_column(at, POSITION, pa.array(moved, POSITION.type))


def join_parts(
    parts: Sequence[SpanPart], bucket: int, n_buckets: int
) -> tuple[pa.Table | None, list[int]]:
    """Returns the rows of a bucket of a segment, and the number of duplicates in each part.

    Of duplicate rows, the one in the first file is kept.
    """
    read = [part.read(bucket, n_buckets) for part in parts]
    tables = [
        rows.append_column(_PART, pa.array(np.full(rows.num_rows, at, np.int32)))
        for at, rows in enumerate(read)
        if rows is not None
    ]
    if not tables:
        return None, [0] * len(parts)
    # There are no duplicates within a span.
    rows = tables[0] if len(tables) == 1 else drop_duplicates(pa.concat_tables(tables))[0]
    left = np.bincount(rows[_PART].to_numpy(), minlength=len(parts))
    before = [0 if table is None else table.num_rows for table in read]
    return rows.drop_columns([_PART, POSITION.name]), (np.array(before) - left).tolist()
