"""`python -m benchmarks.fuzz --minutes 10`: what breaks the readers, the config, the server?

Inputs are made by hypothesis, from good ones and from the hostile files of the tests. Each is
taken in a process under watch:

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
import faulthandler
import itertools
import math
import multiprocessing
import os
import resource
import shutil
import signal
import sys
import tempfile
import time
import traceback
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from enum import StrEnum
from pathlib import Path
from typing import Annotated, Any

import hypothesis
from typer import Option

from benchmarks import measure
from benchmarks.measure import ROOT, log, print_line, run

# Corpus that the tests of readers and server share.
sys.path.append(str(ROOT / "tests" / "support"))

from fuzz_cases import CASES, CRASH, WRONG, Example, Finding  # type: ignore[import-not-found]

HANG, MEMORY = "hangs", "memory"
KINDS = (CRASH, HANG, MEMORY, WRONG)
LIMIT_S, LIMIT_MIB = 20.0, 2048.0
"""Limits for one input: time, and memory of the whole process."""
Case = StrEnum("Case", list(CASES))  # type: ignore[misc]
_CASES = [case for case in Case if case != "planted"]
_FOLDERS: list[Path] = []


def main(
    minutes: Annotated[float, Option(help="For all cases together.")] = 10.0,
    inputs: Annotated[int, Option(help="Most of each case.")] = sys.maxsize,
    cases: list[Case] = _CASES,
    seed: int = 0,
    hang_s: float = LIMIT_S,
    keep: Annotated[Path, Option(help="Folder of the findings.")] = Path("runs/fuzz"),
    replay: Annotated[list[Path], Option(help="Folders CASE-… that were kept.")] = _FOLDERS,
) -> None:
    """Fuzzes, prints and counts; the exit code is 1 where anything was found."""
    replayed: dict[str, list[Path]] = {}
    for folder in replay:
        replayed.setdefault(folder.name.split("-")[0], []).append(folder.resolve())
    names, jobs = list(replayed or cases), os.cpu_count() or 1
    os.environ |= {"JAX_PLATFORMS": "cpu", "TF_CPP_MIN_LOG_LEVEL": "3"}
    os.environ["PYTHONPATH"] = measure.python_path()
    with tempfile.TemporaryDirectory(prefix="recsys-fuzz-") as scratch:

        def fuzz(case: str) -> Watch:
            watch = Watch(case, seed, keep.resolve(), Path(scratch) / case, hang_s)
            seconds = math.inf if replayed else minutes * 60 * jobs / len(names)
            watch.run(seconds, inputs, replayed.get(case))
            counts = ", ".join(f"{watch.counts[kind]} {kind}" for kind in KINDS)
            log(f"{case}: {watch.n_inputs} inputs, {counts}")
            return watch

        with ThreadPoolExecutor(jobs) as pool:
            watches = list(pool.map(fuzz, names))
    for watch in watches:
        rates = [watch.n_inputs / max(watch.busy_s, 1e-9)]
        print_line("fuzz", watch.case, rates, "inputs/s", watch.peak_mib)
    peak_mib = max(watch.peak_mib for watch in watches)
    for kind in KINDS:
        n_findings = float(sum(watch.counts[kind] for watch in watches))
        print_line("fuzz", kind, [n_findings], "inputs", peak_mib)
    sys.exit(int(any(watch.counts or not watch.n_inputs for watch in watches)))


# --- Workers under watch: a crash, a hang or a process that grows is a finding, and not the end.


_POLL_S, _START_S = 0.05, 300.0
_MOST_KEPT = 20
"""Findings of a kind that are kept of a case; further ones are counted."""
_SPAWN = multiprocessing.get_context("spawn")
_CURRENT = "current"


class Watch:
    """One case, its workers one after the other, and what was found.

    Args:
        case: Its name.
        seed: The first seed.
        keep: Folder that inputs are kept in, that something was found of.
        folder: Folder to work in.
        hang_s: What one input may take [s].

    Attributes:
        counts: Findings of each kind.
        n_inputs: Inputs that were taken.
        busy_s: Time that workers took, without their start [s].
        peak_mib: Most memory that a worker held for one input [MiB].
    """

    def __init__(self, case: str, seed: int, keep: Path, folder: Path, hang_s: float) -> None:
        self.case, self._seed, self._keep, self._hang_s = case, seed, keep, hang_s
        self._folder, self.counts = folder, Counter[str]()
        self.n_inputs, self.peak_mib, self.busy_s = 0, 0.0, 0.0

    def run(self, seconds: float, most: int, replayed: list[Path] | None) -> None:
        """Fuzzes for so long, or until so many inputs were taken; or replays what was kept."""
        end = time.monotonic() + seconds
        while replayed != [] and time.monotonic() < end and self.n_inputs < most:
            n_begun = self._follow(end, most, replayed)
            # One that ended its worker isn't the last.
            replayed, self._seed = replayed and replayed[n_begun:], self._seed + 1

    def _follow(self, end: float, most: int, replayed: list[Path] | None) -> int:
        """Starts a worker, and watches it until it ends or must; returns the inputs it began."""
        shutil.rmtree(self._folder, ignore_errors=True)
        self._folder.mkdir(parents=True)
        pipe, theirs = _SPAWN.Pipe(duplex=False)
        words = (self.case, self._seed, self._folder, replayed, theirs)
        process = _SPAWN.Process(target=work, args=words, daemon=True)
        process.start()
        theirs.close()
        since, limit_s, n_begun, started = time.monotonic(), _START_S, 0, 0.0
        try:
            while time.monotonic() < end and self.n_inputs < most:
                trouble = self._trouble(process, since, limit_s)
                with contextlib.suppress(EOFError):  # It has ended.
                    while pipe.poll(_POLL_S):
                        event, *details = pipe.recv()
                        since = time.monotonic()
                        if event == "begin":
                            n_begun, limit_s, started = n_begun + 1, self._hang_s, started or since
                        elif event == "end":
                            self.n_inputs, limit_s = self.n_inputs + 1, _START_S
                            self.peak_mib = max(self.peak_mib, *details)
                        elif event == "finding":
                            self._find(*details)
                        elif event == "seed":
                            [self._seed] = details
                        else:
                            return n_begun
                if trouble:
                    if not n_begun:
                        raise RuntimeError(f"{self.case} has not begun: {trouble[1]}")
                    self._find(*trouble, _CURRENT)
                    return n_begun
        finally:
            self.busy_s += time.monotonic() - (started or time.monotonic())
            process.kill()
            process.join()
            pipe.close()
        return n_begun

    def _trouble(self, process: Any, since: float, limit_s: float) -> tuple[str, str] | None:
        """Returns the kind and the text of what is wrong with the process, if anything is."""
        code, waited = process.exitcode, time.monotonic() - since
        if code is not None:
            name = signal.Signals(-code).name if code < 0 else f"exit code {code}"
            errors = self._folder / "stderr.txt"
            text = errors.read_text(errors="replace") if errors.exists() else ""
            return CRASH, f"{text[-3000:]}\nthe process ended: {name}"
        if waited > limit_s:
            return HANG, f"no end after {waited:.0f} s"
        held = measure.memory_mib(f"{process.pid}/status", "VmRSS")
        return (MEMORY, f"it holds {held:.0f} MiB") if held > LIMIT_MIB else None

    def _find(self, kind: str, text: str, example: str) -> None:
        """Counts a finding, and keeps its input unless there are enough."""
        self.counts[kind] += 1
        if self.counts[kind] <= _MOST_KEPT:
            folder = self._keep / f"{self.case}-{self._seed}-{sum(self.counts.values())}"
            shutil.rmtree(folder, ignore_errors=True)
            shutil.copytree(self._folder / example, folder)
            (folder / "finding.txt").write_text(f"{kind}, seed {self._seed}\n{text}\n")
            log(f"{self.case}: {kind}: {text.strip()[-600:]}\n  {folder}")


# --- In a worker, which takes one input after the other, and says when each begins and ends.


_ADDRESSES_BYTES = 16 << 30
"""No input may take the machine down, however fast it grows."""
_SETTINGS = hypothesis.settings(
    max_examples=200,
    deadline=None,
    database=None,
    phases=[hypothesis.Phase.generate],
    suppress_health_check=list(hypothesis.HealthCheck),
)


def work(name: str, seed: int, folder: Path, replay: list[Path] | None, pipe: Any) -> None:
    """Takes inputs until the process is ended.

    Args:
        name: Name of the case that takes them.
        seed: Seed that they are made of.
        folder: Folder to work in; the input that is taken is in `current`.
        replay: Folders of inputs that are taken in place of made ones; then it ends.
        pipe: Receives the events as tuples.
    """
    os.chdir(folder)
    for file, descriptor in ((os.devnull, 1), ("stderr.txt", 2)):
        os.dup2(os.open(file, os.O_WRONLY | os.O_CREAT), descriptor)
    faulthandler.enable()
    resource.setrlimit(resource.RLIMIT_AS, (_ADDRESSES_BYTES, _ADDRESSES_BYTES))
    case, numbers = CASES[name](), itertools.count()

    def find(example: Example, kind: str, text: str) -> None:
        folder = f"found-{next(numbers)}"  # The next input doesn't overwrite it.
        example.save(Path(folder))
        pipe.send(("finding", kind, text, folder))

    def take(example: Example) -> None:
        """Processes an input; reports any exception."""
        example.save(Path(_CURRENT))
        pipe.send(("begin",))
        measure.forget_peak()
        try:
            case.take(example, Path(_CURRENT) / example.name)
        except Finding as finding:
            find(example, *finding.args)
        except Exception as error:  # noqa: BLE001 - that is what is looked for
            kind = MEMORY if isinstance(error, MemoryError) else CRASH
            find(example, kind, traceback.format_exc())
        peak_mib = measure.peak_rss_mib()
        if peak_mib > LIMIT_MIB:
            find(example, MEMORY, f"it held {peak_mib:.0f} MiB")
        pipe.send(("end", peak_mib))

    for kept in replay or ():
        take(Example.load(kept))
    if replay is not None:
        pipe.send(("over",))
        return
    given: Any = hypothesis.given(case.strategy())
    test = _SETTINGS(given(take))
    for number in itertools.count(seed):
        pipe.send(("seed", number))
        hypothesis.seed(number)(test)()


if __name__ == "__main__":
    run(main)
