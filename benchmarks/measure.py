"""Shared by all benchmarks: options, monitored processes, ids, and the printed line.

Peers import it in their own environments, which are only sure to have NumPy.
"""

from __future__ import annotations

import contextlib
import importlib
import json
import os
import platform
import re
import statistics
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar

import numpy as np
import numpy.typing as npt

ROOT = Path(__file__).resolve().parents[1]
KIB_PER_MIB = 1024
ZIPF_EXPONENT = 1.05
_SAMPLE_EVERY_S = 0.25
K = TypeVar("K")


# --- The command line.


def run(main: Callable[..., None], **subcommands: Callable[..., None]) -> None:
    """Runs `main`, or the subcommand that the first word names.

    The parameters of the function are the options. An option that is a list takes several
    values, `--rows 10 20`. The help is the text of the module.
    """
    from typer import Typer

    words, module = sys.argv[1:], sys.modules[main.__module__]
    if words[:1] and words[0] in subcommands:
        main = subcommands[words.pop(0)]
    app = Typer(add_completion=False, pretty_exceptions_enable=False, rich_markup_mode=None)
    paragraphs = (module.__doc__ or "").split("\n\n")
    app.command(help="\n\n".join(f"\b\n{paragraph}" for paragraph in paragraphs))(main)
    app(_single_values(words), prog_name=f"python -m {_name(module)}")


def _single_values(words: Iterable[str]) -> list[str]:
    """Returns `--rows 10 20` as `--rows 10 --rows 20`, which is how typer takes a list."""
    single: list[str] = []
    option, has_value = "", True
    for word in words:
        if word.startswith("-"):
            option, has_value = word, "=" in word
        else:
            single += [option] if has_value else []
            has_value = True
        single.append(word)
    return single


def _name(module: Any) -> str:
    return module.__spec__.name if module.__spec__ else module.__name__


# --- Processes.


@dataclass
class Watched:
    """A process that has ended.

    Attributes:
        result: The JSON in the last line of its stdout.
        seconds: Wall time [s].
        peak_rss_mib: Most memory that it and its descendants held at once, shared pages
            counted once (PSS) [MiB].
    """

    result: Any = None
    seconds: float = 0.0
    peak_rss_mib: float = 0.0


def watch(
    command: Sequence[str], environment: Mapping[str, str] | None = None, memory: bool = True
) -> Watched:
    """Runs a command to its end; raises `CalledProcessError` if it fails.

    Args:
        command: Its words.
        environment: Variables of the process in addition to this one's.
        memory: Whether to sample it; for a process of many GB that takes it some time.
    """
    watched, started = Watched(), time.perf_counter()
    own = {**os.environ, "PYTHONPATH": python_path(), **(environment or {})}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True, env=own)

    def sample() -> None:
        pids = [process.pid, *children_of(process.pid)]
        held = sum(memory_mib(f"{pid}/smaps_rollup", "Pss") for pid in pids)
        watched.peak_rss_mib = max(watched.peak_rss_mib, held)

    with repeated(sample, _SAMPLE_EVERY_S) if memory else contextlib.nullcontext():
        stdout, _ = process.communicate()
        watched.seconds = time.perf_counter() - started
    if process.returncode:
        raise subprocess.CalledProcessError(process.returncode, command, stdout)
    watched.result = json.loads(stdout.strip().splitlines()[-1])
    return watched


