"""Typed rows of one span, without duplicates, sorted by time; days are slices of them."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import pyarrow as pa

from recsys.data.buckets import hash_buckets
from recsys.data.duplicates import POSITION
from recsys.data.interactions import drop_duplicates
from recsys.data.split import DAY_S

Days = list[list[int]]
"""`[day, rows]` of each UTC day [days since 1970], ascending."""

_FILE_BITS = 40
_BATCH_ROWS = 1 << 20
# No column of interactions is called so.
_PLACE, _PART = "recsys:position", "recsys:part"


def bucket_file(bucket: int) -> str:
    """Returns the name of the file of a bucket."""
    return f"rows-{bucket:05d}.arrow"


def write_span_rows(folder: Path, bucket: int, rows: pa.Table) -> tuple[Days, int]:
    """Writes the rows of one bucket of a span, without those that are duplicates within it.

    Args:
        folder: Folder of the span.
        bucket: The bucket: by the hash of the user.
        rows: Interactions with a column `position`, all rows of a user among them.

    Returns:
        How many rows of each day were written, and how many were duplicates.
    """
    kept, n_dropped = _drop(rows)
    time = kept["timestamp"].to_numpy()
    ordered = kept.take(pa.array(np.argsort(time, kind="stable"))).combine_chunks()
    with (
        pa.OSFile(str(folder / bucket_file(bucket)), "wb") as sink,
        pa.ipc.new_file(sink, ordered.schema) as writer,
    ):
        writer.write_table(ordered, _BATCH_ROWS)
    days, counts = np.unique(time // DAY_S, return_counts=True)
    return np.stack([days, counts], axis=1).tolist(), n_dropped


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
            before = sum(rows for day, rows in bucket if day < first)
            slices.append((before, sum(rows for day, rows in bucket if first <= day <= last)))
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
    had = [0 if one is None else one.num_rows for one in read]
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


def totals(days: Sequence[Days]) -> dict[int, int]:
    """Returns the rows of each day, of all buckets."""
    found: dict[int, int] = {}
    for bucket in days:
        for day, rows in bucket:
            found[day] = found.get(day, 0) + rows
    return dict(sorted(found.items()))
