"""`python -m benchmarks.index_case.contest`: one library on one world, in its own process.

Prints one JSON object; what it holds is in `main`.
"""

from __future__ import annotations

import argparse
import json
import resource
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.index_case.libraries import Library, library

_BATCH_REPEATS = 3


def main(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.index_case.contest")
    parser.add_argument("--world", type=Path, required=True)
    parser.add_argument("--library", required=True)
    parser.add_argument("--recall", type=float, default=0.95)
    options = parser.parse_args(words)
    # As a server holds them: in memory.
    items, queries, best = (
        np.load(options.world / f"{name}.npy") for name in ("items", "queries", "best")
    )
    items, best = items[1:], best - 1
    searched = library(options.library, len(items))
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        started = time.perf_counter()
        searched.build(items, folder)
        build_s = time.perf_counter() - started
        started = time.perf_counter()
        searched.load(items, folder)
        load_s = time.perf_counter() - started
        n_bytes = sum(path.stat().st_size for path in folder.iterdir())
    k = best.shape[1]
    for effort in searched.efforts:
        found = searched.search(queries, k, effort, 1)
        recall = recall_of(found, best)
        if recall >= options.recall:
            break
    times_ms = _times_ms(searched, queries, k, effort)
    said: dict[str, Any] = {
        "build_s": build_s,
        "load_s": load_s,
        "bytes": n_bytes,
        "effort": effort,
    }
    said |= {"recall": recall, "times_ms": times_ms}
    said["batch_per_s"] = [_rate(searched, queries, k, effort) for _ in range(_BATCH_REPEATS)]
    said["peak_rss_mib"] = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    print(json.dumps(said))


def recall_of(found: np.ndarray, best: np.ndarray) -> float:
    """Returns the share of the exact `best` `[n, k]` that was `found` `[n, k]`."""
    pairs = zip(found.tolist(), best.tolist(), strict=True)
    return float(np.mean([len(set(one) & set(other)) / len(other) for one, other in pairs]))


def _times_ms(searched: Library, queries: np.ndarray, k: int, effort: int) -> list[float]:
    times = []
    for number in range(len(queries)):
        started = time.perf_counter()
        searched.search(queries[number : number + 1], k, effort, 1)
        times.append((time.perf_counter() - started) * 1e3)
    return times


def _rate(searched: Library, queries: np.ndarray, k: int, effort: int) -> float:
    started = time.perf_counter()
    searched.search(queries, k, effort, 2)
    return len(queries) / (time.perf_counter() - started)


if __name__ == "__main__":
    main()
