"""`python -m benchmarks.embedding_step`: the training step of a two-tower model.

The workload, the same for all: a user table and an item table of `rows` × `dim`; a batch
of one id a side, Zipf(1.05) over all rows; a tower Dense 128 relu → Dense 64 on each side,
trained by Adagrad; the mean in-batch softmax over batch × batch logits. Each case, we or
a peer at one number of rows, is a process of its own; all cases take turns, round after
round, so that what else the machine does hits them alike. A round's figure is the median
of its steps; a line has the median, the least and the most of the rounds. The lines:

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
import tempfile
from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import NamedTuple

import numpy as np

from benchmarks.measure import (
    log,
    module,
    options_of,
    peer,
    print_line,
    ratios,
    run,
    simulated,
    zipf_batches,
)
from benchmarks.peers.two_tower_case import Case, Measured
from recsys.system.process import stage_environment

BENCH = "embedding_step"
PEERS = ("torchrec", "torch", "tfrs", "keras", "keras_rs")
OURS = "ours"
OPTIMIZERS = ("rowwise_adagrad", "adagrad", "sgd", "lazy_adam", "ftrl")
_CALM = 0.5  # Processes that run or wait, on average over the last minute.
_TIMEOUT_S = 3600
_KIB, _MIB = 1024, 1024 * 1024

# What our launcher gives to training, which everyone gets here.
_TUNED = {k: v for k, v in stage_environment("jax").items() if k.startswith("MALLOC_")}
ALLOCATORS = {
    "tuned": _TUNED,
    "huge": {**_TUNED, "GLIBC_TUNABLES": "glibc.malloc.hugetlb=1"},
    "system": {},
}
"""Settings of glibc's malloc by name; `huge` asks for huge pages as well."""


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = options_of(BENCH, __doc__)
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


class Key(NamedTuple):
    """What tells the cases of a run apart: `ours` or a peer, rows of a table, devices."""

    who: str
    rows: int
    devices: int = 1

    def __str__(self) -> str:
        """Returns the name of the case."""
        return f"{self.name} rows={self.rows}"

    @property
    def name(self) -> str:
        """The competitor, with its devices if there are several."""
        return self.who if self.devices == 1 else f"{self.who} devices={self.devices}"


def main() -> int:
    """Measures all cases in turns and prints the lines; a peer that fails is left out."""
    options = parse()
    if os.getloadavg()[0] > _CALM:
        log("This machine is busy: the figures will be noisy.")
    figures, is_whole = Figures(), True
    with tempfile.TemporaryDirectory() as folder:
        cases = _cases(options, Path(folder))
        signal.signal(signal.SIGTERM, signal.default_int_handler)
        try:
            for number in range(options.rounds):
                _measure_round(number, options.allocator, cases, figures)
        except KeyboardInterrupt:
            log("Interrupted: what follows is of the rounds until here.")
            is_whole = False
    figures.print_all(options.batch)
    return 0 if is_whole and not figures.failed else 1


def _cases(options: argparse.Namespace, folder: Path) -> dict[Key, Case]:
    """Returns the cases of one round; their ids are written to `folder`."""
    cases = {}
    for rows in options.rows:
        ids = folder / f"{rows}.npy"
        n_batches = options.warmup + options.steps
        np.save(ids, zipf_batches(n_batches, options.batch, rows, options.seed))
        keys = [Key(OURS, rows, devices) for devices in options.devices]
        for key in [*keys, *(Key(who, rows) for who in options.peers)]:
            cases[key] = Case(
                str(ids), rows, options.dim, options.warmup, options.steps, options.seconds,
                options.optimizer, key.devices,
            )  # fmt: skip
    return cases


def _measure_round(number: int, allocator: str, cases: dict[Key, Case], figures: Figures) -> None:
    for key, case in cases.items():
        if key in figures.failed:
            continue
        try:
            measured = measure(key.who, case, allocator)
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            if key.who == OURS:
                raise
            figures.failed.append(key)
            log(f"{key}: {error}\n{getattr(error, 'stderr', '')}")
            continue
        figures.add(key, measured)
        log(f"round {number + 1}, {key}: {measured.median_ms:.2f} ms")


