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
import contextlib
import multiprocessing
import os
import re
import shutil
import signal
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Sequence
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
    work,
)
from benchmarks.measure import log, memory_mib, options_of, print_line, python_path

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
    os.environ.update(PYTHONPATH=python_path(), JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="3")
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
_SPAWN = multiprocessing.get_context("spawn")


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
        self._folder = scratch / case
        self.counts: Counter[str] = Counter()
        self.n_inputs, self.peak_mib, self.rates = 0, 0.0, list[float]()
        self._alike: Counter[tuple[str, str]] = Counter()
        self._window: tuple[float, int] | None = None
        self._n_begun = 0
        self._is_done = False

    def run(self, seconds: float, n_inputs: int | None = None) -> None:
        """Fuzzes for so long, or until so many inputs were taken."""
        end = time.monotonic() + seconds

        def is_over() -> bool:
            return time.monotonic() >= end or self.n_inputs >= (n_inputs or sys.maxsize)

        while not is_over():
            self._window = None
            self._follow(None, is_over)
            self._seed += 1

    def replay(self, folders: list[Path]) -> None:
        """Takes inputs that were kept; one that ends the worker isn't the last."""
        while folders:
            self._n_begun = 0
            self._follow(folders, lambda: False)
            folders = folders[self._n_begun :]

    def _follow(self, folders: list[Path] | None, is_over: Callable[[], bool]) -> None:
        """Starts a worker, and watches it until it ends or must be ended."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        self._is_done, self._since, self._is_at_work = False, time.monotonic(), False
        pipe, theirs = _SPAWN.Pipe(duplex=False)
        words = (self.case, self._seed, self._folder, folders, theirs)
        process = _SPAWN.Process(target=work, args=words, daemon=True)
        process.start()
        theirs.close()
        try:
            while not is_over() and not self._is_done:
                trouble = self._trouble(process)
                with contextlib.suppress(EOFError):  # It has ended.
                    while pipe.poll(_POLL_S):
                        self._hear(*pipe.recv())
                if trouble and not self._is_done:
                    process.kill()
                    if not (self._folder / CURRENT).exists():
                        raise RuntimeError(f"{self.case} has not begun: {trouble[1]}")
                    self._find(*trouble, CURRENT)
                    return
        finally:
            process.kill()
            process.join()
            pipe.close()

    def _trouble(self, process: Any) -> tuple[str, str] | None:
        """Returns the kind and the text of what is wrong with the process, if anything is."""
        code = process.exitcode
        if code is not None:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            errors = self._folder / "stderr.txt"
            text = errors.read_text(errors="replace") if errors.exists() else ""
            return CRASH, f"{text[-3000:]}\nthe process ended: {name}"
        waited = time.monotonic() - self._since
        if waited > (self._hang_s if self._is_at_work else _START_S):
            return HANG, f"no end after {waited:.0f} s"
        held = memory_mib(f"{process.pid}/status", "VmRSS")
        return (MEMORY, f"it holds {held:.0f} MiB") if held > LIMIT_MIB else None

    def _hear(self, event: str, *told: Any) -> None:
        """Takes note of what the worker tells."""
        now = time.monotonic()
        if event in ("begin", "end"):
            self._since, self._is_at_work = now, event == "begin"
        if event == "begin":
            self._n_begun += 1
            # A rate is that of a window of time, in which no worker starts.
            self._window = self._window or (now, self.n_inputs)
        elif event == "end":
            self.n_inputs += 1
            self.peak_mib = max(self.peak_mib, told[0])
            began, n_before = self._window or (now, 0)
            if now - began >= _WINDOW_S:
                self.rates.append((self.n_inputs - n_before) / (now - began))
                self._window = None
        elif event == "finding":
            self._find(*told)
        elif event == "seed":
            self._seed = told[0]
        else:
            self._is_done = True

    def _find(self, kind: str, text: str, example: str) -> None:
        """Counts a finding, and keeps its input unless there are enough like it."""
        self.counts[kind] += 1
        last = (text.strip().splitlines() or [""])[-1]
        alike = (kind, re.sub(r"\d+|/\S+", "#", last)[:200])
        self._alike[alike] += 1
        if self._alike[alike] > _KEPT_OF_ALIKE:
            return
        folder = self._keep / f"{self.case}-{self._seed}-{sum(self.counts.values())}"
        shutil.rmtree(folder, ignore_errors=True)
        shutil.copytree(self._folder / example, folder)
        (folder / "finding.txt").write_text(f"{kind}, seed {self._seed}\n{text}\n")
        log(f"{self.case}: {kind}: {text.strip()[-600:]}\n  {folder}")


if __name__ == "__main__":
    sys.exit(main())
