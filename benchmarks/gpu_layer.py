"""`python -m benchmarks.gpu_layer`: lookup and row-wise Adagrad update on one GPU.

It needs JAX's CUDA build beside the driver: `pip install "jax[cuda13]"` (or `jax[cuda12]`).
A machine without network needs the wheels of keras, keras-rs, namex and optree as well.
One table of `rows` × `dim` float32 holds `features` features, each in rows of its own; a
step looks up one id a feature for each of `batch` examples, Zipf(1.05), and updates the
rows with given gradients: 26 features × a batch of 65,536 are 1.7 million ids a step.
The lines, for each number of rows and each width:

- `ours rows=R dim=D`: ms a step; `copy rows=R dim=D`: what the device copies, bytes read
  and written [GB/s], measured by the same process just before;
- `ours/copy rows=R dim=D`: the bytes that a step must move (each distinct row read and
  written with its accumulator, and the gradient of each id read: `case.moved_bytes`) over
  its time, as a share of that; the goal is 0.5;
- `ours device memory rows=R dim=D`: most memory in use over table and accumulators;
- with `--peer`: `torch adagrad …`, `torch sgd …`: `nn.EmbeddingBag(sparse=True)` on CUDA,
  by the Python that `--peer` names, or by `uv`; and its time over ours.

`--allow-cpu` tries the program on a CPU, where the figures mean nothing.
"""

from __future__ import annotations

import argparse
import os
import subprocess
import sys
import tempfile
from collections.abc import Sequence
from pathlib import Path

import numpy as np

from benchmarks.measure import log, module, options_of, peer, print_line, python_path, zipf_batches
from benchmarks.peers.gpu_layer_case import Case, Measured, moved_bytes

BENCH = "gpu_layer"
_N_SETS = 4
_FLOAT, _GIGA = 4, 1e9


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = options_of(BENCH, __doc__)
    add = parser.add_argument
    rows = [1_000_000, 10_000_000, 100_000_000]
    add("--rows", type=int, nargs="+", default=rows, metavar="R")
    add("--dim", type=int, nargs="+", default=[64, 128], metavar="D")
    add("--features", type=int, default=26)
    add("--batch", type=int, default=65_536)
    add("--steps", type=int, default=20, help="timed together")
    add("--repeats", type=int, default=5)
    add("--rounds", type=int, default=2)
    add("--seed", type=int, default=0)
    add("--peer", metavar="PYTHON|uv", help="also measure torch, by this Python or by `uv run`")
    add("--allow-cpu", action="store_true", help="try the program where there is no GPU")
    return parser.parse_args(words)


def main() -> None:
    """Measures every size in turns, ours and the peer's, and prints each when it is done."""
    options = parse()
    commands = {"ours": module("benchmarks.peers.gpu_layer_ours")}
    if options.peer:
        by_uv = peer("gpu_layer_torch")
        commands["torch"] = by_uv if options.peer == "uv" else [options.peer, by_uv[-1]]
    with tempfile.TemporaryDirectory() as folder:
        for rows in options.rows:
            ids = Path(folder) / f"{rows}.npy"
            np.save(ids, feature_ids(options.features, options.batch, rows, options.seed))
            for dim in options.dim:
                _measure(options, commands, ids, rows, dim)


def feature_ids(features: int, batch: int, rows: int, seed: int) -> np.ndarray:
    """Returns rows `[sets, features · batch]` int32, each feature's in a part of its own."""
    each = rows // features
    ids = zipf_batches(_N_SETS, batch, each, seed, sides=features)
    ids += (np.arange(features, dtype=np.int32) * each)[:, None]
    return ids.reshape(_N_SETS, -1)


def _measure(
    options: argparse.Namespace, commands: dict[str, list[str]], ids: Path, rows: int, dim: int
) -> None:
    case = Case(str(ids), rows, dim, options.steps, options.repeats, options.allow_cpu)
    rounds: dict[str, list[Measured]] = {who: [] for who in commands}
    for _ in range(options.rounds):
        for who, command in commands.items():
            rounds[who].append(_run(command, case))
    size = f"rows={rows} dim={dim}"
    ours = rounds["ours"]
    _print_ours(ours, size, moved_bytes(case.read_ids(), dim), rows * (dim + 1) * _FLOAT)
    for kind in rounds.get("torch", ours)[0].step_ms if "torch" in rounds else ():
        _print_peer(rounds["torch"], ours, kind, size)


def _run(command: list[str], case: Case) -> Measured:
    environment = {**os.environ, "PYTHONPATH": python_path(), "KERAS_BACKEND": "jax"}
    words = [*command, case.to_json()]
    done = subprocess.run(words, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip() or f"{command[0]} ended with {done.returncode}.")
    measured = Measured.from_json(done.stdout)
    log(f"{command[-1]}: {measured}")
    return measured


def _print_ours(rounds: list[Measured], size: str, moved: float, state: int) -> None:
    times = [ms for found in rounds for of_kind in found.step_ms.values() for ms in of_kind]
    rates = [rate for found in rounds for rate in found.copy_gb_s]
    memory = [found.peak_device_bytes / state for found in rounds]
    peak = _peak(rounds)
    copied = np.median(rates)
    shares = [moved / _GIGA / (ms * 1e-3) / copied for ms in times]
    print_line(BENCH, f"ours {size}", times, "ms", peak)
    print_line(BENCH, f"copy {size}", rates, "GB/s", peak)
    print_line(BENCH, f"ours/copy {size}", shares, "share", peak)
    if any(memory):
        print_line(BENCH, f"ours device memory {size}", memory, "ratio", peak)


def _peak(rounds: list[Measured]) -> float:
    return max(found.peak_rss_mib for found in rounds)


def _print_peer(rounds: list[Measured], ours: list[Measured], kind: str, size: str) -> None:
    times = [found.step_ms[kind] for found in rounds if kind in found.step_ms]
    peak = _peak(rounds)
    print_line(BENCH, f"torch {kind} {size}", [ms for found in times for ms in found], "ms", peak)
    own = [np.median(list(found.step_ms.values())) for found in ours]
    ratios = [float(np.median(a) / b) for a, b in zip(times, own, strict=False)]
    print_line(BENCH, f"torch {kind}/ours {size}", ratios, "ratio", peak)


if __name__ == "__main__":
    main()