@contextlib.contextmanager
def repeated(look: Callable[[], None], every_s: float) -> Iterator[None]:
    """Calls `look` again and again while it is open, in a thread, and once more at its end.

    Args:
        look: What is called.
        every_s: After how long again [s].
    """
    is_over = threading.Event()

    def repeat() -> None:
        is_last = False
        while not is_last:
            is_last = is_over.wait(every_s)
            look()

    thread = threading.Thread(target=repeat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        is_over.set()
        thread.join()


def call(
    function: Callable[..., Any],
    environment: Mapping[str, str] | None = None,
    memory: bool = False,
    /,
    **arguments: Any,
) -> Watched:
    """Runs a function of a benchmark in a process of its own.

    Args:
        function: It takes and returns what JSON can hold.
        environment: As for `watch`.
        memory: As for `watch`.
        **arguments: Its arguments.
    """
    name = _name(sys.modules[function.__module__])
    words = [name, function.__name__, json.dumps(arguments)]
    return watch(module("benchmarks.measure", *words), environment, memory)


def answer(function: Callable[..., Any]) -> None:
    """Calls a function with the JSON of the last word, and prints what it returns."""
    print(json.dumps(function(**json.loads(sys.argv[-1]))), flush=True)


def module(name: str, *words: Any) -> list[str]:
    """Returns the command of a module in this environment."""
    return [sys.executable, "-m", name, *map(str, words)]


def peer(name: str, **arguments: Any) -> list[str]:
    """Returns the command of `benchmarks/peers/NAME.py`, whose header says what it needs."""
    if "PIP_FIND_LINKS" in os.environ:  # uv reads no pip settings.
        os.environ.setdefault("UV_FIND_LINKS", os.environ["PIP_FIND_LINKS"])
    script = ROOT / "benchmarks" / "peers" / f"{name}.py"
    # `uv run` names itself in UV.
    uv = os.environ.get("UV", "uv")
    return [uv, "run", "--quiet", "--script", str(script), json.dumps(arguments)]


def words_of(**options: Any) -> list[str]:
    """Returns options as words of a command line."""
    return [word for name, value in options.items() for word in (f"--{name}", str(value))]


def python_path() -> str:
    """Returns PYTHONPATH with the project's root in it."""
    return os.pathsep.join(filter(None, [str(ROOT), os.environ.get("PYTHONPATH")]))


def on_gpu() -> dict[str, str]:
    """Returns the environment of a process that computes on this machine's first GPU."""
    return {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cuda", "CUDA_VISIBLE_DEVICES": "0"}


def gpu_name() -> str:
    """Returns what the driver calls this machine's first GPU."""
    words = ["nvidia-smi", "--query-gpu=name", "--format=csv,noheader", "--id=0"]
    return subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()


def simulated(devices: int) -> dict[str, str]:
    """Returns the environment of a process with so many simulated devices."""
    flags = f"{os.environ.get('XLA_FLAGS', '')} --xla_force_host_platform_device_count={devices}"
    return {"KERAS_BACKEND": "jax", "JAX_PLATFORMS": "cpu", "XLA_FLAGS": flags.strip()}


def children_of(pid: int) -> list[int]:
    """Returns the descendants of a process, children first; none if it has ended."""
    children: list[int] = []
    with contextlib.suppress(OSError):
        for thread in Path(f"/proc/{pid}/task").iterdir():
            children += map(int, (thread / "children").read_text().split())
    return [*children, *(grandchild for child in children for grandchild in children_of(child))]


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


# --- Figures.


def print_line(
    bench: str,
    case: str,
    values: Iterable[float],
    unit: str,
    peak_rss_mib: float = 0.0,
    device: str = "",
) -> None:
    """Prints one figure as a line of JSON, with the machine that it was measured on."""
    values = list(values)
    line: dict[str, Any] = {"bench": bench, "case": case, "n_runs": len(values)}
    figures = statistics.median(values), statistics.fmean(values), min(values), max(values)
    names = ("median", "mean", "min", "max")
    line |= {name: round(x, 5) for name, x in zip(names, figures, strict=True)}
    line |= {"unit": unit, "peak_rss_mib": round(peak_rss_mib, 1), "cores": os.cpu_count()}
    line["machine"] = device or platform.processor() or platform.machine()
    print(json.dumps(line), flush=True)


def in_turns(ways: Mapping[K, Callable[[], float]], rounds: int) -> dict[K, list[float]]:
    """Returns the figures of ways that take turns, round after round.

    So what else the machine does hits them alike; compare them by `ratios`.
    """
    figures: dict[K, list[float]] = {name: [] for name in ways}
    for _ in range(rounds):
        for name, way in ways.items():
            figures[name].append(way())
    return figures


def ratios(above: Iterable[float], below: Iterable[float]) -> list[float]:
    """Returns quotients, round by round."""
    return [a / b for a, b in zip(above, below, strict=False)]


def log(text: str) -> None:
    """Prints progress on stderr."""
    print(text, file=sys.stderr, flush=True)


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


if __name__ == "__main__":
    answer(getattr(importlib.import_module(sys.argv[1]), sys.argv[2]))
