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
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

from typer import Option

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
from benchmarks.measure import log, memory_mib, print_line, python_path, run

Case = StrEnum("Case", list(CASES))  # type: ignore[misc]
_CASES = [case for case in Case if case != "planted"]
_FOLDERS: list[Path] = []


def main(
    minutes: Annotated[float, Option(help="For all cases together.")] = 10.0,
    inputs: Annotated[int | None, Option(help="Most of each case.")] = None,
    cases: list[Case] = _CASES,
    jobs: Annotated[int, Option(help="Cases at once.")] = os.cpu_count() or 1,
    seed: int = 0,
    hang_s: float = LIMIT_S,
    keep: Annotated[Path, Option(help="Folder of the findings.")] = Path("runs/fuzz"),
    replay: Annotated[list[Path], Option(help="Folders CASE-… that were kept.")] = _FOLDERS,
) -> None:
    """Fuzzes, prints and counts; the exit code is 1 where anything was found."""
    replayed: dict[str, list[Path]] = {}
    for folder in replay:
        replayed.setdefault(folder.name.split("-")[0], []).append(folder.resolve())
    names = list(replayed or cases)
    os.environ.update(PYTHONPATH=python_path(), JAX_PLATFORMS="cpu", TF_CPP_MIN_LOG_LEVEL="3")
    with tempfile.TemporaryDirectory(prefix="recsys-fuzz-") as scratch:

        def fuzz(case: str) -> Watch:
            watch = Watch(case, seed, keep.resolve(), Path(scratch), hang_s)
            if replayed:
                watch.replay(replayed[case])
            else:
                watch.run(minutes * 60 * jobs / len(names), inputs or sys.maxsize)
            counts = ", ".join(f"{watch.counts[kind]} {kind}" for kind in KINDS)
            log(f"{case}: {watch.n_inputs} inputs, {counts}")
            return watch

        with ThreadPoolExecutor(jobs) as pool:
            watches = list(pool.map(fuzz, names))
    for watch in watches:
        print_line("fuzz", watch.case, watch.rates or [0.0], "inputs/s", watch.peak_mib)
    peak_mib = max(watch.peak_mib for watch in watches)
    for kind in KINDS:
        n_findings = float(sum(watch.counts[kind] for watch in watches))
        print_line("fuzz", kind, [n_findings], "inputs", peak_mib)
    sys.exit(int(any(watch.counts or not watch.n_inputs for watch in watches)))


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

    def run(self, seconds: float, most: int) -> None:
        """Fuzzes for so long, or until so many inputs were taken."""
        end = time.monotonic() + seconds

        def is_over() -> bool:
            return time.monotonic() >= end or self.n_inputs >= most

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

    def _hear(self, event: str, *details: Any) -> None:
        """Notes an event of the worker."""
        now = time.monotonic()
        if event in ("begin", "end"):
            self._since, self._is_at_work = now, event == "begin"
        if event == "begin":
            self._n_begun += 1
            # A rate is that of a window of time, in which no worker starts.
            self._window = self._window or (now, self.n_inputs)
        elif event == "end":
            self.n_inputs += 1
            self.peak_mib = max(self.peak_mib, details[0])
            began, n_before = self._window or (now, 0)
            if now - began >= _WINDOW_S:
                self.rates.append((self.n_inputs - n_before) / (now - began))
                self._window = None
        elif event == "finding":
            self._find(*details)
        elif event == "seed":
            self._seed = details[0]
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
    run(main)
