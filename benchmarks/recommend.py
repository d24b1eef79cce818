"""`python -m benchmarks.recommend`: a file of users answered into a Parquet file.

`recsys recommend --users FILE --out FILE.parquet` on a bundle of `--items` items, with
what users did left out of their lists. The lines, for each `--items`:

- `rate`: users answered a second, from the first byte read to the last one written,
  without the loading of the bundle;
- `load`: the rest of the process [s].
"""

from __future__ import annotations

import argparse
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.measure import module, options_of, print_line, watch, words_of
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
    out = folder / "out.parquet"
    command = module("recsys", "recommend", "--root", root, "--json", "-k", options.k)
    command += words_of(users=users, out=out, batch=options.batch)
    runs = [watch(command) for _ in range(options.runs)]
    peak = max(run.peak_rss_mib for run in runs)
    rates = [run.result["users"] / run.result["seconds"] for run in runs]
    print_line(BENCH, f"rate {case}", rates, "users/s", peak)
    loads = [run.seconds - run.result["seconds"] for run in runs]
    print_line(BENCH, f"load {case}", loads, "s", peak)


if __name__ == "__main__":
    main()
