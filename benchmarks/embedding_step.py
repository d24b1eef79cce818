"""`python -m benchmarks.embedding_step`: the training step of a two-tower model.

The workload, the same for all: a user table and an item table of `rows` × `dim`; a batch
of one id a side, Zipf(1.05) over all rows; a tower Dense 128 relu → Dense 64 on each side,
trained by Adagrad; the mean in-batch softmax over batch × batch logits. Each case, we or
a peer at one number of rows, is a process of its own; all cases take turns, round after
round, so that what else the machine does hits them alike. A round's figure is the median
of its steps; a line has the median, the least and the most of the rounds. The lines:

- `ours rows=R`, `torchrec rows=R`, …: ms a step;
- `torchrec/ours rows=R`, …: their time over ours, round by round (over 1: we are faster);
- `ours devices=8/1 rows=R`: what the exchange costs on the same cores;
- `ours rows=R2/R1`: whether a step is flat in the number of rows;
- `ours peak/state rows=R2-R1`: how much more memory over how much larger tables and slots,
  in which the memory of program and batch cancels out.

Peers run under `uv run --script`, which builds their environments at the first run; with `--here`
in this environment, which must have their packages. With `--gpu` all compute on the machine's GPU,
and memory is the host's.
"""

from __future__ import annotations

import json
import statistics
import subprocess
import sys
import tempfile
from collections.abc import Iterable, Sequence
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any, NamedTuple

import numpy as np
from typer import Option

from benchmarks import measure
from recsys.system.process import stage_environment

Peer = StrEnum("Peer", ["torchrec", "torch", "tfrs", "keras", "keras_rs", "all"])
OURS = "ours"
_MIB = 1024 * 1024
WARMUP = 10  # Steps that aren't measured, compilation among them.

MALLOC = {k: v for k, v in stage_environment("jax").items() if k.startswith("MALLOC_")}
"""Settings of glibc's malloc that our launcher gives to training, and everyone gets here."""
_ROWS = [100_000, 1_000_000, 10_000_000]
_ONE: list[int] = [1]
_NO_PEERS: list[Peer] = []


class Setup(NamedTuple):
    """Which workload runs where: on the GPU or the CPU, peers in environments of their own or here.

    `benchmarks/peers/WORKLOAD_ours.py` and `WORKLOAD_PEER.py` have the workload.
    """

    gpu: bool = False
    here: bool = False
    workload: str = "two_tower"
    bench: str = "embedding_step"


_CPU = Setup()


class Key(NamedTuple):
    """Identifies a case of a run: `ours` or a peer, rows of a table, devices."""

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


def main(
    rows: Annotated[list[int], Option(help="Of each table.")] = _ROWS,
    dim: Annotated[int, Option(help="Width of a row [floats].")] = 64,
    batch: int = 4096,
    devices: Annotated[list[int], Option(help="Simulated, ours only.")] = _ONE,
    peers: list[Peer] = _NO_PEERS,
    steps: Annotated[int, Option(help="Measured, of a round.")] = 60,
    rounds: int = 3,
    seconds: Annotated[float, Option(help="A round's steps end after this time too.")] = 20.0,
    gpu: Annotated[bool, Option("--gpu", help="On the first GPU, not the CPU.")] = False,
    here: Annotated[bool, Option("--here", help="Peers in this environment.")] = False,
) -> None:
    """Measures all cases in turns and prints the lines; a peer that fails is left out."""
    everyone = [*Peer][:-1] if "all" in peers else peers
    keys = [
        key
        for n in rows
        for key in (*(Key(OURS, n, d) for d in devices), *(Key(who, n) for who in everyone))
    ]
    case = {"dim": dim, "warmup": WARMUP, "steps": steps, "seconds": seconds}
    figures = Figures(Setup(gpu, here), measure.gpu_name() if gpu else "")
    figures.measure_all(keys * rounds, case, batch)
    figures.print_all()
    sys.exit(int(bool(figures.failed)))


