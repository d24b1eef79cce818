# /// script
# requires-python = "==3.11.*"
# dependencies = ["duckdb==1.4.2", "numpy>=2,<3"]
# ///
"""The store by DuckDB, in one process, by SQL."""
# ruff: noqa: S608 - the SQL is ours

import time
from pathlib import Path
from typing import Any

import duckdb
import numpy as np

from benchmarks.measure import answer
from benchmarks.peers.ingest_digest import cut_of, digest_of


def main(file: str, out: str) -> dict[str, Any]:
    """Makes the store; returns its seconds and digest."""
    Path(out).mkdir(parents=True)
    start = time.perf_counter()
    db = duckdb.connect()
    source = (
        f"read_parquet('{file}')"
        if file.endswith(".parquet")
        else f"read_csv('{file}', header=true, ignore_errors=true,"
        " columns={'user': 'VARCHAR', 'item': 'VARCHAR', 'timestamp': 'BIGINT'})"
    )
    db.execute(
        f"""CREATE TABLE events AS SELECT DISTINCT "user" AS u, item AS i, timestamp AS t
        FROM {source} WHERE timestamp BETWEEN 31536000 AND {int(time.time())}
        AND "user" <> '' AND item <> ''"""
    )
    days = db.execute("SELECT t // 86400 AS d, count(*) FROM events GROUP BY d ORDER BY d")
    cut = cut_of(*(np.array(column) for column in zip(*days.fetchall(), strict=True)))
    for name in ("u", "i"):
        db.execute(
            f"""CREATE TABLE ids_{name} AS SELECT {name} AS id,
            (row_number() OVER (ORDER BY count(*) DESC, {name}))::INTEGER AS r
            FROM events WHERE t < {cut} GROUP BY {name}"""
        )
    saved = {}
    for part, condition in (("train", f"t < {cut}"), ("eval", f"t >= {cut}")):
        saved[part] = db.execute(
            f"""SELECT coalesce(a.r, 0)::INTEGER AS user_row, coalesce(b.r, 0)::INTEGER AS item_row,
            t AS timestamp FROM events LEFT JOIN ids_u a ON u = a.id LEFT JOIN ids_i b ON i = b.id
            WHERE {condition} ORDER BY user_row, timestamp, item_row"""
        ).fetchnumpy()
        for column, values in saved[part].items():
            np.save(f"{out}/{part}-{column}.npy", values)
    seconds = time.perf_counter() - start
    return {"seconds": seconds, "digest": digest_of(saved["train"], saved["eval"])}


if __name__ == "__main__":
    answer(main)
