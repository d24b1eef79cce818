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

import contextlib
import itertools
import json
import os
import statistics
import subprocess
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass, field
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Option

from benchmarks.embedding_step import MALLOC
from benchmarks.measure import log, module, peer, print_line, ratios, run, simulated, zipf_batches

Optimizer = StrEnum("Optimizer", ["rowwise_adagrad", "adagrad", "sgd"])
Peer = StrEnum("Peer", ["fbgemm", "torch", "tensorflow", "all"])
_OURS = {"ours": "1", "ours-jax": "0"}
"""Values of RECSYS_NATIVE."""
_PEERS = {
    "fbgemm": ("rowwise_adagrad", "adagrad", "sgd"),
    "torch": ("adagrad", "sgd"),
    "tensorflow": ("adagrad", "sgd"),
}
_IDS = [1, 50]
_OPTIMIZERS = [Optimizer.rowwise_adagrad, Optimizer.adagrad]
_NO_PEERS: list[Peer] = []
_N_BATCHES = 16
_PAUSE_S = 0.3  # Threads of the one before go to sleep.
_SAME = 0.01  # Share by which the warm-up may have moved the weights differently.


@dataclass
class Competitor:
    """A process that waits for its turn."""

    who: str
    process: subprocess.Popen[str]
    moved: float = 0.0
    medians_ms: list[float] = field(default_factory=list)
    peak_rss_mib: float = 0.0

    def answer(self) -> dict[str, Any]:
        """Returns its next line; raises `ValueError` if it has ended."""
        assert self.process.stdout is not None  # noqa: S101 - for the type checker
        answer: dict[str, Any] = json.loads(self.process.stdout.readline())
        return answer

    def take_turn(self, seconds: float) -> None:
        """Lets it measure for a while."""
        assert self.process.stdin is not None  # noqa: S101 - for the type checker
        self.process.stdin.write(f"{seconds}\n")
        self.process.stdin.flush()
        answer = self.answer()
        self.medians_ms.append(statistics.median(answer["step_ms"]))
        self.peak_rss_mib = float(answer["peak_rss_mib"])


@contextlib.contextmanager
def competitor(who: str, case: dict[str, Any]) -> Iterator[Competitor]:
    """Starts a competitor, and ends it with the context."""
    environment = {**os.environ, **simulated(1), **MALLOC}
    if who in _OURS:
        environment["RECSYS_NATIVE"] = _OURS[who]
        ours = "benchmarks.peers.embedding_layer_ours"
        command = module("benchmarks.measure", ours, "main", json.dumps(case))
    else:
        command = peer(f"embedding_layer_{who}", **case)
    process = subprocess.Popen(
        command, env=environment, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    try:
        yield Competitor(who, process)
    finally:
        process.terminate()
        process.wait()


def main(
    rows: int = 1_000_000,
    dim: Annotated[int, Option(help="Width of a row [floats].")] = 64,
    bags: int = 4096,
    ids: Annotated[list[int], Option(help="Ids in a bag.")] = _IDS,
    optimizers: list[Optimizer] = _OPTIMIZERS,
    peers: list[Peer] = _NO_PEERS,
    rounds: int = 7,
    seconds: Annotated[float, Option(help="A turn's length.")] = 1.0,
    seed: int = 0,
) -> None:
    """Measures all cases in turns and prints the lines; a peer that fails is left out."""
    everyone = _PEERS if "all" in peers else peers
    rng = np.random.default_rng(seed)
    with tempfile.TemporaryDirectory() as name:
        grads, rows_file = (Path(name) / f"{what}.npy" for what in ("grads", "ids"))
        np.save(grads, rng.normal(size=(bags, dim)).astype(np.float32))
        for length, optimizer in itertools.product(ids, optimizers):
            drawn = zipf_batches(_N_BATCHES, bags * length, rows, seed, sides=1)
            np.save(rows_file, drawn.reshape(_N_BATCHES, bags, length))
            case = {"ids": str(rows_file), "grads": str(grads), "rows": rows, "dim": dim}
            case["optimizer"] = optimizer
            names = [*_OURS, *(who for who in everyone if optimizer in _PEERS[who])]
            competitors = measure(names, case, rounds, seconds)
            _print(competitors, f"{optimizer} ids={length}")


def measure(
    names: list[str], case: dict[str, Any], rounds: int, seconds: float
) -> list[Competitor]:
    """Returns the competitors that take part in a case, after all rounds."""
    with contextlib.ExitStack() as stack:
        ready = []
        for who in names:
            started = stack.enter_context(competitor(who, case))
            try:
                started.moved = float(started.answer()["moved"])
            except ValueError:
                log(f"{who} failed at {case['optimizer']}")
                continue
            log(f"{who}: the warm-up moved weights by {started.moved:.3e}")
            ready.append(started)
            ours = ready[0].moved
            if abs(started.moved - ours) > _SAME * ours:
                raise SystemExit(f"{who} doesn't compute what we compute")
        for _, waiting in itertools.product(range(rounds), ready):
            time.sleep(_PAUSE_S)
            waiting.take_turn(seconds)
    return ready


def _print(competitors: list[Competitor], case: str) -> None:
    ours = competitors[0]
    for other in competitors:
        peak = other.peak_rss_mib
        print_line("embedding_layer", f"{other.who} {case}", other.medians_ms, "ms", peak)
        if other is not ours:
            over = ratios(other.medians_ms, ours.medians_ms)
            print_line("embedding_layer", f"{other.who}/ours {case}", over, "x", peak)


if __name__ == "__main__":
    run(main)
