"""`python -m benchmarks.fuzz --minutes 10`: what breaks the readers, the config, the server?

Inputs are made by hypothesis, and requests by schemathesis too, from good ones and from
the hostile files of the tests. Each is taken in a process under watch:

- crashes: it ends the process, or anything but a sentence comes out;
- hangs: it takes over 20 s;
- memory: the process holds over 2 GiB;
- wrong accepts: a bad row, key or request is taken, a good row is lost, or a promise of
  `recsys check` isn't kept.

Prints a line of JSON for each case, inputs a second, and one for each of the four counts.
All must be 0, else the exit code is 1. What was found is kept with its seed (`--keep`), and
`--replay FOLDER…` takes it again.
"""

from __future__ import annotations

import argparse
import os
import sys
import tempfile
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

from benchmarks.fuzz_case.case import KINDS, LIMIT_S
from benchmarks.fuzz_case.watch import Watch
from benchmarks.fuzz_case.worker import CASES
from benchmarks.measure import print_line

_DEFAULT = [case for case in CASES if case != "planted"]
_KEEP = Path("runs/fuzz")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the options."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all cases together")
    parser.add_argument("--inputs", type=int, help="of each case, if it comes to so many")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=_DEFAULT)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hang-s", type=float, default=LIMIT_S)
    parser.add_argument("--keep", type=Path, default=_KEEP, help="folder of what was found")
    parser.add_argument("--replay", type=Path, nargs="+", help="folders CASE-… that were kept")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Fuzzes, prints and counts; returns the exit code."""
    options = parse(words)
    if options.replay:
        options.replay = [path.resolve() for path in options.replay]
        options.cases = list(dict.fromkeys(map(_case_of, options.replay)))
    seconds = options.minutes * 60 * options.jobs / len(options.cases)
    with tempfile.TemporaryDirectory(prefix="recsys-fuzz-") as scratch:

        def run(case: str) -> Watch:
            watch = Watch(case, options.seed, options.keep.resolve(), Path(scratch), options.hang_s)
            if options.replay:
                watch.replay([path for path in options.replay if _case_of(path) == case])
            else:
                watch.run(seconds, options.inputs)
            counts = ", ".join(f"{watch.counts[kind]} {kind}" for kind in KINDS)
            print(f"{case}: {watch.n_inputs} inputs, {counts}", file=sys.stderr, flush=True)
            return watch

        with ThreadPoolExecutor(options.jobs) as pool:
            watches = list(pool.map(run, options.cases))
    for watch in watches:
        print_line("fuzz", watch.case, watch.rates or [0.0], "inputs/s", watch.peak_mib)
    peak_mib = max(watch.peak_mib for watch in watches)
    for kind in KINDS:
        n_found = [float(sum(watch.counts[kind] for watch in watches))]
        print_line("fuzz", kind, n_found, "inputs", peak_mib)
    return int(any(watch.counts or not watch.n_inputs for watch in watches))


def _case_of(folder: Path) -> str:
    return folder.name.split("-")[0]


if __name__ == "__main__":
    sys.exit(main())
