"""What every benchmark shares: options, processes under watch, ids, and the line it prints.

Peers import it in environments of their own, where NumPy alone is there for sure.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
KIB_PER_MIB = 1024
ZIPF_EXPONENT = 1.05
_SAMPLE_EVERY_S = 0.25


def options_of(name: str, doc: str | None, **more: Any) -> argparse.ArgumentParser:
    """Returns a parser of `python -m benchmarks.NAME`, whose help is the module's text."""
    return argparse.ArgumentParser(
        prog=f"python -m benchmarks.{name}",
        description=doc,
        formatter_class=argparse.RawDescriptionHelpFormatter,
        **more,
    )


def run(main: Callable[[], Any], **parts: Callable[[], Any]) -> None:
    """Runs `main`, or the part that the first word names: a process of the benchmark's own."""
    if sys.argv[1:2] and sys.argv[1] in parts:
        main = parts[sys.argv.pop(1)]
    sys.exit(main())


@dataclasses.dataclass
class Watched:
    """A finished command.

    Attributes:
        stdout: What it printed.
        seconds: Wall time [s].
        peak_rss_mib: Most memory that it and its descendants held at once, pages
            that they share counted once (PSS) [MiB].
        peak_mib: Most resident memory of each process by its id, as the kernel keeps it
            (`VmHWM`): pages that processes share count for each of them [MiB].
    """

    stdout: str = ""
    seconds: float = 0.0
    peak_rss_mib: float = 0.0
    peak_mib: dict[int, float] = dataclasses.field(default_factory=dict)

    @property
    def result(self) -> dict[str, Any]:
        """The JSON in its last line."""
        return last_line(self.stdout)

    def look(self, root: int) -> None:
        """Takes down the memory of a process and its descendants."""
        pids = [root]
        for pid in pids:  # It grows meanwhile.
            pids += children_of(pid)
            peak = memory_mib(f"{pid}/status", "VmHWM")
            self.peak_mib[pid] = max(self.peak_mib.get(pid, 0.0), peak)
        together = sum(memory_mib(f"{pid}/smaps_rollup", "Pss") for pid in pids)
        self.peak_rss_mib = max(self.peak_rss_mib, together)


def watch(command: Sequence[str], environment: Mapping[str, str] | None = None) -> Watched:
    """Runs `command` to its end; raises `CalledProcessError` if it fails."""
    watched, started = Watched(), time.perf_counter()
    own = {**os.environ, "PYTHONPATH": python_path(), **(environment or {})}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=own)

    def sample() -> None:
        while process.poll() is None:
            watched.look(process.pid)
            time.sleep(_SAMPLE_EVERY_S)

    sampler = threading.Thread(target=sample, daemon=True)
    sampler.start()
    watched.stdout, _ = process.communicate()
    watched.seconds = time.perf_counter() - started
    sampler.join()
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, watched.stdout)
    return watched


def last_line(text: str) -> dict[str, Any]:
    """Returns the JSON in the last line of what a process printed."""
    result: dict[str, Any] = json.loads(text.strip().splitlines()[-1])
    return result


def python_path() -> str:
    """Returns PYTHONPATH with the project's root in it."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def words_of(**options: Any) -> list[str]:
    """Returns options as words of a command line."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def module(name: str, *words: Any) -> list[str]:
    """Returns the command of a module in this environment."""
    return [sys.executable, "-m", name, *map(str, words)]


def peer(name: str) -> list[str]:
    """Returns the command of `benchmarks/peers/NAME.py`, whose header says what it needs."""
    if "PIP_FIND_LINKS" in os.environ:  # uv reads no pip settings.
        os.environ.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"])
    script = ROOT / "benchmarks" / "peers" / f"{name}.py"
    # `uv run` names itself in UV.
    return [os.environ.get("UV", "uv"), "run", "--quiet", "--script", str(script)]


def simulated(devices: int) -> dict[str, str]:
    """Returns the environment of a process of ours with so many simulated devices."""
    flags = f"--xla_force_host_platform_device_count={devices}"
    flags = f"{os.environ.get('XLA_FLAGS', '')} {flags}".strip()
    return {"KERAS_BACKEND": "jax", "PYTHONPATH": python_path(), "XLA_FLAGS": flags}


def print_line(
    bench: str, case: str, values: Iterable[float], unit: str, peak_rss_mib: float = 0.0
) -> None:
    """Prints one figure as a line of JSON, with the machine that it was measured on."""
    values = list(values)
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


def ratios(above: Iterable[float], below: Iterable[float]) -> list[float]:
    """Returns quotients, round by round."""
    return [a / b for a, b in zip(above, below, strict=False)]


def log(text: str) -> None:
    """Says on stderr how far it is."""
    print(text, file=sys.stderr, flush=True)


def children_of(pid: int) -> list[int]:
    """Returns the processes that a process started, the oldest first; none if it has ended."""
    try:
        threads = list(Path(f"/proc/{pid}/task").iterdir())
        return [int(n) for thread in threads for n in (thread / "children").read_text().split()]
    except OSError:
        return []


def memory_mib(file: str, name: str) -> float:
    """Returns a figure of a file below /proc [MiB]; 0 of a process that has ended."""
    try:
        text = Path("/proc", file).read_text()
    except OSError:
        return 0.0
    figure = re.search(rf"^{name}:\s+(\d+)", text, re.MULTILINE)
    return int(figure[1]) / KIB_PER_MIB if figure else 0.0


def peak_rss_mib() -> float:
    """Returns the most memory that this process has held, since `forget_peak` if called [MiB]."""
    # Not getrusage: that counts what the parent held before the exec.
    return memory_mib("self/status", "VmHWM")


def forget_peak() -> float:
    """Sets the peak of memory back to what is held now, which it returns [MiB]."""
    Path("/proc/self/clear_refs").write_text("5")  # man 5 proc
    return peak_rss_mib()


def zipf_batches(
    n_batches: int, batch: int, rows: int, seed: int, sides: int = 2
) -> npt.NDArray[np.int32]:
    """Returns rows `[n_batches, sides, batch]` int32 in 0…rows-1, each side drawn by itself.

    The r-th most frequent row is drawn with a probability proportional to r^-1.05; which
    row that is, a permutation says, so that frequent rows are no neighbours.
    """
    rng = np.random.default_rng(seed)
    cumulated = np.cumsum(np.arange(1, rows + 1, dtype=np.float64) ** -ZIPF_EXPONENT)
    ids = np.empty((n_batches, sides, batch), np.int32)
    for side in range(sides):
        drawn = rng.random((n_batches, batch)) * cumulated[-1]
        ranks = np.searchsorted(cumulated, drawn, side="right")
        ids[:, side] = rng.permutation(rows).astype(np.int32)[np.minimum(ranks, rows - 1)]
    return ids


class AsJson:
    """What dataclasses share that go to a measuring process, or come back from it."""

    def to_json(self) -> str:
        """Returns one line: the last word of a command, or the last line of its stdout."""
        return json.dumps(dataclasses.asdict(self))  # type: ignore[call-overload]

    @classmethod
    def from_json(cls, text: str) -> Self:
        """Reads the last line of `text`."""
        return cls(**last_line(text))

    @classmethod
    def from_command(cls) -> Self:
        """Reads the last word of the command line."""
        return cls.from_json(sys.argv[-1])
