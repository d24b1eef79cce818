"""`python -m benchmarks.hosts`: do hosts on Ray send what is planned, and hold their share?

Hosts are network namespaces of this machine, with addresses, names and links of their own; each
has a raylet, and one more is the head of the cluster. It needs root and iproute2. First
Training is launched by `launcher: {kind: ray}` on 1, 2, … hosts, with a batch of `--batch`
and a group of negatives for each: the time of a step, the bytes that the links carry over those of
the plan, with and without TCP's headers, and the input that the first host reads.

Then, with tables of `--users` and `--items` rows, it trains, evaluates over all hosts, exports on
one, and trains again and loses a host, each in a memory cgroup: its limit is 0.6 × the tables with
their slots, and what the same stage holds with tables of 2,000 rows. `--part steps` and `--part
memory` do one of both. The lines:

- `step, N hosts`; `wire / planned, N hosts`; `payload / planned, N hosts`: without the headers;
  `input, N hosts`: over what one reads of as many;
- `training, memory` and so on: the most that a host held beyond small tables, over all tables
  with their slots; `peak_rss_mib` is all that it held.
"""

from __future__ import annotations

import json
import tempfile
import time
from collections.abc import Iterator
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import numpy as np
from typer import Option

from benchmarks.measure import call, log, module, print_line, run, simulated, words_of
from benchmarks.namespaces import RayHosts
from benchmarks.public_splits import Csr, write_data_folder
from benchmarks.trainings import MODEL, POLL_S, TRAIN, Training
from recsys.system.events import ENVIRONMENT_VARIABLE
from recsys.system.process import last_json_line, stage_environment

_LIMIT_S = 900.0
_NUMBERS = (1, 2, 4, 8, 16, 32)
_ROWS = 2000
Part = StrEnum("Part", ["STEPS", "MEMORY"])
_PARTS = [*Part]


