"""`python -m benchmarks.fuzz --minutes 10`: what breaks the readers, the config, the server?

Inputs are made by hypothesis, and requests by schemathesis too, from good ones and from
the hostile files of the tests. Each is taken in a process under watch:

- crashes: it ends the process, or anything but a sentence comes out;
- hangs: it takes over 20 s;
- memory: the process holds over 2 GiB;
- wrong accepts: a bad row, key or request is taken, a good row is lost, or a promise of
  `recsys check` isn't kept.

Prints a line of JSON for each case, inputs a second, and one for each of the four counts.
All must be 0, else the exit code is 1. What was found is kept with its seed (`--keep`), and
`--replay FOLDER…` takes it again.
"""

from __future__ import annotations

import argparse
import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from benchmarks.fuzz_worker import (
    CASES,
    CRASH,
    CURRENT,
    HANG,
    KINDS,
    LIMIT_MIB,
    LIMIT_S,
    MEMORY,
)
from benchmarks.measure import log, memory_mib, options_of, print_line, python_path, run

_DEFAULT = [case for case in CASES if case != "planted"]
_KEEP = Path("runs/fuzz")


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Reads the options."""
    parser = options_of("fuzz", __doc__)
    parser.add_argument("--minutes", type=float, default=10.0, help="for all cases together")
    parser.add_argument("--inputs", type=int, help="of each case, if it comes to so many")
    parser.add_argument("--cases", nargs="+", choices=CASES, default=_DEFAULT)
    parser.add_argument("--jobs", type=int, default=os.cpu_count() or 1, help="cases at once")
    parser.add_argument("--seed", type=int, default=0)
    parser.add_argument("--hang-s", type=float, default=LIMIT_S)
    parser.add_argument("--keep", type=Path, default=_KEEP, help="folder of what was found")
    parser.add_argument("--replay", type=Path, nargs="+", help="folders CASE-… that were kept")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> int:
    """Fuzzes, prints and counts; returns the exit code."""
    options = parse(words)
    if options.replay:
        options.replay = [path.resolve() for path in options.replay]
        options.cases = list(dict.fromkeys(map(_case_of, options.replay)))
    seconds = options.minutes * 60 * options.jobs / len(options.cases)
    with tempfile.TemporaryDirectory(prefix="recsys-fuzz-") as scratch:

        def run(case: str) -> Watch:
            watch = Watch(case, options.seed, options.keep.resolve(), Path(scratch), options.hang_s)
            if options.replay:
                watch.replay([path for path in options.replay if _case_of(path) == case])
            else:
                watch.run(seconds, options.inputs)
            counts = ", ".join(f"{watch.counts[kind]} {kind}" for kind in KINDS)
            log(f"{case}: {watch.n_inputs} inputs, {counts}")
            return watch

        with ThreadPoolExecutor(options.jobs) as pool:
            watches = list(pool.map(run, options.cases))
    for watch in watches:
        print_line("fuzz", watch.case, watch.rates or [0.0], "inputs/s", watch.peak_mib)
    peak_mib = max(watch.peak_mib for watch in watches)
    for kind in KINDS:
        n_found = [float(sum(watch.counts[kind] for watch in watches))]
        print_line("fuzz", kind, n_found, "inputs", peak_mib)
    return int(any(watch.counts or not watch.n_inputs for watch in watches))


def _case_of(folder: Path) -> str:
    return folder.name.split("-")[0]


# --- Workers under watch: a crash, a hang or a process that grows is a finding, and not the end.


_POLL_S = 0.05
_START_S = 300.0
_WINDOW_S = 5.0
_KEPT_OF_ALIKE = 3


class Watch:
    """One case, its workers one after the other, and what was found.

    Args:
        case: Its name.
        seed: The first seed.
        keep: Folder that inputs are kept in, that something was found of.
        scratch: Folder to work in.
        hang_s: What one input may take [s].

    Attributes:
        counts: Findings of each kind.
        n_inputs: Inputs that were taken.
        rates: Inputs a second, of each window of time.
        peak_mib: Most memory that a worker held for one input [MiB].
    """

    def __init__(self, case: str, seed: int, keep: Path, scratch: Path, hang_s: float) -> None:
        self.case, self._seed, self._keep, self._hang_s = case, seed, keep, hang_s
        self._scratch = scratch / case
        self.counts: Counter[str] = Counter()
        self.n_inputs, self.peak_mib, self.rates = 0, 0.0, list[float]()
        self._alike: Counter[tuple[str, str]] = Counter()
        self._window: tuple[float, int] | None = None
        self._n_begun = 0

    def run(self, seconds: float, n_inputs: int | None = None) -> None:
        """Fuzzes for so long, or until so many inputs were taken."""
        end = time.monotonic() + seconds

        def is_over() -> bool:
            return time.monotonic() >= end or self.n_inputs >= (n_inputs or sys.maxsize)

        while not is_over():
            worker = _Worker(self.case, self._seed, self._scratch)
            self._window = None
            self._follow(worker, is_over)
            self._seed = worker.seed + 1

    def replay(self, folders: list[Path]) -> None:
        """Takes inputs that were kept; one that ends the worker isn't the last."""
        while folders:
            self._n_begun = 0
            worker = _Worker(self.case, 0, self._scratch, ["--replay", *map(str, folders)])
            self._follow(worker, lambda: False)
            folders = folders[self._n_begun :]

    def _follow(self, worker: _Worker, is_over: Any) -> None:
        """Looks at a worker until it ends or must be ended."""
        try:
            while not is_over():
                trouble = worker.trouble(self._hang_s)
                for event in worker.events():
                    self._hear(worker, event)
                if worker.is_done:
                    return
                if trouble:
                    worker.end()
                    if not (worker.folder / CURRENT).exists():
                        raise RuntimeError(f"{self.case} has not begun: {trouble[1]}")
                    self._find(worker, *trouble, CURRENT)
                    return
        finally:
            worker.end()

    def _hear(self, worker: _Worker, event: dict[str, Any]) -> None:
        if event["event"] == "finding":
            self._find(worker, event["kind"], event["text"], event["folder"])
        elif event["event"] == "begin":
            self._n_begun += 1
            self._window = self._window or (time.monotonic(), self.n_inputs)
        elif event["event"] == "end":
            self.n_inputs += 1
            self.peak_mib = max(self.peak_mib, event["peak_mib"])
            self._rate()

    def _rate(self) -> None:
        """Notes the inputs a second, at the end of each window; a worker's start isn't in one."""
        since, n_before = self._window or (time.monotonic(), 0)
        seconds = time.monotonic() - since
        if seconds >= _WINDOW_S:
            self.rates.append((self.n_inputs - n_before) / seconds)
            self._window = None

    def _find(self, worker: _Worker, kind: str, text: str, example: str) -> None:
        """Counts a finding, and keeps its input unless there are enough like it."""
        self.counts[kind] += 1
        last = (text.strip().splitlines() or [""])[-1]
        alike = (kind, re.sub(r"\d+|/\S+", "#", last)[:200])
        self._alike[alike] += 1
        if self._alike[alike] > _KEPT_OF_ALIKE:
            return
        folder = self._keep / f"{self.case}-{worker.seed}-{sum(self.counts.values())}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(worker.folder / example, folder)
        (folder / "finding.txt").write_text(f"{kind}, seed {worker.seed}\n{text}\n")
        log(f"{self.case}: {kind}: {text.strip()[-600:]}\n  {folder}")


