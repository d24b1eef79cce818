"""`python -m benchmarks.recommend_case.parts`: answers a file of users, part by part.

Blocks come one after the other, so that no part runs beside another; each may use all
cores. Prints one JSON object: seconds of each part, and users.
"""

from __future__ import annotations

import argparse
import functools
import json
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa

from recsys.serving import batch_file
from recsys.serving.retriever import Retriever
from recsys.serving.users_file import UsersFile


def main(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.recommend_case.parts")
    add = parser.add_argument
    add("--bundle", type=Path, required=True)
    add("--users", type=Path, required=True)
    add("--out", type=Path, required=True)
    add("-k", type=int, required=True)
    add("--batch", type=int, required=True)
    options = parser.parse_args(words)
    seconds: dict[str, float] = defaultdict(float)
    retriever = Retriever.open(options.bundle)
    batch_file.batch_answer(retriever, pa.array(["u1"] * 100), options.k)  # The first is slow.
    graph: Any = retriever._graph
    ranker: Any = retriever._ranker
    graph.ask = _timed(graph.ask, "query", seconds)
    ranker.best_of_batch = _timed(ranker.best_of_batch, "rank", seconds)
    batch_file.as_batch = _timed(batch_file.as_batch, "encode", seconds)
    n_users = 0
    started = time.perf_counter()
    with options.out.open("wb") as file, batch_file._writer(file) as writer:
        for ids, _, _ in batch_file._blocks(UsersFile.open(options.users), options.batch):
            writer.write_batch(batch_file.batch_answer(retriever, ids, options.k))
            n_users += len(ids)
    seconds["rest"] = time.perf_counter() - started - sum(seconds.values())
    print(json.dumps({"users": n_users, "seconds": seconds}))


def _timed(
    function: Callable[..., Any], part: str, seconds: dict[str, float]
) -> Callable[..., Any]:
    @functools.wraps(function)
    def timed(*words: Any) -> Any:
        started = time.perf_counter()
        try:
            return function(*words)
        finally:
            seconds[part] += time.perf_counter() - started

    return timed


if __name__ == "__main__":
    main()
