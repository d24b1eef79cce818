"""`python -m benchmarks.embedding_layer`: an embedding layer alone, lookup and update.

One table, bags of equal length with Zipf-distributed rows, gradients that are given: the
time of one sum over each bag and one step of the optimizer on the touched rows. We and the
peers are processes that stay and take turns, round after round, so that what else the
machine does hits them alike; while one measures, the others wait. A round's figure is the
median of its steps; a line has the median, the least and the most of the rounds:

- `ours rowwise_adagrad ids=50`, …: ms a step; `ours-jax`: the same without C kernels;
- `fbgemm/ours rowwise_adagrad ids=50`, …: their time over ours, round by round (over 1:
  we are faster). torch and TensorFlow have no row-wise Adagrad: with `adagrad` alone.

All start from the same table and get the same ids and gradients; that the warm-up moved
the weights alike is checked. Peers run under `uv run --script`, which builds their
environments at the first run.
"""

from __future__ import annotations

import argparse
import contextlib
import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.embedding_step import ALLOCATORS
from benchmarks.measure import (
    log,
    module,
    options_of,
    peer,
    print_line,
    ratios,
    simulated,
    zipf_batches,
)
from benchmarks.peers.embedding_layer_case import Case

NAME = "embedding_layer"
OURS = ("ours", "ours-jax")
OPTIMIZERS = ("rowwise_adagrad", "adagrad", "sgd")
PEERS = {
    "fbgemm": OPTIMIZERS,
    "torch": ("adagrad", "sgd"),
    "tensorflow": ("adagrad", "sgd"),
}

_N_BATCHES = 16
_READY_TIMEOUT_S = 1800
_PAUSE_S = 0.3  # Threads of the one before go to sleep.
_SAME = 0.01  # Share by which the warm-up may have moved the weights differently.


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = options_of(NAME, __doc__)
    add = parser.add_argument
    add("--rows", type=int, default=1_000_000)
    add("--dim", type=int, default=64, help="width of a row [floats]")
    add("--bags", type=int, default=4096)
    add("--ids", type=int, nargs="+", default=[1, 50], help="ids in a bag")
    add("--optimizers", nargs="+", choices=OPTIMIZERS, default=OPTIMIZERS[:2])
    add("--peers", nargs="*", choices=[*PEERS, "all"], default=[])
    add("--rounds", type=int, default=7)
    add("--seconds", type=float, default=1.0, help="a turn's length")
    add("--allocator", choices=sorted(ALLOCATORS), default="tuned", help="everyone's malloc")
    add("--seed", type=int, default=0)
    options = parser.parse_args(words)
    if "all" in options.peers:
        options.peers = list(PEERS)
    return options


@dataclass
class Competitor:
    """A process that waits for its turn."""

    who: str
    process: subprocess.Popen[str]
    medians_ms: list[float] = field(default_factory=list)
    peak_rss_mib: float = 0.0
    moved: float = 0.0

    def wait_until_ready(self) -> None:
        """Waits for the end of its warm-up; raises `ValueError` if it came to none."""
        self.moved = float(self._answer()["moved"])

    def take_turn(self, seconds: float) -> None:
        """Lets it measure for a while."""
        assert self.process.stdin is not None  # noqa: S101 - for the type checker
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        answer = self._answer()
        self.medians_ms.append(statistics.median(answer["step_ms"]))
        self.peak_rss_mib = float(answer["peak_rss_mib"])

    def _answer(self) -> dict[str, Any]:
        assert self.process.stdout is not None  # noqa: S101 - for the type checker
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer


@contextlib.contextmanager
def competitor(who: str, case: Case, allocator: str) -> Iterator[Competitor]:
    """Starts a competitor, and ends it with the context."""
    environment = {**os.environ, **simulated(1), **ALLOCATORS[allocator], "JAX_PLATFORMS": "cpu"}
    if who in OURS:
        environment["RECSYS_NATIVE"] = "1" if who == "ours" else "0"
    ours = module("benchmarks.peers.embedding_layer_ours")
    process = subprocess.Popen(
        [*(ours if who in OURS else peer(f"{NAME}_{who}")), case.to_json()],
        env=environment,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    try:
        yield Competitor(who, process)
    finally:
        process.terminate()
        process.wait()


def main() -> None:
    """Measures all cases in turns and prints the lines; a peer that fails is left out."""
    options = parse()
    rng = np.random.default_rng(options.seed)
    with tempfile.TemporaryDirectory() as folder:
        grads = Path(folder) / "grads.npy"
        np.save(grads, rng.normal(size=(options.bags, options.dim)).astype(np.float32))
        for length, optimizer in itertools.product(options.ids, options.optimizers):
            ids = Path(folder) / "ids.npy"
            drawn = zipf_batches(
                _N_BATCHES, options.bags * length, options.rows, options.seed, sides=1
            )
            np.save(ids, drawn.reshape(_N_BATCHES, options.bags, length))
            case = Case(str(ids), str(grads), options.rows, options.dim, optimizer)
            _print(measured(case, options), f"{optimizer} ids={length}")


def measured(case: Case, options: argparse.Namespace) -> list[Competitor]:
    """Returns the competitors that take part in `case`, after all rounds."""
    names = [*OURS, *(who for who in options.peers if case.optimizer in PEERS[who])]
    with contextlib.ExitStack() as stack:
        ready = []
        for who in names:
            one = stack.enter_context(competitor(who, case, options.allocator))
            try:
                one.wait_until_ready()
            except ValueError:
                log(f"{who} failed at {case.optimizer}")
            else:
                ready.append(one)
        _check_same_work(ready)
        for _, one in itertools.product(range(options.rounds), ready):
            time.sleep(_PAUSE_S)
            one.take_turn(options.seconds)
    return ready


def _check_same_work(ready: list[Competitor]) -> None:
    ours = ready[0].moved
    for one in ready:
        log(f"{one.who}: the warm-up moved weights by {one.moved:.3e}")
        if abs(one.moved - ours) > _SAME * ours:
            raise SystemExit(f"{one.who} doesn't compute what we compute")


def _print(ready: list[Competitor], case: str) -> None:
    [ours, *_] = ready
    for one in ready:
        print_line(NAME, f"{one.who} {case}", one.medians_ms, "ms", one.peak_rss_mib)
        if one is not ours:
            over = ratios(one.medians_ms, ours.medians_ms)
            print_line(NAME, f"{one.who}/ours {case}", over, "x", one.peak_rss_mib)


if __name__ == "__main__":
    main()
