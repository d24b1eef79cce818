"""`python -m benchmarks.recommend`: a file of users answered into a Parquet file.

`recsys recommend --users FILE --out FILE.parquet` on a bundle of `--items` items, with
what users did left out of their lists. The lines, for each `--items`:

- `rate`: users answered a second, from the first byte read to the last one written,
  without the loading of the bundle;
- `load`: the rest of the process [s];
- `part …`: share of a part where they run one after the other: `query`, the SavedModel;
  `rank`; `encode`, to Arrow; `rest`: reading, writing and all else.
"""

from __future__ import annotations

import argparse
import functools
import json
import tempfile
import time
from collections import defaultdict
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa

from benchmarks.measure import Watched, module, options_of, print_line, run, watch, words_of
from benchmarks.serve import bundle_of
from recsys.bundles.publishing import publish

BENCH = "recommend"


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = options_of("recommend", __doc__)
    add = parser.add_argument
    add("--items", type=int, nargs="+", default=[100_000])
    add("--users", type=int, default=10_000, help="of the bundle")
    add("--asked", type=int, default=200_000, help="rows of the file, users drawn at random")
    add("--dim", type=int, default=64, help="width of the embeddings [floats]")
    add("-k", type=int, default=100, help="items of an answer")
    add("--batch", type=int, default=8192, help="users that are answered at a time")
    add("--clusters", type=int, default=0, help="of the items; 0: embeddings as drawn")
    add("--runs", type=int, default=3)
    add("--bundle", type=Path, help="one that is there, made for --users and one of --items")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    options = parse(words)
    for n_items in options.items:
        with tempfile.TemporaryDirectory() as folder:
            measure(options, n_items, Path(folder))


def measure(options: argparse.Namespace, n_items: int, folder: Path) -> None:
    """Measures one size."""
    root = folder / "root"
    publish(bundle_of(options, n_items, folder), root / "serving" / "world", keep=1)
    users = folder / "users.txt"
    numbers = np.random.default_rng(0).integers(1, options.users + 1, options.asked)
    users.write_text("\n".join(f"u{number}" for number in numbers))
    case = f"items={n_items} dim={options.dim} k={options.k} users={options.asked}"
    measure_whole(options, case, ["--root", str(root)], users)
    measure_parts(options, case, root / "serving" / "world" / "1", users)


def measure_whole(
    options: argparse.Namespace, case: str, words: Sequence[str], users: Path
) -> None:
    """Prints the rate of the command, and what it takes beside."""
    out = users.with_name("out.parquet")
    command = module("recsys", "recommend", *words, "--json", "-k", options.k)
    command += words_of(users=users, out=out, batch=options.batch)
    found = [watch(command) for _ in range(options.runs)]
    said = [json.loads(one.stdout) for one in found]
    peak = max(one.peak_rss_mib for one in found)
    rates = [one["users"] / one["seconds"] for one in said]
    print_line(BENCH, f"rate {case}", rates, "users/s", peak)
    rest = [one.seconds - own["seconds"] for one, own in zip(found, said, strict=True)]
    print_line(BENCH, f"load {case}", rest, "s", peak)


def measure_parts(options: argparse.Namespace, case: str, bundle: Path, users: Path) -> None:
    """Prints the share of each part."""
    command = module("benchmarks.recommend", "parts", "-k", options.k)
    out = users.with_name("parts.parquet")
    command += words_of(bundle=bundle, users=users, out=out, batch=options.batch)
    found: list[Watched] = [watch(command) for _ in range(options.runs)]
    parts = [json.loads(one.stdout)["seconds"] for one in found]
    peak = max(one.peak_rss_mib for one in found)
    for name in parts[0]:
        shares = [one[name] / sum(one.values()) for one in parts]
        print_line(BENCH, f"part {name} {case}", shares, "share", peak)


# --- parts that come one after the other, so that none runs beside another


def answer_in_parts(words: Sequence[str] | None = None) -> None:
    """Answers a file of users part by part; prints the seconds of each, and users."""
    from recsys.serving import batch_file
    from recsys.serving.retriever import Retriever
    from recsys.serving.users_file import UsersFile

    parser = options_of("recommend parts", answer_in_parts.__doc__)
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
    ranker.exact = _timed(ranker.exact, "rank", seconds)
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
    run(main, parts=answer_in_parts)
