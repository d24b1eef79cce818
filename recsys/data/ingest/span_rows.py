"""Typed rows of one span, without duplicates, sorted by time; days are slices of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from recsys.data.duplicates import POSITION
from recsys.data.event_times import TIME
from recsys.data.farmhash import hash_buckets
from recsys.data.interactions import drop_duplicates
from recsys.data.split import DAY_S

Days = list[list[int]]
"""`[day, rows, positives]` of each UTC day [days since 1970], ascending."""

_FILE_BITS = 40
_BATCH_ROWS = 1 << 20
# No column of interactions is called so.
_PLACE, _PART = "recsys:position", "recsys:part"


def bucket_file(bucket: int) -> str:
    """Returns the name of the file of a bucket."""
    return f"rows-{bucket:05d}.arrow"


def write_span_rows(
    folder: Path, bucket: int, rows: pa.Table, by_time: bool = True
) -> dict[str, Any]:
    """Writes the rows of one bucket of a span, without those that are duplicates within it.

    Args:
        folder: Folder of the span.
        bucket: The bucket: by the hash of the user.
        rows: Interactions with a column `position`, all rows of a user among them.
        by_time: Whether they are sorted by time, so that days are slices.

    Returns:
        `rows` and `duplicates`: how many were written and dropped; `days`: `[day, rows,
        positives]` of each UTC day [days since 1970], ascending; none without times.
    """
    kept, n_dropped = _drop(rows)
    time = kept[TIME.name].to_numpy() if TIME.name in kept.column_names else None
    if by_time and time is not None:
        order = np.argsort(time, kind="stable")
        kept, time = kept.take(pa.array(order)), time[order]
    kept = kept.combine_chunks()
    with (
        pa.OSFile(str(folder / bucket_file(bucket)), "wb") as sink,
        pa.ipc.new_file(sink, kept.schema) as writer,
    ):
        writer.write_table(kept, _BATCH_ROWS)
    days = [] if time is None else _count_days(time, kept["label"].to_numpy() == 1)
    return {"rows": kept.num_rows, "duplicates": n_dropped, "days": days}


def _count_days(time: np.ndarray, is_positive: np.ndarray) -> Days:
    days, place, counts = np.unique(time // DAY_S, return_inverse=True, return_counts=True)
    positives = np.bincount(place[is_positive], minlength=len(days))
    return np.stack([days, counts, positives], axis=1).tolist()


@dataclasses.dataclass(frozen=True)
class SpanPart:
    """The rows that one span has of some days.

    Attributes:
        folder: Folder of the span.
        ranks: For each file of the span, its rank among the files of the segment.
        slices: Of each bucket, the first row of these days, and how many they are.
    """

    folder: str
    ranks: tuple[int, ...]
    slices: tuple[tuple[int, int], ...]

    @classmethod
    def of_days(
        cls, folder: Path, ranks: Sequence[int], days: Sequence[Days], first: int, last: int
    ) -> SpanPart:
        """Returns the rows of the days `first` … `last` of a span, by its days of each bucket."""
        slices = []
        for bucket in days:
            before = sum(rows for day, rows, _ in bucket if day < first)
            slices.append((before, sum(rows for day, rows, _ in bucket if first <= day <= last)))
        return cls(str(folder), tuple(ranks), tuple(slices))

    def read(self, bucket: int, n_buckets: int) -> pa.Table | None:
        """Returns the rows of `bucket` of `n_buckets`, positions by rank; None for none.

        Args:
            bucket: A bucket of the segment.
            n_buckets: Buckets of the segment, a multiple of the span's own.
        """
        own = bucket % len(self.slices)
        start, length = self.slices[own]
        if not length:
            return None
        with pa.memory_map(str(Path(self.folder) / bucket_file(own))) as file:
            rows = pa.ipc.open_file(file).read_all().slice(start, length)
        if n_buckets > len(self.slices):
            is_ours = hash_buckets(rows["user_id"].combine_chunks(), n_buckets) == bucket
            rows = rows.filter(pa.array(is_ours))
        return _by_rank(rows, self.ranks)


def join_parts(
    parts: Sequence[SpanPart], bucket: int, n_buckets: int
) -> tuple[pa.Table | None, list[int]]:
    """Returns the rows of a bucket of a segment, and how many of each part were duplicates.

    Of equal rows that of the first file stays.
    """
    read = [part.read(bucket, n_buckets) for part in parts]
    tables = [
        rows.append_column(_PART, pa.array(np.full(rows.num_rows, at, np.int32)))
        for at, rows in enumerate(read)
        if rows is not None
    ]
    if not tables:
        return None, [0] * len(parts)
    if len(tables) == 1:
        # Within a span there are none left.
        return tables[0].drop_columns([_PART, POSITION.name]), [0] * len(parts)
    rows, _ = drop_duplicates(pa.concat_tables(tables))
    kept = np.bincount(rows[_PART].to_numpy(), minlength=len(parts))
    had = [0 if table is None else table.num_rows for table in read]
    dropped = [n - int(k) for n, k in zip(had, kept, strict=True)]
    return rows.drop_columns([_PART]), dropped


def _drop(rows: pa.Table) -> tuple[pa.Table, int]:
    """Returns rows without duplicates, with their positions."""
    kept, n_dropped = drop_duplicates(rows.append_column(_PLACE, rows[POSITION.name]))
    names = [POSITION.name if name == _PLACE else name for name in kept.column_names]
    return kept.rename_columns(names), n_dropped


def _by_rank(rows: pa.Table, ranks: tuple[int, ...]) -> pa.Table:
    position = rows[POSITION.name].to_numpy()
    file = position >> _FILE_BITS
    moved = position + ((np.array(ranks, np.int64)[file] - file) << _FILE_BITS)
    at = rows.column_names.index(POSITION.name)
    return rows.set_column(at, POSITION, pa.array(moved, POSITION.type))


def day_totals(days: Iterable[Days], column: int = 1) -> dict[int, int]:
    """Returns the rows of each day, of all buckets; with `column` 2 the positives."""
    totals: dict[int, int] = {}
    for bucket in days:
        for day in bucket:
            totals[day[0]] = totals.get(day[0], 0) + day[column]
    return dict(sorted(totals.items()))