class _Worker:
    """A process that takes inputs.

    Attributes:
        folder: Its folder; the input that it takes is in `current`.
        seed: The seed that its inputs are made of.
        is_done: Whether it ended as it should.
    """

    def __init__(self, case: str, seed: int, scratch: Path, words: list[str] | None = None) -> None:
        self.folder, self.seed, self.is_done = scratch / str(seed), seed, False
        shutil.rmtree(self.folder, ignore_errors=True)
        self.folder.mkdir(parents=True)
        self._pipe: int | None
        self._pipe, pipe = os.pipe()
        command = [sys.executable, "-m", "benchmarks.fuzz_worker", case, str(seed), str(pipe)]
        environment = {"PYTHONPATH": python_path(), "JAX_PLATFORMS": "cpu"}
        with (self.folder / "stderr.txt").open("wb") as errors:
            self._process = subprocess.Popen(
                [*command, *(words or [])],
                cwd=self.folder,
                env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3", **environment},
                pass_fds=[pipe],
                stdout=subprocess.DEVNULL,
                stderr=errors,
            )
        os.close(pipe)
        self._unread = b""
        self._since, self._is_at_work = time.monotonic(), False

    def events(self) -> list[dict[str, Any]]:
        """Waits a little, and returns what the worker told."""
        if self._pipe is None or not select.select([self._pipe], [], [], _POLL_S)[0]:
            return []
        *lines, self._unread = (self._unread + os.read(self._pipe, 1 << 16)).split(b"\n")
        events = [json.loads(line) for line in lines]
        for event in events:
            self._note(event)
        return events

    def _note(self, event: dict[str, Any]) -> None:
        if event["event"] in ("begin", "end"):
            self._since, self._is_at_work = time.monotonic(), event["event"] == "begin"
        elif event["event"] == "seed":
            self.seed = event["seed"]
        self.is_done = self.is_done or event["event"] == "over"

    def trouble(self, hang_s: float) -> tuple[str, str] | None:
        """Returns the kind and the text of what is wrong with the process, if anything is."""
        code = self._process.poll()
        if code is not None:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            log = (self.folder / "stderr.txt").read_text(errors="replace")
            return CRASH, f"{log[-3000:]}\nthe process ended: {name}"
        waited = time.monotonic() - self._since
        if waited > (hang_s if self._is_at_work else _START_S):
            return HANG, f"no end after {waited:.0f} s"
        held = memory_mib(f"{self._process.pid}/status", "VmRSS")
        if held > LIMIT_MIB:
            return MEMORY, f"it holds {held:.0f} MiB"
        return None

    def end(self) -> None:
        """Ends the process, if it runs."""
        if self._pipe is not None:
            self._process.kill()
            self._process.wait()
            os.close(self._pipe)
            self._pipe = None


if __name__ == "__main__":
    run(main)
