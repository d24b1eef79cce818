"""`python -m benchmarks.resume`: killed again and again, does a run end with the same bits?

A run of `recsys.stages.train` on synthetic data is done once undisturbed, and then several
times with SIGKILL at random moments, each time started again with the same command.
With `--processes 2` one of the processes is killed, and their parent starts both again.
With `--on 1 2 4` a run that was killed half-way goes on on so many devices, and its curve
and looks are compared with those of the undisturbed run; without hard negatives, of which
other roundings choose others.
With `--validation` runs look at what is held back after each epoch, and end with the
best model; curve and looks must be the same too.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import signal
import subprocess
import tempfile
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

from typer import Option

from benchmarks.measure import children_of, log, module, print_line, run
from benchmarks.public_splits import Csr, write_data_folder
from benchmarks.trainings import MODEL, POLL_S, TRAIN, Training

_BY_CLOCK = 0.3
"""Share of the kills at a time drawn since the start, and not after a step."""
_NOWHERE: list[int] = []


def main(
    kills: Annotated[int, Option(help="Kills in all.")] = 30,
    kills_a_run: int = 5,
    devices: Annotated[int, Option(help="Simulated devices, in all.")] = 8,
    processes: int = 1,
    on: Annotated[list[int], Option(help="Devices to go on on.")] = _NOWHERE,
    validation: Annotated[bool, Option("--validation", help="Look after each epoch.")] = False,
    hard_negatives: Annotated[int, Option(help="Of a step.")] = 64,
    epochs: int = 12,
    every: Annotated[int, Option(help="Steps between checkpoints.")] = 50,
    seed: Annotated[int, Option(help="Of the moments.")] = 0,
) -> None:
    """Kills runs, and prints how many came to the same weights, and what the kills cost."""
    draw = random.Random(seed)
    train: dict[str, Any] = {**TRAIN, "epochs": epochs, "checkpoint": {"every_steps": every}}
    train["hard_negatives"] = {"count": hard_negatives}
    if validation:
        train["validation"] = {"share": 0.02, "patience": None}
    lost, equal = list[float](), list[float]()
    with tempfile.TemporaryDirectory() as name:
        root = Path(name)
        write_data_folder(Csr.drawn(2000, 3000, 30), root / "data")
        (root / "stage.json").write_text(json.dumps({"model": MODEL, "train": train}))
        undisturbed = _KilledTraining(root, "undisturbed", devices, processes)
        start_s = undisturbed.run_undisturbed()
        n_steps = int(undisturbed.summary["steps"])
        while len(lost) < kills:
            # A process that is killed beside others is started again with them.
            most = min(1 if processes > 1 else kills_a_run, kills - len(lost))
            training = _KilledTraining(root, f"killed_{len(equal)}", devices, processes)
            lost += training.run_with_kills(most, draw, start_s, n_steps)
            equal.append(float(training.is_same(undisturbed)))
            log(f"{len(lost)} kills, {equal}")
        for n in on:
            training = _KilledTraining(root, f"moved_to_{n}", devices, processes)
            training.run_half(n_steps // 2)
            training.devices = n
            training.run_to_the_end()
            log(f"went on at {training.summary['resumed_at']}")
            for metric, value in training.differences(undisturbed).items():
                print_line("resume", f"{n} devices, {metric}", [value * 1e6], "millionths")
    if equal:
        print_line("resume", "runs with the same bits", equal, "1 if so")
        print_line("resume", "steps told of and lost by a kill", lost, "steps")
        print_line("resume", "kills", [float(len(lost))], "kills")


class _KilledTraining(Training):
    """A run that may be killed and started again.

    Args:
        root: Folder with data and config.
        name: Name of the run.
        devices: Simulated devices, in all.
        processes: Processes that share them.
    """

    def __init__(self, root: Path, name: str, devices: int, processes: int) -> None:
        super().__init__(root, name)
        self.devices, self._n_processes = devices, processes

    def run_undisturbed(self) -> float:
        """Runs to the end; returns half as long again as the first step took to come [s]."""
        started = time.monotonic()
        with self._started() as process:
            self._wait_for_step(process, 1)
            start_s = 1.5 * (time.monotonic() - started)
            self._end(process)
        return start_s

    def run_with_kills(
        self, n_kills: int, draw: random.Random, start_s: float, n_steps: int
    ) -> list[float]:
        """Runs to the end, with up to so many kills at moments drawn at random.

        Args:
            n_kills: Most kills.
            draw: The source of chance.
            start_s: Some kills come so soon after a start.
            n_steps: Steps of the run.

        Returns:
            The steps that each kill cost, as far as the run's events say.
        """
        lost = []
        for _ in range(n_kills):
            with self._started() as process:
                if draw.random() < _BY_CLOCK:  # It starts, restores, compiles, takes first steps.
                    cost = self._kill_after(process, draw.uniform(0.0, start_s), draw)
                else:
                    self._wait_for_step(process, draw.randint(self.saved(), n_steps))
                    # Anywhere in a step, or in a save.
                    cost = self._kill_after(process, draw.uniform(0.0, 0.2), draw)
            lost += [] if cost is None else [cost]
        # If one of several processes is killed, the parent completes the run.
        if not lost or self._n_processes == 1:
            self.run_to_the_end()
        return lost

    def run_half(self, n_steps: int) -> None:
        """Runs so many steps, and is killed."""
        with self._started() as process:
            self._wait_for_step(process, n_steps)
            self._kill_after(process, 0.0, random.Random(0))

    def run_to_the_end(self) -> None:
        """Goes on, and ends."""
        with self._started() as process:
            self._end(process)

    def is_same(self, other: Training) -> bool:
        """Returns whether two runs have the same curve, looks and weights, bit for bit."""
        ours, theirs = self.summary, other.summary
        same = (ours[key] == theirs[key] for key in ("curve", "validation", "best_step"))
        return all(same) and self.weights() == other.weights()

    def differences(self, other: Training) -> dict[str, float]:
        """Returns how far two runs are apart at the most: their losses, and their looks."""
        ours, theirs = self.summary, other.summary
        keys = {"loss": "curve"}
        if ours["validation"]:
            keys |= dict.fromkeys(("recall@10", "ndcg@10", "mrr"), "validation")
        return {
            key: max(abs(a[key] - b[key]) for a, b in zip(ours[part], theirs[part], strict=True))
            for key, part in keys.items()
        }

    @contextlib.contextmanager
    def _started(self) -> Iterator[subprocess.Popen[bytes]]:
        own = self.begin(self.devices // self._n_processes)
        command = module("recsys.stages.train", *self.words(processes=self._n_processes))
        with (
            (self.folder / "log.txt").open("ab") as file,
            subprocess.Popen(command, env=own, stdout=file, stderr=file) as process,
        ):
            yield process

    def _end(self, process: subprocess.Popen[bytes]) -> None:
        if process.wait():
            raise SystemExit((self.folder / "log.txt").read_text()[-3000:])

    def _wait_for_step(self, process: subprocess.Popen[bytes], step: int) -> None:
        """Waits until the events name a step, or the run has ended."""
        while process.poll() is None and self.step() < step:
            time.sleep(POLL_S)

    def _kill_after(
        self, process: subprocess.Popen[bytes], seconds: float, draw: random.Random
    ) -> float | None:
        """Kills a process of the run after some time.

        Returns:
            The steps that its events name and no checkpoint holds; None if it ended before.
        """
        with contextlib.suppress(subprocess.TimeoutExpired):
            process.wait(seconds)
        victims = [process.pid] if self._n_processes == 1 else children_of(process.pid)
        if process.poll() is not None or not victims:
            return None
        os.kill(draw.choice(victims), signal.SIGKILL)
        cost = float(self.step() - self.saved())
        process.wait()
        return max(0.0, cost)


if __name__ == "__main__":
    run(main)