def measure(who: str, case: Case, allocator: str) -> Measured:
    """Runs `case` to its end in a process of its own: ours, or a peer's in its environment.

    Raises:
        subprocess.CalledProcessError: The process failed; what it said is in `stderr`.
    """
    ours = module("benchmarks.peers.two_tower_ours")
    done = subprocess.run(
        [*(ours if who == OURS else peer(f"two_tower_{who}")), case.to_json()],
        env={**os.environ, **simulated(case.devices), **ALLOCATORS[allocator]},
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    return Measured.from_json(done.stdout)


class Figures:
    """The measurements of all cases, a list of rounds for each."""

    def __init__(self) -> None:
        self.rounds: dict[Key, list[Measured]] = {}
        self.failed: list[Key] = []

    def add(self, key: Key, measured: Measured) -> None:
        """Adds a round."""
        self.rounds.setdefault(key, []).append(measured)

    def print_all(self, batch: int) -> None:
        """Prints every line; the times come first, ours before all, in the order of rows."""
        names = list(dict.fromkeys(key.name for key in self.rounds))
        keys = sorted(self.rounds, key=lambda key: (key.who != OURS, names.index(key.name)))
        for key in keys:
            self._line(str(key), self._times(key), "ms", key)
        for key in keys:
            self._line(str(key), [batch / ms * 1000 for ms in self._times(key)], "examples/s", key)
        for key in keys:
            ours = Key(OURS, key.rows)
            if key != ours and ours in self.rounds:
                is_ours = key.who == OURS
                who = f"{OURS} devices={key.devices}/1" if is_ours else f"{key.who}/{OURS}"
                self._line(f"{who} rows={key.rows}", self._ratios(key, ours), "ratio", key, ours)
        for key in keys:
            sending = [m for m in self.rounds[key] if m.sent_bytes]
            sent = [m.sent_bytes / _KIB for m in sending]
            shares = [m.sent_bytes / m.least_bytes for m in sending]
            self._line(f"{key.name} sent rows={key.rows}", sent, "KiB", key)
            self._line(f"{key.name} sent/least rows={key.rows}", shares, "ratio", key)
        for name in names:
            self._print_growth([key for key in self.rounds if key.name == name])
        log(str({key.name: self.rounds[key][0].versions for key in keys}))

    def _times(self, key: Key) -> list[float]:
        return [measured.median_ms for measured in self.rounds[key]]

    def _ratios(self, above: Key, below: Key) -> list[float]:
        return ratios(self._times(above), self._times(below))

    def _print_growth(self, keys: Sequence[Key]) -> None:
        """Prints how time and memory of one competitor grow from the fewest to the most rows."""
        less, more = min(keys), max(keys)
        peaks = [m.peak_rss_mib * _MIB / m.state_bytes for m in self.rounds[more]]
        self._line(f"{more.name} peak/state rows={more.rows}", peaks, "ratio", more)
        if less == more:
            return
        name, rows = more.name, f"rows={more.rows}/{less.rows}"
        self._line(f"{name} {rows}", self._ratios(more, less), "ratio", more, less)
        growth = [
            (b.peak_rss_mib - a.peak_rss_mib) * _MIB / (b.state_bytes - a.state_bytes)
            for a, b in zip(self.rounds[less], self.rounds[more], strict=False)
        ]
        self._line(f"{name} peak/state rows={more.rows}-{less.rows}", growth, "ratio", more)

    def _line(self, case: str, values: Iterable[float], unit: str, *keys: Key) -> None:
        if values:
            peak = max(m.peak_rss_mib for key in keys for m in self.rounds[key])
            print_line(BENCH, case, values, unit, peak)


if __name__ == "__main__":
    run(main)
