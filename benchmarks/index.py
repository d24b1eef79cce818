"""`python -m benchmarks.index`: libraries that search a million items, compared.

For each library, on `--items` unit vectors, the least effort that finds `--recall` of
the exact best `--k`, each library in a process of its own on this machine:

- `recall`: what is found at that effort [share];
- `p50`: time of one query, in one thread [ms];
- `rate`: queries a second, all at once on two threads;
- `build`, `load`: time to make the index on all cores, and to read it [s];
- `bytes`: size of its files [MiB].

Who isn't installed is left out: `uv run --with faiss-cpu --with usearch`. ScaNN fails to
be imported beside TensorFlow 2.21, so it is measured where that isn't:
`uv run --no-project --with scann --with numpy python -m benchmarks.index_case.contest`.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.index_case.libraries import NAMES
from benchmarks.index_case.world import KINDS, write_world
from benchmarks.measure import print_line

BENCH = "index"
_MIB = 1 << 20


def main(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.index",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--items", type=int, default=1_000_000)
    add("--dim", type=int, default=64, help="width of the embeddings [floats]")
    add("--k", type=int, default=100, help="items of an answer")
    add("--queries", type=int, default=1000)
    add("--recall", type=float, default=0.95, help="to be reached [0..1]")
    add("--worlds", nargs="+", choices=KINDS, default=["clusters"])
    add("--libraries", nargs="+", choices=NAMES, default=list(NAMES))
    options = parser.parse_args(words)
    for kind in options.worlds:
        with tempfile.TemporaryDirectory() as name:
            write_world(Path(name), kind, options.items, options.queries, options.dim, options.k)
            for library in options.libraries:
                _measure(Path(name), kind, library, options)


def _measure(world: Path, kind: str, library: str, options: argparse.Namespace) -> None:
    command = [sys.executable, "-m", "benchmarks.index_case.contest", "--world", str(world)]
    command += ["--library", library, "--recall", str(options.recall)]
    done = subprocess.run(command, stdout=subprocess.PIPE, text=True, check=False)
    if done.returncode:
        sys.stderr.write(f"{library} is left out\n")
        return
    found: dict[str, Any] = json.loads(done.stdout.splitlines()[-1])
    case = f"{library} {kind} items={options.items} dim={options.dim} k={options.k}"
    case += f" effort={found['effort']}"
    _print(found, f"recall {case}", [found["recall"]], "share")
    _print(found, f"p50 {case}", [statistics.median(found["times_ms"])], "ms")
    _print(found, f"rate {case}", found["batch_per_s"], "queries/s")
    _print(found, f"build {case}", [found["build_s"]], "s")
    _print(found, f"load {case}", [found["load_s"]], "s")
    _print(found, f"bytes {case}", [found["bytes"] / _MIB], "MiB")


def _print(found: dict[str, Any], case: str, values: Sequence[float], unit: str) -> None:
    print_line(BENCH, case, values, unit, found["peak_rss_mib"])


if __name__ == "__main__":
    main()
