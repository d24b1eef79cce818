"""`python -m benchmarks.hosts`: do several hosts send what is planned, and outlive each other?

Hosts are network namespaces of this machine, with addresses, names and links of their own; it
needs root and iproute2. First `recsys train --hosts` on synthetic data runs on 1, 2, … hosts, with
a batch of `--batch` and a group of negatives for each: the time of a step, the bytes that the links
carry over those of the plan, with and without TCP's headers, and the input that the first host
reads. Then it runs once for each disturbance: `kill N`, the end of all that runs on host N, whose
command is started again; and `cut N`, its cable pulled for `--cut-s` seconds. Each run must end
with the bits of the undisturbed one. Last, with tables of `--users` and `--items` rows, it trains,
evaluates over all hosts, exports on one, and trains again and loses a host, each in a memory
cgroup: its limit is 0.6 × the tables with their slots, and what the same stage holds with tables of
2,000 rows. `--part steps` and `--part memory` do one of both. The lines:

- `step, N hosts`; `wire / planned, N hosts`; `payload / planned, N hosts`: without the headers;
  `input, N hosts`: over what one reads of as many;
- `kill N, noticed`: the seconds until the others name the host; `kill N, same bits`;
- `training, memory` and so on: the most that a host held beyond small tables, over all tables
  with their slots; `peak_rss_mib` is all that it held.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from collections.abc import Iterable, Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Option

from benchmarks.measure import call, log, module, print_line, run, simulated, words_of
from benchmarks.namespaces import Hosts
from benchmarks.public_splits import Csr, write_data_folder
from benchmarks.trainings import MODEL, POLL_S, TRAIN, Training
from recsys.system.process import stage_environment

_PORT = 8476
_LIMIT_S = 600.0
_NUMBERS = (1, 2, 4, 8, 16, 32)
_ROWS = 2000
_ALL: list[int] = []
Part = StrEnum("Part", ["STEPS", "MEMORY"])
_PARTS = [*Part]


def main(
    hosts: Annotated[int, Option(help="How many.", min=2, max=64)] = 2,
    victims: Annotated[list[int], Option(help="Hosts to disturb; by default all.")] = _ALL,
    cut_s: Annotated[float, Option(help="How long a link is cut [s].")] = 40.0,
    dim: Annotated[int, Option(help="Width of the tables [floats].")] = 64,
    batch: Annotated[int, Option(help="Examples of a host in a step.")] = 256,
    groups: Annotated[int, Option(help="Groups of negatives; 0: one for each host.")] = 0,
    steps: int = 200,
    every: Annotated[int, Option(help="Steps between checkpoints.")] = 20,
    users: Annotated[int, Option(help="Rows of the large tables.")] = 225_000,
    items: int = 25_000,
    wide: Annotated[int, Option(help="Width of the large tables [floats].")] = 512,
    part: Annotated[list[Part], Option(help="What to do.")] = _PARTS,
) -> None:
    """Measures undisturbed runs, then disturbs some, and prints the lines."""
    with tempfile.TemporaryDirectory() as name:
        folder, alone = Path(name), 0.0
        numbers = [*(n for n in _NUMBERS if n < hosts), hosts]
        for n in numbers if Part.STEPS in part else ():
            root = folder / str(n)
            write_world(root, dim, batch * n, steps, every, groups or n)
            with Hosts(n) as network:
                undisturbed, read = _undisturbed(root, network, every)
                alone = alone or read
                print_line("hosts", f"input, {n} hosts", [read / alone], "ratio")
                if n == hosts:
                    _disturb(undisturbed, victims or range(hosts), cut_s, 2 * every)
        if Part.MEMORY in part:
            _limit(folder, hosts, (users, items), wide, batch * hosts, every)


def _undisturbed(root: Path, network: Hosts, every: int) -> tuple[_HostsTraining, float]:
    """Returns a run that has ended, and what its first host read [bytes]; prints what it sent."""
    training, n = _HostsTraining(root, "undisturbed", network), network.n
    seconds, wire, payload = training.run(every, 3 * every)
    print_line("hosts", f"step, {n} hosts", [1e3 * seconds], "ms")
    if n > 1:
        sent = call(_sent, simulated(n), root=str(root), n=n).result
        print_line("hosts", f"planned, {n} hosts", [sent / 1e3], "kB")
        print_line("hosts", f"wire / planned, {n} hosts", [wire / n / sent], "ratio")
        print_line("hosts", f"payload / planned, {n} hosts", [payload / n / sent], "ratio")
    return training, training.summary["input_bytes_per_epoch"]


def write_world(
    root: Path, dim: int, batch: int, steps: int, every: int, groups: int = 1,
    rows: tuple[int, int] = (_ROWS, _ROWS),
) -> None:  # fmt: skip
    """Writes data of so many batches, and a whole config, which the plan reads."""
    draw = np.random.default_rng(0)

    def drawn(n: int) -> Csr:
        users, items = (draw.integers(0, side, n) for side in rows)
        return Csr.of_pairs(users, items, *rows)

    write_data_folder(drawn(batch * steps), root / "data", later=drawn(batch))
    # In the background a save takes a second set of tables on CPUs.
    saves = {"every_steps": every, "background": rows == (_ROWS, _ROWS)}
    train: dict[str, Any] = {**TRAIN, "batch_size": batch, "uniform_negatives": batch, "epochs": 1}
    train |= {"checkpoint": saves, "validation": {"share": 0.01}, "negative_groups": groups}
    columns = {"user": "user", "item": "item", "timestamp": "time"}
    config: dict[str, Any] = {"data": {"interactions": {"files": "none", "columns": columns}}}
    config |= {"name": "hosts", "root": str(root), "model": {**MODEL, "dim": dim}, "train": train}
    config |= {"evaluate": {"baselines": ["popularity"]}, "bless": {"over": {}}}
    (root / "stage.json").write_text(json.dumps(config))


def _sent(root: str, n: int) -> int:
    """Returns what a device sends in a step, as the plan says [bytes]."""
    from recsys.config.load import load_config
    from recsys.data.table_rows import find_rows
    from recsys.embedding.traffic import total
    from recsys.plan import make_plan

    config = load_config(Path(root) / "stage.json")
    plan = make_plan(config, find_rows(config, {}, Path(root) / "data"), n)
    return total([*plan.sent])


def _disturb(undisturbed: _HostsTraining, victims: Iterable[int], cut_s: float, step: int) -> None:
    for kind in ("kill", "cut"):
        for victim in victims:
            name = f"{kind}_{victim}"
            training = _HostsTraining(undisturbed.root, name, undisturbed.network)
            seconds = training.run_disturbed(kind, victim, step, cut_s)
            equal = float(training.weights() == undisturbed.weights())
            print_line("hosts", f"{kind} {victim}, noticed", seconds, "s")
            print_line("hosts", f"{kind} {victim}, same bits", [equal], "1 if so")


def _limit(
    folder: Path, hosts: int, rows: tuple[int, int], dim: int, batch: int, every: int
) -> None:
    """Prints what the stages of a run on large tables hold under a limit."""
    for name, own in (("small", (_ROWS, _ROWS)), ("large", rows)):
        write_world(folder / name, dim, batch, 3 * every, every, rows=own)
    small = dict(_peaks(folder / "small", hosts, 2**33))
    tables = sum(rows) * dim * 4 * 2  # Adagrad's slots are as large.
    limit = int(0.6 * tables) + max(small.values())
    print_line("hosts", "tables with slots", [tables / 2**20], "MiB")
    print_line("hosts", "limit of a host", [limit / 2**20], "MiB")
    for stage, most in _peaks(folder / "large", hosts, limit, 2 * every):
        ratio = (most - small.get(stage, small["training"])) / tables
        print_line("hosts", f"{stage}, memory", [ratio], "ratio", most / 2**20)


def _peaks(root: Path, n: int, limit: int, killed_at: int = 0) -> Iterator[tuple[str, int]]:
    """Yields the stages of a run, and the most memory that a host held in each [bytes]."""
    with Hosts(n, limit) as network:
        first = _HostsTraining(root, "undisturbed", network)
        stages = {"training": first.end, "evaluation": first.evaluate, "export": first.export}
        for stage, do in stages.items():
            with network.peak() as most:
                do()
            yield stage, most[0]
        if killed_at:
            other = _HostsTraining(root, "resumed", network)
            with network.peak() as most:
                noticed = other.run_disturbed("kill", 1, killed_at, 0.0)
            print_line("hosts", "resuming, noticed", noticed, "s")
            yield "resuming", most[0]
            equal = float(other.weights() == first.weights())
            print_line("hosts", "resuming, same bits", [equal], "1 if so")


class _HostsTraining(Training):
    """A run on some hosts, which has started.

    Args:
        root: Folder with data and config.
        name: Name of the run.
        network: The hosts.
    """

    def __init__(self, root: Path, name: str, network: Hosts) -> None:
        super().__init__(root, name)
        self.network = network
        lines = [f"{network.address(host)}:{_PORT}\n" for host in range(network.n)]
        (root / "hosts.txt").write_text("".join(lines))
        self._running = [self._start(host) for host in range(network.n)]

    def run(self, first: int, last: int) -> tuple[float, float, float]:
        """Runs to the end.

        Returns:
            Seconds, bytes on all links and those without headers, of a step between two of them.
        """
        began, before = self._wait_for(first), self._sent_bytes()
        ended, after = self._wait_for(last), self._sent_bytes()
        self.end()
        times = {event["done"]: event["time"] for event in self.events()}
        seconds, n_steps = times[ended] - times[began], ended - began
        wire, payload = ((after[i] - before[i]) / n_steps for i in range(2))
        return seconds / n_steps, wire, payload

    def run_disturbed(self, kind: str, victim: int, step: int, cut_s: float) -> list[float]:
        """Disturbs a host after a step, and runs to the end.

        Returns:
            After how many seconds each of the others noticed.
        """
        self._wait_for(step)
        began = time.monotonic()
        (self.network.kill if kind == "kill" else self.network.cut)(victim)
        others = {host for host in range(self.network.n) if host != victim}
        noticed: dict[int, float] = {}
        while len(noticed) < len(others):
            for host in others - {*noticed}:
                if "was lost" in self._log(host).read_text():
                    noticed[host] = time.monotonic() - began
            self._give_up_after(began)
        if kind == "kill":
            self._running[victim] = self._start(victim)
        else:
            time.sleep(max(0.0, cut_s - (time.monotonic() - began)))
            self.network.mend(victim)
        self.end()
        return [*noticed.values()]

    def evaluate(self) -> None:
        """Evaluates the model over all hosts."""
        n, first = self.network.n, f"{self.network.address(0)}:{_PORT}"
        words = self._stage("recsys.evaluation.stage", "evaluation", coordinator=first)
        words += ["--num-processes", str(n), "--process-id"]
        self._running = [self._on(host, [*words, str(host)], self.begin(1)) for host in range(n)]
        self.end()

    def export(self) -> None:
        """Exports the model on the first host."""
        words = self._stage("recsys.bundles.export", "bundle")
        self._running = [self._on(0, words, {**os.environ, **stage_environment("tensorflow")})]
        self.end()

    def _stage(self, name: str, out: str, **options: Any) -> list[str]:
        options |= {"config": self.root / "stage.json", "data": self.root / "data"}
        return module(name, *words_of(**options, model=self.model, out=self.folder / out))

    def _start(self, host: int) -> subprocess.Popen[str]:
        words = self.words(hosts=self.root / "hosts.txt", host=host)
        return self._on(host, module("recsys.train", *words), self.begin(1, is_first=host == 0))

    def _on(self, host: int, command: list[str], own: dict[str, str]) -> subprocess.Popen[str]:
        with self._log(host).open("ab") as file:
            return self.network.start(host, command, env=own, stdout=file, stderr=file)

    def _log(self, host: int) -> Path:
        return self.folder / f"log_{host}.txt"

    def _sent_bytes(self) -> tuple[int, int]:
        """Returns what all hosts have sent so far, with and without headers [bytes]."""
        hosts, network = range(self.network.n), self.network
        return sum(map(network.wire_bytes, hosts)), sum(map(network.payload_bytes, hosts))

    def _wait_for(self, step: int) -> int:
        """Waits until the events name a step, or a later one, which is returned."""
        began = time.monotonic()
        while (now := self.step()) < step:
            self._give_up_after(began)
        return now

    def _give_up_after(self, began: float) -> None:
        time.sleep(POLL_S)
        for host, process in enumerate(self._running):
            if (process.poll() or 0) > 0 or time.monotonic() - began > _LIMIT_S:
                raise SystemExit(self._log(host).read_text()[-3000:])

    def end(self) -> None:
        """Waits until all that runs has ended."""
        for host, process in enumerate(self._running):
            if process.wait(_LIMIT_S):
                raise SystemExit(self._log(host).read_text()[-3000:])
        log(f"{self.folder.name} has ended")


if __name__ == "__main__":
    run(main)
