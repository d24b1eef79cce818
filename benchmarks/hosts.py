"""`python -m benchmarks.hosts`: several hosts, one of which is killed or cut off.

Hosts are network namespaces of this machine, with addresses, names and links of their own; it
needs root and iproute2. A run of `recsys train --hosts` on synthetic data is done once
undisturbed, and then once for each disturbance: `kill N`, the end of all that runs on host N,
whose command is started again; and `cut N`, its cable pulled for `--cut-s` seconds. Each run
must end with the bits of the undisturbed one. Printed are the seconds until the others name the
host, whether the bits are the same, and the bytes that a step sends over all links.
"""

from __future__ import annotations

import json
import os
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Annotated

from typer import Option

from benchmarks.measure import log, module, print_line, run, simulated, words_of
from benchmarks.namespaces import Hosts
from benchmarks.public_splits import Csr, write_data_folder
from recsys.system.events import ENVIRONMENT_VARIABLE, EventReader

_MODEL = {"dim": 16, "history": 5, "widths": [16], "table_placement": "row", "dropout": 0.1}
_TRAIN = {"batch_size": 256, "uniform_negatives": 128, "table_learning_rate": 0.1}
_PORT = 8476
_POLL_S = 0.02
_LIMIT_S = 600.0
_ALL: list[int] = []


def main(
    hosts: Annotated[int, Option(help="How many.", min=2, max=64)] = 2,
    victims: Annotated[list[int], Option(help="Hosts to disturb; by default all.")] = _ALL,
    cut_s: Annotated[float, Option(help="How long a link is cut [s].")] = 40.0,
    epochs: int = 2,
    every: Annotated[int, Option(help="Steps between checkpoints.")] = 20,
) -> None:
    """Disturbs runs, and prints what the others notice and how the runs end."""
    train = {**_TRAIN, "epochs": epochs, "checkpoint": {"every_steps": every}}
    with tempfile.TemporaryDirectory() as name, Hosts(hosts) as network:
        root = Path(name)
        write_data_folder(Csr.drawn(2000, 3000, 30), root / "data")
        (root / "stage.json").write_text(json.dumps({"model": _MODEL, "train": train}))
        lines = [f"{network.address(host)}:{_PORT}\n" for host in range(hosts)]
        (root / "hosts.txt").write_text("".join(lines))
        undisturbed = _HostsTraining(root, "undisturbed", network)
        sent = undisturbed.run(every, 3 * every)
        print_line("hosts", "sent by a step", [sent], "bytes")
        for kind in ("kill", "cut"):
            for victim in victims or range(hosts):
                training = _HostsTraining(root, f"{kind}_{victim}", network)
                seconds = training.run_disturbed(kind, victim, 2 * every, cut_s)
                equal = float(training.weights() == undisturbed.weights())
                print_line("hosts", f"{kind} {victim}, noticed", seconds, "s")
                print_line("hosts", f"{kind} {victim}, same bits", [equal], "1 if so")


class _HostsTraining:
    """A run on some hosts.

    Args:
        root: Folder with data, config and list of hosts.
        name: Name of the run.
        network: The hosts.
    """

    def __init__(self, root: Path, name: str, network: Hosts) -> None:
        self._root, self._folder, self._network = root, root / name, network
        self._folder.mkdir()
        self._events = self._folder / "events.jsonl"
        self._running = [self._start(host) for host in range(network.n)]

    def run(self, first: int, last: int) -> float:
        """Runs to the end; returns the bytes that a step between two of them sends."""
        before = self._wait_for(first), self._wire_bytes()
        after = self._wait_for(last), self._wire_bytes()
        self._end()
        return (after[1] - before[1]) / (after[0] - before[0])

    def run_disturbed(self, kind: str, victim: int, step: int, cut_s: float) -> list[float]:
        """Disturbs a host after a step, and runs to the end.

        Returns:
            After how many seconds each of the others noticed.
        """
        self._wait_for(step)
        began = time.monotonic()
        if kind == "kill":
            self._network.kill(victim)
        else:
            self._network.cut(victim)
        others = {host for host in range(self._network.n) if host != victim}
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
            self._network.mend(victim)
        self._end()
        return [*noticed.values()]

    def weights(self) -> dict[str, bytes]:
        """Returns the bytes of the model's weights, by file."""
        folder = self._folder / "model" / "weights"
        files = [path for path in folder.rglob("*") if path.is_file()]
        return {path.relative_to(folder).as_posix(): path.read_bytes() for path in files}

    def _start(self, host: int) -> subprocess.Popen[str]:
        if host == 0:
            self._events.unlink(missing_ok=True)
        own = {
            **simulated(1),
            **({ENVIRONMENT_VARIABLE: str(self._events)} if host == 0 else {}),
            "JAX_COMPILATION_CACHE_DIR": str(self._root / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        }
        words = words_of(config=self._root / "stage.json", data=self._root / "data")
        words += words_of(out=self._folder / "model", hosts=self._root / "hosts.txt", host=host)
        with self._log(host).open("ab") as file:
            return self._network.start(
                host,
                module("recsys.train", *words),
                env={**os.environ, **own},
                stdout=file,
                stderr=file,
            )

    def _log(self, host: int) -> Path:
        return self._folder / f"log_{host}.txt"

    def _wire_bytes(self) -> int:
        return sum(self._network.wire_bytes(host) for host in range(self._network.n))

    def _wait_for(self, step: int) -> int:
        """Waits until the events name a step, or a later one, which is returned."""
        began = time.monotonic()
        while True:
            events = EventReader(self._events)
            now = max((event.get("done") or 0 for event in events), default=0)
            if now >= step:
                return now
            self._give_up_after(began)

    def _give_up_after(self, began: float) -> None:
        time.sleep(_POLL_S)
        for host, process in enumerate(self._running):
            if (process.poll() or 0) > 0 or time.monotonic() - began > _LIMIT_S:
                raise SystemExit(self._log(host).read_text()[-3000:])

    def _end(self) -> None:
        for host, process in enumerate(self._running):
            if process.wait(_LIMIT_S):
                raise SystemExit(self._log(host).read_text()[-3000:])
        log(f"{self._folder.name} has ended")


if __name__ == "__main__":
    run(main)