def main(
    hosts: Annotated[int, Option(help="How many.", min=2, max=64)] = 4,
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
    """Measures the parts, and prints the lines."""
    with tempfile.TemporaryDirectory() as name:
        folder, alone = Path(name), 0.0
        numbers = [*(n for n in _NUMBERS if n < hosts), hosts]
        if Part.STEPS in part:
            with RayHosts(hosts, folder / "compiled") as network:
                for n in numbers:
                    root = folder / str(n)
                    write_world(root, dim, batch * n, steps, every, groups or n)
                    read = _steps(root, network, n, every)
                    alone = alone or read
                    print_line("hosts", f"input, {n} hosts", [read / alone], "ratio")
        if Part.MEMORY in part:
            _limit(folder, hosts, (users, items), wide, batch * hosts, every)


def _steps(root: Path, network: RayHosts, n: int, every: int) -> float:
    """Trains, and prints what the hosts sent; returns what the first one read [bytes]."""
    training = RayTraining(root, "undisturbed", network, hosts=n)
    seconds, wire, payload = training.run(every, 3 * every)
    print_line("hosts", f"step, {n} hosts", [1e3 * seconds], "ms")
    if n > 1:
        sent = call(_sent, simulated(n), root=str(root), n=n).result
        print_line("hosts", f"planned, {n} hosts", [sent / 1e3], "kB")
        print_line("hosts", f"wire / planned, {n} hosts", [wire / n / sent], "ratio")
        print_line("hosts", f"payload / planned, {n} hosts", [payload / n / sent], "ratio")
    return float(training.summary["input_bytes_per_epoch"])


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
    from recsys.embedding.traffic import total
    from recsys.plan.plan import make_plan
    from recsys.plan.table_rows import find_rows

    config = load_config(Path(root) / "stage.json")
    plan = make_plan(config, find_rows(config, {}, Path(root) / "data"), n)
    return total([*plan.sent])


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
    with RayHosts(n, root.parent / "compiled", limit) as network:
        first = RayTraining(root, "undisturbed", network)
        stages = {"training": first.end, "evaluation": first.evaluate, "export": first.export}
        for stage, do in stages.items():
            with network.peak() as most:
                do()
            yield stage, most[0]
        if killed_at:
            other = RayTraining(root, "resumed", network, restarts=1)
            with network.peak() as most:
                other.lose(1, killed_at)
                network.replace(1)
                other.end()
            equal = float(other.weights() == first.weights())
            print_line("hosts", "resuming, same bits", [equal], "1 if so")
            yield "resuming", most[0]


def launched(
    launcher: dict[str, Any], name: str, config: str, words: list[str], folder: str
) -> dict[str, Any]:
    """Runs a stage by a launcher, on the head.

    Args:
        launcher: Its settings, beside its kind.
        name: Module of the stage.
        config: File with its config.
        words: More of its command line.
        folder: Folder of the run.

    Returns:
        Its result, or `error`, a sentence.
    """
    from recsys.distributed.launchers import RayLauncher, launching_by, run_launched
    from recsys.errors import RecsysError

    with launching_by(RayLauncher(**launcher), Path(folder)):
        try:
            return run_launched(name, Path(config).read_text(), words)
        except RecsysError as error:
            return {"error": str(error)}


class RayTraining(Training):
    """A run on the hosts of a cluster, which has started.

    Args:
        root: Folder with data and config.
        name: Name of the run.
        network: The hosts.
        **launcher: Settings of the launcher.
    """

    def __init__(self, root: Path, name: str, network: RayHosts, **launcher: Any) -> None:
        super().__init__(root, name)
        self.network, self._log = network, self.folder / "log.txt"
        self._launcher = {"hosts": network.head, "address": network.cluster, **launcher}
        self.start()

    def start(self) -> None:
        """Starts it, again after it has ended."""
        folders = words_of(data=self.root / "data", out=self.model)
        self._launch("recsys.stages.train", folders, self.begin(1))

    def _launch(self, name: str, words: list[str], own: dict[str, str]) -> None:
        config, folder = str(self.root / "stage.json"), str(self.folder)
        arguments = {"launcher": self._launcher, "name": name, "config": config}
        text = json.dumps({**arguments, "words": words, "folder": folder})
        command = module("benchmarks.measure", "benchmarks.hosts", "launched", text)
        events = {ENVIRONMENT_VARIABLE: own[ENVIRONMENT_VARIABLE]}
        with self._log.open("ab") as file:
            self._running = self.network.run(command, events, file)

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

    def lose(self, victim: int, step: int) -> None:
        """Kills the raylet of a host after a step; waits until its processes have ended."""
        self._wait_for(step)
        began, noticed, left = self.network.kill_raylet(victim), 0.0, 0.0
        while not (noticed and left):
            now = time.monotonic() - began
            if not noticed and "All start again" in self._log.read_text():
                noticed = now
            if not left and not self.network.trains(victim):
                left = now
            self._give_up_after(began)
        log(f"the group has ended after {noticed:.1f} s, the host's processes {left:.1f} s")

    def cut(self, victim: int, step: int) -> None:
        """Cuts the link of a host after a step, until the run has ended with R388."""
        self._wait_for(step)
        began = time.monotonic()
        self.network.cut(victim)
        self._running.wait(_LIMIT_S)
        log(f"the run has ended after {time.monotonic() - began:.1f} s")
        if "[R388]" not in self._said().get("error", ""):
            raise SystemExit(self._log.read_text()[-3000:])
        self.network.mend(victim)

    def evaluate(self) -> None:
        """Evaluates the model over all hosts."""
        folders = words_of(
            data=self.root / "data", model=self.model, out=self.folder / "evaluation"
        )
        self._launch("recsys.stages.evaluate", folders, self.begin(1))
        self.end()

    def export(self) -> None:
        """Exports the model on the head."""
        folders = {"config": self.root / "stage.json", "data": self.root / "data"}
        words = words_of(**folders, model=self.model, out=self.folder / "bundle")
        with self._log.open("ab") as file:
            command, own = module("recsys.stages.export", *words), stage_environment("tensorflow")
            self._running = self.network.run(command, own, file)
        self.end()

    def _sent_bytes(self) -> tuple[int, int]:
        """Returns what all hosts have sent so far, with and without headers [bytes]."""
        hosts, network = range(self.network.head), self.network
        return sum(map(network.wire_bytes, hosts)), sum(map(network.payload_bytes, hosts))

    def _wait_for(self, step: int) -> int:
        """Waits until the events name a step, or a later one, which is returned."""
        began = time.monotonic()
        while (now := self.step()) < step:
            self._give_up_after(began)
        return now

    def _give_up_after(self, began: float) -> None:
        time.sleep(POLL_S)
        if self._running.poll() is not None or time.monotonic() - began > _LIMIT_S:
            raise SystemExit(self._log.read_text()[-3000:])

    def _said(self) -> dict[str, Any]:
        return last_json_line(self._log.read_text()) or {}

    def end(self) -> None:
        """Waits until it has ended."""
        if self._running.wait(_LIMIT_S) or "error" in self._said():
            raise SystemExit(self._log.read_text()[-3000:])
        log(f"{self.folder.name} has ended")


if __name__ == "__main__":
    run(main)
