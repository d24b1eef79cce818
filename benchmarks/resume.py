"""`python -m benchmarks.resume`: killed again and again, does a run end with the same bits?

A run of `recsys.train` on synthetic data is done once undisturbed, and then several
times with SIGKILL at random moments, each time started again with the same command.
With `--processes 2` one of the processes is killed, and their parent starts both again.
With `--on 1 2 4` a run that was killed half-way goes on on so many devices, and its curve
and looks are compared with those of the undisturbed run; without hard negatives, of which
other roundings choose others.
With `--validation` runs look at what is held back after each epoch, and end with the
best model; curve and looks must be the same too.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.measure import children_of, log, module, options_of, print_line, simulated, words_of
from benchmarks.public_splits import Csr, Split, write_data_folder
from recsys.system.events import ENVIRONMENT_VARIABLE, EventReader

_STAGE: dict[str, dict[str, Any]] = {
    "model": {"dim": 16, "history": 5, "widths": [16], "table_placement": "row", "dropout": 0.1},
    "train": {"batch_size": 256, "uniform_negatives": 128, "table_learning_rate": 0.1},
}
_POLL_S = 0.02
_BY_CLOCK = 0.3
"""Share of the kills at a time drawn since the start, and not after a step."""


def main() -> None:
    """Kills runs, and prints how many came to the same weights, and what the kills cost."""
    parser = options_of("resume", __doc__)
    parser.add_argument("--kills", type=int, default=30, help="kills in all")
    parser.add_argument("--kills-a-run", type=int, default=5)
    parser.add_argument("--devices", type=int, default=8, help="simulated devices, in all")
    parser.add_argument("--processes", type=int, default=1)
    parser.add_argument("--on", type=int, nargs="*", default=[], help="devices to go on on")
    parser.add_argument("--validation", action="store_true", help="look after each epoch")
    parser.add_argument("--hard-negatives", type=int, default=64, help="of a step")
    parser.add_argument("--epochs", type=int, default=12)
    parser.add_argument("--every", type=int, default=50, help="steps between checkpoints")
    parser.add_argument("--seed", type=int, default=0, help="of the moments")
    options = parser.parse_args()
    draw = random.Random(options.seed)
    with tempfile.TemporaryDirectory() as scratch:
        case = _Case(Path(scratch), options)
        case.measure("undisturbed")
        lost: list[float] = []
        equal: list[float] = []
        while len(lost) < options.kills:
            name = f"killed_{len(equal)}"
            # A process that is killed beside others is started again with them.
            most = 1 if options.processes > 1 else options.kills_a_run
            lost += case.run(name, min(most, options.kills - len(lost)), draw)
            equal.append(float(case.is_same(name, "undisturbed")))
            log(f"{len(lost)} kills, {equal}")
        for devices in options.on:
            name = f"moved_to_{devices}"
            case.move(name, devices, draw)
            differences = case.differences(name, "undisturbed")
            log(f"went on at {case._summary(name)['resumed_at']}")
            for what, value in differences.items():
                print_line("resume", f"{devices} devices, {what}", [value * 1e6], "millionths")
    if equal:
        print_line("resume", "runs with the same bits", equal, "1 if so")
        print_line("resume", "steps told of and lost by a kill", lost, "steps")
        print_line("resume", "kills", [float(len(lost))], "kills")


class _Case:
    """One data folder, and the runs on it."""

    def __init__(self, root: Path, options: argparse.Namespace) -> None:
        self._root, self._options, self._total, self._start_s = root, options, 0, 0.0
        write_data_folder(_split(), root / "data")
        train = {**_STAGE["train"], "epochs": options.epochs}
        train["checkpoint"] = {"every_steps": options.every}
        train["hard_negatives"] = {"count": options.hard_negatives}
        if options.validation:
            train["validation"] = {"share": 0.02, "patience": None}
        (root / "stage.json").write_text(json.dumps({**_STAGE, "train": train}))

    def measure(self, name: str) -> None:
        """Runs undisturbed, and takes down its steps and how long it took to the first."""
        started = time.monotonic()
        with self._started(name) as run:
            self._wait_for_step(run, name, 1)
            self._start_s = 1.5 * (time.monotonic() - started)
            self._end(run, name)
        self._total = int(self._summary(name)["steps"])

    def run(self, name: str, n_kills: int, draw: random.Random) -> list[float]:
        """Runs to the end, with up to `n_kills` kills at moments drawn at random.

        Returns:
            The steps that each kill cost, as far as the progress told.
        """
        costs = [self._killed(name, draw) for _ in range(n_kills)]
        lost = [cost for cost in costs if cost is not None]
        # Of several processes the parent brings a run to its end that one was killed of.
        if not lost or self._options.processes == 1:
            with self._started(name) as run:
                self._end(run, name)
        return lost

    def move(self, name: str, devices: int, draw: random.Random) -> None:
        """Runs half of the steps, is killed, and goes on on so many devices."""
        with self._started(name) as run:
            self._wait_for_step(run, name, self._total // 2)
            self._kill_after(run, name, 0.0, draw)
        with self._started(name, devices) as run:
            self._end(run, name)

    def _killed(self, name: str, draw: random.Random) -> float | None:
        """Starts a run and kills it; returns what `_kill_after` does."""
        with self._started(name) as run:
            if draw.random() < _BY_CLOCK:  # It starts, restores, compiles, takes first steps.
                return self._kill_after(run, name, draw.uniform(0.0, self._start_s), draw)
            self._wait_for_step(run, name, draw.randint(self._newest(name), self._total))
            # Anywhere in a step, or in a save.
            return self._kill_after(run, name, draw.uniform(0.0, 0.2), draw)

    def _end(self, run: subprocess.Popen[bytes], name: str) -> None:
        if run.wait():
            raise SystemExit((self._root / name / "log.txt").read_text()[-3000:])

    def is_same(self, name: str, other: str) -> bool:
        """Returns whether two runs saw the same, and ended with the same weights, bit for bit."""
        a, b = self._summary(name), self._summary(other)
        if any(a[key] != b[key] for key in ("curve", "validation", "best_step")):
            return False
        first, second = (
            {path.name: path.read_bytes() for path in self._weights(run).iterdir()}
            for run in (name, other)
        )
        return first == second

    def differences(self, name: str, other: str) -> dict[str, float]:
        """Returns how far two runs are apart at the most: their losses, and what they saw."""
        a, b = self._summary(name), self._summary(other)
        found = {"loss": _furthest(a["curve"], b["curve"], "loss")}
        for metric in ("recall@10", "ndcg@10", "mrr") if a["validation"] else ():
            found[metric] = _furthest(a["validation"], b["validation"], metric)
        return found

    def _started(self, name: str, devices: int | None = None) -> subprocess.Popen[bytes]:
        folder = self._root / name
        folder.mkdir(exist_ok=True)
        events = folder / "events.jsonl"
        events.unlink(missing_ok=True)
        n = self._options.processes
        # Most of a start goes into compiling what the start before compiled.
        own = {
            **simulated((devices or self._options.devices) // n),
            ENVIRONMENT_VARIABLE: str(events),
            "JAX_PLATFORMS": "cpu",
            "JAX_COMPILATION_CACHE_DIR": str(self._root / "compiled"),
            "JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1",
        }
        words = words_of(config=self._root / "stage.json", data=self._root / "data")
        words += words_of(out=folder / "model", processes=n)
        with (folder / "log.txt").open("ab") as log:
            return subprocess.Popen(
                module("recsys.train", *words),
                env={**os.environ, **own},
                stdout=log,
                stderr=log,
            )

    def _wait_for_step(self, run: subprocess.Popen[bytes], name: str, step: int) -> None:
        """Waits until the run has told of `step`, or ended."""
        while run.poll() is None and (self._step(name) or 0) < step:
            time.sleep(_POLL_S)

    def _kill_after(
        self, run: subprocess.Popen[bytes], name: str, seconds: float, draw: random.Random
    ) -> float | None:
        """Kills a process of the run after some time.

        Returns:
            The steps that it had told of and not saved; None if it ended before.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            run.wait(seconds)
        alone = self._options.processes == 1
        victims = [run.pid] if alone else children_of(run.pid)
        if run.poll() is not None or not victims:
            return None
        os.kill(draw.choice(victims), signal.SIGKILL)
        cost = float((self._step(name) or 0) - self._newest(name))
        run.wait()
        return max(0.0, cost)

    def _step(self, name: str) -> int | None:
        done = [event.get("done") for event in EventReader(self._root / name / "events.jsonl")]
        return next((step for step in reversed(done) if step is not None), None)

    def _newest(self, name: str) -> int:
        steps = (self._root / name / "checkpoints").glob("*/last/*")
        return max((int(path.name) for path in steps if path.name.isdecimal()), default=0)

    def _summary(self, name: str) -> dict[str, Any]:
        text = (self._root / name / "model" / "training.json").read_text()
        summary: dict[str, Any] = json.loads(text)
        return summary

    def _weights(self, name: str) -> Path:
        return self._root / name / "model" / "weights"


def _furthest(ours: list[dict[str, float]], theirs: list[dict[str, float]], key: str) -> float:
    return max(abs(a[key] - b[key]) for a, b in zip(ours, theirs, strict=True))


def _split(n_users: int = 2000, n_items: int = 3000, per_user: int = 30) -> Split:
    draw = np.random.default_rng(0)
    lists = [draw.choice(n_items, per_user, replace=False).tolist() for _ in range(n_users)]
    train = Csr.of_lists(lists, n_items)
    return Split(train, "ranked among all", (10,), Csr.of_lists([[] for _ in lists], n_items))


if __name__ == "__main__":
    main()
