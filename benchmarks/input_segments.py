"""A store of segments with random events, for `benchmarks.input_pipeline`."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pyarrow as pa

from recsys.data.ingest.segment_store import write_segmented_store
from recsys.data.ingest.segments import FOLDER, LinkedShard, write_events, write_linked
from recsys.data.shard import describe
from recsys.data.shards import EVENTS_OF_A_SHARD, n_shards
from recsys.data.vocabulary import Vocabulary

_FIRST_S, _LAST_S = 1_400_000_000, 1_700_000_000


def make_segments(
    folder: Path, n_rows: int, n_segments: int, n_items: int, events_of_a_user: int
) -> None:
    """Writes `folder/store`, a store of `n_rows` events in segments that follow in time."""
    n_users = max(1, n_rows // events_of_a_user)
    users = pa.array([f"u{number}" for number in range(n_users)])
    items = pa.array([f"item-{number}" for number in range(n_items)])
    shards = []
    for at in range(n_segments):
        rng = np.random.default_rng(at)
        size = (at + 1) * n_rows // n_segments - at * n_rows // n_segments
        buckets = n_shards(size, EVENTS_OF_A_SHARD)
        for bucket in range(buckets):
            name = f"{at:05d}-{bucket:05d}"
            user = rng.integers(0, n_users // buckets, size // buckets) * buckets + bucket
            # Few items are taken often, as everywhere: density falls with the row.
            item = (n_items * rng.random(len(user)) ** 3).astype(np.int32)
            length = (_LAST_S - _FIRST_S) // n_segments
            time = _FIRST_S + at * length + rng.integers(0, length, len(user))
            table = pa.table(
                {
                    "user_id": pa.chunked_array([users.take(pa.array(user))]),
                    "item_id": pa.chunked_array([items.take(pa.array(item))]),
                    "timestamp": time,
                }
            )
            shards.append(_write(folder, name, table))
    write_linked(folder, shards, [])
    known = {
        side: Vocabulary(ids, np.ones(len(ids), np.int64))
        for side, ids in (("users", users), ("items", items))
    }
    write_segmented_store(folder / "store", folder, **known, cut=_LAST_S)


def _write(folder: Path, name: str, table: pa.Table) -> LinkedShard:
    target = folder / FOLDER / name
    write_events(target, table)
    files = {path.name: describe(path) for path in sorted(target.iterdir())}
    return LinkedShard(name, "train", target, table.num_rows, files)
