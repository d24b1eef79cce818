"""An event log of any size, made chunk by chunk."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Literal

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc
import pyarrow.csv as pa_csv
import pyarrow.parquet as pq

Format = Literal["csv", "parquet"]
FIRST_S = 1_700_000_000
DAYS = 30
_CHUNK = 2_000_000


def write_events(
    file: Path,
    rows: int,
    kind: Format,
    seed: int = 0,
    first_s: int = FIRST_S,
    days: int = DAYS,
    ids_of: int | None = None,
) -> None:
    """Writes an event log.

    There are as many users as a 50th of the rows and as many items as a 200th, both
    drawn by a power law; one row of a thousand is the one before it once more.

    Args:
        file: File to write.
        rows: Events of the file.
        kind: Its format.
        seed: Seed of the events.
        first_s: First time of an event [seconds since 1970, UTC].
        days: Days that they lie in.
        ids_of: There are as many users and items as for so many rows; None: `rows`.
    """
    chunks = _chunks(rows, seed, first_s, days, ids_of or rows)
    if kind == "parquet":
        with pq.ParquetWriter(file, _SCHEMA) as writer:
            for chunk in chunks:
                writer.write_table(chunk, row_group_size=1 << 20)
        return
    with pa_csv.CSVWriter(
        file, _SCHEMA, write_options=pa_csv.WriteOptions(quoting_style="none")
    ) as writer:
        for chunk in chunks:
            writer.write_table(chunk)


_SCHEMA = pa.schema([("user", pa.string()), ("item", pa.string()), ("timestamp", pa.int64())])


def _chunks(rows: int, seed: int, first_s: int, days: int, ids_of: int) -> Iterator[pa.Table]:
    random = np.random.default_rng(seed)
    users, items = max(2, ids_of // 50), max(2, ids_of // 200)
    for start in range(0, rows, _CHUNK):
        n = min(_CHUNK, rows - start)
        user = _power_law(random, users, n)
        item = _power_law(random, items, n)
        time = first_s + random.integers(0, days * 86_400, n)
        again = np.flatnonzero(random.random(n - 1) < 0.001) + 1
        for column in (user, item, time):
            column[again] = column[again - 1]
        yield pa.table([_ids("u", user), _ids("item-", item), pa.array(time)], schema=_SCHEMA)


def _power_law(random: np.random.Generator, n_ids: int, n: int) -> np.ndarray:
    """Returns ids `[n]` whose density falls as their number to the power -0.7."""
    return (n_ids * random.random(n) ** (1 / 0.3)).astype(np.int64)


def _ids(prefix: str, numbers: np.ndarray) -> pa.Array:
    return pc.binary_join_element_wise(prefix, pa.array(numbers).cast(pa.string()), "")