def run_case(key: Key, ids: Path, case: dict[str, Any], setup: Setup = _CPU) -> dict[str, Any]:
    """Runs a case to its end in a process of its own: ours, or a peer's in its environment.

    Returns:
        Output of `StepClock.report`.

    Raises:
        subprocess.CalledProcessError: The process failed.
    """
    arguments = {**case, "ids": str(ids), "rows": key.rows}
    environment = {**(measure.on_gpu() if setup.gpu else measure.simulated(key.devices)), **MALLOC}
    if key.who == OURS:
        words = [f"benchmarks.peers.{setup.workload}_ours", "measure"]
        options = json.dumps({**arguments, "devices": key.devices})
        command = measure.module("benchmarks.measure", *words, options)
        return measure.watch(command, environment, memory=False).result
    if key.who in ("keras", "keras_rs"):
        arguments["library"] = key.who
    if key.who == "torch":
        arguments["device"] = "cuda" if setup.gpu else "cpu"
    name = f"{setup.workload}_{key.who.removesuffix('_rs')}"
    here = measure.module(f"benchmarks.peers.{name}", json.dumps(arguments))
    command = here if setup.here else measure.peer(name, **arguments)
    return measure.watch(command, environment, memory=False).result


class Figures:
    """The measurements of all cases, a list of rounds for each.

    Args:
        setup: Which workload runs where.
        device: Name of the GPU; empty for the processor.
    """

    def __init__(self, setup: Setup = _CPU, device: str = "") -> None:
        self._setup, self._device = setup, device
        self.rounds: dict[Key, list[dict[str, Any]]] = {}
        self.failed: set[Key] = set()

    def measure_all(
        self, keys: Sequence[Key], case: dict[str, Any], batch: int, tables: int = 2
    ) -> None:
        """Measures cases one after the other, on the same ids for all with equal rows."""
        n_batches = case["warmup"] + case["steps"]
        with tempfile.TemporaryDirectory() as folder:
            for n in {key.rows for key in keys}:
                ids = measure.zipf_batches(n_batches, batch, n, seed=0, sides=tables)
                np.save(f"{folder}/{n}.npy", ids)
            for key in keys:
                self.measure(key, Path(folder) / f"{key.rows}.npy", case)

    def measure(self, key: Key, ids: Path, case: dict[str, Any]) -> None:
        """Adds a round of a case; a peer that has failed once is left out."""
        if key in self.failed:
            return
        try:
            figures = run_case(key, ids, case, self._setup)
        except (subprocess.SubprocessError, OSError, ValueError) as error:
            if key.who == OURS:
                raise
            self.failed.add(key)
            measure.log(f"{key}: {error}")
        else:
            self.rounds.setdefault(key, []).append(figures)
            measure.log(f"{key}: {statistics.median(figures['step_ms']):.2f} ms")

    def print_all(self) -> None:
        """Prints every line; the times come first, ours before all, in the order of rows."""
        names = list(dict.fromkeys(key.name for key in self.rounds))
        keys = sorted(self.rounds, key=lambda key: (key.who != OURS, names.index(key.name)))
        for key in keys:
            self._line(str(key), self._times(key), "ms", key)
        for key in keys:
            ours = Key(OURS, key.rows)
            if key != ours and ours in self.rounds:
                is_ours = key.who == OURS
                who = f"{OURS} devices={key.devices}/1" if is_ours else f"{key.who}/{OURS}"
                over = measure.ratios(self._times(key), self._times(ours))
                self._line(f"{who} rows={key.rows}", over, "ratio", key, ours)
        for name in names:
            self._print_growth([key for key in self.rounds if key.name == name])
        measure.log(str({key.name: self.rounds[key][0]["versions"] for key in keys}))

    def _all(self, key: Key, name: str) -> list[float]:
        return [of_round[name] for of_round in self.rounds[key]]

    def _times(self, key: Key) -> list[float]:
        return [statistics.median(of_round["step_ms"]) for of_round in self.rounds[key]]

    def _print_growth(self, keys: Sequence[Key]) -> None:
        """Prints how time and memory of one competitor grow from the fewest to the most rows."""
        less, more = min(keys), max(keys)
        if less == more:
            return
        growth = measure.ratios(self._times(more), self._times(less))
        self._line(f"{more.name} rows={more.rows}/{less.rows}", growth, "ratio", more, less)
        n = min(len(self.rounds[key]) for key in (less, more))
        peak, state = (
            np.subtract(self._all(more, name)[:n], self._all(less, name)[:n])
            for name in ("peak_rss_mib", "state_bytes")
        )
        rows = f"rows={more.rows}-{less.rows}"
        self._line(f"{more.name} peak/state {rows}", peak * _MIB / state, "ratio", more)

    def _line(self, case: str, values: Iterable[float], unit: str, *keys: Key) -> None:
        peak = max(max(self._all(key, "peak_rss_mib")) for key in keys)
        measure.print_line(self._setup.bench, case, values, unit, peak, self._device)


if __name__ == "__main__":
    measure.run(main)
