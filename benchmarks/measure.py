"""What every benchmark shares: running a command under watch, and the line it prints."""

from __future__ import annotations

import json
import os
import platform
import statistics
import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

_SAMPLE_EVERY_S = 1.0
_KIB_PER_MIB = 1024


@dataclass(frozen=True)
class Watched:
    """A finished command.

    Attributes:
        stdout: What it printed.
        seconds: Wall time [s].
        peak_rss_mib: Most memory that it and its descendants held at once, pages
            that they share counted once [MiB].
    """

    stdout: str
    seconds: float
    peak_rss_mib: float


def watch(command: Sequence[str]) -> Watched:
    """Runs `command` to its end; raises `CalledProcessError` if it fails."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    peak_kib = 0

    def sample() -> None:
        nonlocal peak_kib
        while process.poll() is None:
            peak_kib = max(peak_kib, _tree_kib(process.pid))
            time.sleep(_SAMPLE_EVERY_S)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    stdout, _ = process.communicate()
    seconds = time.perf_counter() - started
    sampler.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stdout)
    return Watched(stdout, seconds, peak_kib / _KIB_PER_MIB)


def print_line(
    bench: str, case: str, values: Sequence[float], unit: str, peak_rss_mib: float
) -> None:
    """Prints one figure as a line of JSON, with the machine that it was measured on."""
    line = {
        "bench": bench,
        "case": case,
        "n_runs": len(values),
        "median": round(statistics.median(values), 5),
        "mean": round(statistics.fmean(values), 5),
        "min": round(min(values), 5),
        "max": round(max(values), 5),
        "unit": unit,
        "peak_rss_mib": round(peak_rss_mib, 1),
        "cores": os.cpu_count(),
        "machine": platform.processor() or platform.machine(),
    }
    print(json.dumps(line), flush=True)


def _tree_kib(root: int) -> int:
    """Returns the proportional set size of `root` and all its descendants [KiB]."""
    parents = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdigit():
            parents[int(entry.name)] = _parent(entry)
    tree, grown = {root}, True
    while grown:
        children = {pid for pid, parent in parents.items() if parent in tree} - tree
        tree |= children
        grown = bool(children)
    return sum(_pss_kib(pid) for pid in tree)


def _parent(entry: Path) -> int | None:
    try:
        # The command's name, in brackets, may hold anything; what follows doesn't.
        return int((entry / "stat").read_text().rpartition(")")[2].split()[1])
    except (OSError, IndexError):
        return None


def _pss_kib(pid: int) -> int:
    try:
        text = Path(f"/proc/{pid}/smaps_rollup").read_text()
    except OSError:
        return 0
    lines = [line for line in text.splitlines() if line.startswith("Pss:")]
    return int(lines[0].split()[1]) if lines else 0
