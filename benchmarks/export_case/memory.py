"""The memory of a command and of every process that it starts."""

from __future__ import annotations

import subprocess
import threading
import time
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path

_EVERY_S = 0.25


@dataclass
class Memory:
    """What was seen.

    Attributes:
        seconds: Wall time [s].
        peak_bytes: Most resident memory of each process, by its id, as the kernel keeps it
            (`VmHWM`): pages that processes share count for each of them.
        tree_bytes: Most that all of them held at once, shared pages counted once (PSS).
    """

    seconds: float = 0.0
    peak_bytes: dict[int, int] = field(default_factory=dict)
    tree_bytes: int = 0


def watch(command: Sequence[str]) -> Memory:
    """Runs a command to its end; raises `CalledProcessError` if it fails."""
    memory, started = Memory(), time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL)

    def sample() -> None:
        while process.poll() is None:
            _look(process.pid, memory)
            time.sleep(_EVERY_S)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    process.wait()
    memory.seconds = time.perf_counter() - started
    sampler.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command)
    return memory


def _look(root: int, memory: Memory) -> None:
    pids = _tree(root)
    for pid in pids:
        peak = _figure(Path(f"/proc/{pid}/status"), "VmHWM:")
        memory.peak_bytes[pid] = max(memory.peak_bytes.get(pid, 0), peak)
    together = sum(_figure(Path(f"/proc/{pid}/smaps_rollup"), "Pss:") for pid in pids)
    memory.tree_bytes = max(memory.tree_bytes, together)


def _tree(root: int) -> list[int]:
    """Returns a process and its descendants."""
    found = [root]
    for pid in found:
        try:
            threads = list(Path(f"/proc/{pid}/task").iterdir())
            children = " ".join((thread / "children").read_text() for thread in threads)
        except OSError:
            continue
        found += [int(child) for child in children.split()]
    return found


def _figure(file: Path, name: str) -> int:
    """Returns a line's figure [bytes]; 0 of a process that has ended."""
    try:
        lines = file.read_text().splitlines()
    except OSError:
        return 0
    return next((int(line.split()[1]) * 1024 for line in lines if line.startswith(name)), 0)
