"""Workers under watch: a crash, a hang or a process that grows is a finding, and not the end."""

from __future__ import annotations

import json
import os
import re
import select
import shutil
import signal
import subprocess
import sys
import time
from collections import Counter
from pathlib import Path
from typing import Any

from benchmarks.fuzz_case.case import CRASH, HANG, LIMIT_MIB, MEMORY
from benchmarks.fuzz_case.worker import CURRENT, ROOT

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
        print(
            f"{self.case}: {kind}: {text.strip()[-600:]}\n  {folder}", file=sys.stderr, flush=True
        )


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
        command = [sys.executable, "-m", "benchmarks.fuzz_case.worker", case, str(seed), str(pipe)]
        paths = [str(ROOT), os.environ.get("PYTHONPATH", "")]
        environment = {"PYTHONPATH": os.pathsep.join(filter(None, paths)), "JAX_PLATFORMS": "cpu"}
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
        held = _resident_mib(self._process.pid)
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


def _resident_mib(pid: int) -> float:
    try:
        pages = int(Path(f"/proc/{pid}/statm").read_text().split()[1])
    except (OSError, IndexError):
        return 0.0
    return pages * os.sysconf("SC_PAGE_SIZE") / 2**20
