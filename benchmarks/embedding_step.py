"""`python -m benchmarks.embedding_step`: the training step of a two-tower model.

The workload is that of `benchmarks.two_tower_step`. Each case, we or a peer at one number
of rows, is a process of its own; all cases take turns, round after round, so that what
else the machine does hits them alike. A round's figure is the median of its steps; a line
has the median, the least and the most of the rounds. The lines:

- `ours rows=R`, `torchrec rows=R`, …: ms a step, and the same as examples/s;
- `torchrec/ours rows=R`, …: their time over ours, round by round (over 1: we are faster);
- `ours devices=8/1 rows=R`: what the exchange costs on the same cores;
- `ours devices=8 sent rows=R`: KiB that a device sends in a step; `… sent/least …`: the same
  over the distinct rows that live elsewhere · dim · 4 bytes, both ways;
- `ours rows=R2/R1`: whether a step is flat in the number of rows;
- `ours peak/state rows=R2`: most memory over tables and slots; `… rows=R2-R1`: the same of
  the differences, in which the memory of program and batch cancels out.

Peers run under `uv run --script`, which builds their environments at the first run.
"""

from __future__ import annotations

import argparse
import os
import signal
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.two_tower_step.case import Case
from benchmarks.two_tower_step.children import ALLOCATORS, OURS, PEERS, measure
from benchmarks.two_tower_step.figures import Figures, Key
from benchmarks.two_tower_step.ids import zipf_batches

_CALM = 0.5  # Processes that run or wait, on average over the last minute.

OPTIMIZERS = ("rowwise_adagrad", "adagrad", "sgd", "lazy_adam", "ftrl")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.embedding_step",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--rows", type=int, nargs="+", default=[100_000, 1_000_000, 10_000_000], metavar="R")
    add("--dim", type=int, default=64, help="width of a row [floats]")
    add("--batch", type=int, default=4096)
    add("--devices", type=int, nargs="+", default=[1], metavar="N", help="simulated, ours only")
    add("--optimizer", choices=OPTIMIZERS, default=OPTIMIZERS[0], help="of our tables")
    add("--peers", nargs="+", choices=[*PEERS, "all"], default=[], metavar="PEER", help=f"{PEERS}")
    add("--steps", type=int, default=60, help="measured, of a round")
    add("--warmup", type=int, default=10, help="steps before them, compilation among them")
    add("--rounds", type=int, default=3)
    add("--seconds", type=float, default=20.0, help="a round's steps end after this time too")
    add("--allocator", choices=sorted(ALLOCATORS), default="tuned", help="everyone's malloc")
    add("--seed", type=int, default=0)
    options = parser.parse_args(words)
    if "all" in options.peers:
        options.peers = list(PEERS)
    return options


def main() -> None:
    """Measures all cases in turns and prints the lines; a peer that fails is left out."""
    options = parse()
    if os.getloadavg()[0] > _CALM:
        print("This machine is busy: the figures will be noisy.", file=sys.stderr)
    with tempfile.TemporaryDirectory() as folder:
        cases, figures = _cases(options, Path(folder)), Figures()
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        is_whole = True
        try:
            _measure(options, cases, figures)
        except KeyboardInterrupt:
            print("Interrupted: what follows is of the rounds until here.", file=sys.stderr)
            is_whole = False
    figures.print_all(options.batch)
    sys.exit(0 if is_whole and not figures.failed else 1)


def _cases(options: argparse.Namespace, folder: Path) -> dict[Key, Case]:
    """Returns the cases of one round; their ids are written to `folder`."""
    cases = {}
    for rows in options.rows:
        ids = folder / f"{rows}.npy"
        n_batches = options.warmup + options.steps
        np.save(ids, zipf_batches(n_batches, options.batch, rows, options.seed))
        keys = [Key(OURS, rows, devices) for devices in options.devices]
        for key in [*keys, *(Key(peer, rows) for peer in options.peers)]:
            cases[key] = Case(
                ids=str(ids),
                rows=rows,
                dim=options.dim,
                warmup=options.warmup,
                steps=options.steps,
                seconds=options.seconds,
                optimizer=options.optimizer,
                devices=key.devices,
            )
    return cases


def _measure(options: argparse.Namespace, cases: dict[Key, Case], figures: Figures) -> None:
    """Measures every case once a round, and adds what is found to `figures`."""
    for number in range(options.rounds):
        for key, case in cases.items():
            if key in figures.failed:
                continue
            try:
                found = measure(key.who, case, options.allocator)
            except (subprocess.SubprocessError, OSError, ValueError) as error:
                if key.who == OURS:
                    raise
                figures.failed.append(key)
                print(f"{key}: {error}\n{getattr(error, 'stderr', '')}", file=sys.stderr)
                continue
            figures.add(key, found)
            print(f"round {number + 1}, {key}: {found.median_ms:.2f} ms", file=sys.stderr)


if __name__ == "__main__":
    main()
