# /// script
# requires-python = "==3.11.*"
# dependencies = ["polars==1.35.2", "numpy>=2,<3", "pyarrow>=18"]
# ///
"""The store by polars, in one process, everything in memory."""

import time
from pathlib import Path
from typing import Any

import numpy as np
import polars as pl

from benchmarks.measure import answer
from benchmarks.peers.ingest_digest import cut_of, digest_of

KEY = ["user", "item", "timestamp"]


def read(file: str) -> pl.DataFrame:
    """Returns the raw events."""
    types = {"user": pl.String, "item": pl.String, "timestamp": pl.Int64}
    if file.endswith(".parquet"):
        return pl.read_parquet(file, columns=KEY)
    return pl.read_csv(file, schema_overrides=types, ignore_errors=True)


def vocabulary(train: pl.DataFrame, column: str) -> pl.DataFrame:
    """Returns the ids of a column with their rows, the most frequent first."""
    counts = train.group_by(column).len().sort(["len", column], descending=[True, False])
    return counts.with_columns(pl.int_range(1, pl.len() + 1, dtype=pl.Int32).alias(f"{column}_row"))


def main(file: str, out: str) -> dict[str, Any]:
    """Makes the store; returns its seconds and digest."""
    Path(out).mkdir(parents=True)
    start = time.perf_counter()
    now = int(time.time())
    events = read(file).filter(
        pl.col("timestamp").is_between(31_536_000, now)
        & (pl.col("user") != "")
        & (pl.col("item") != "")
    )
    events = events.unique(KEY, keep="first")
    days = events.group_by(pl.col("timestamp") // 86_400).len().sort("timestamp")
    cut = cut_of(days["timestamp"].to_numpy(), days["len"].to_numpy())
    parts = {
        "train": events.filter(pl.col("timestamp") < cut),
        "eval": events.filter(pl.col("timestamp") >= cut),
    }
    ids = {name: vocabulary(parts["train"], name) for name in ("user", "item")}
    saved = {}
    for name, part in parts.items():
        for column, known in ids.items():
            part = part.join(known.select(column, f"{column}_row"), on=column, how="left")
        part = part.with_columns(pl.col("user_row", "item_row").fill_null(0))
        part = part.sort(["user_row", "timestamp", "item_row"])
        saved[name] = {c: part[c].to_numpy() for c in ("user_row", "item_row", "timestamp")}
        for column, values in saved[name].items():
            np.save(f"{out}/{name}-{column}.npy", values)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "digest": digest_of(saved["train"], saved["eval"])}


if __name__ == "__main__":
    answer(main)
