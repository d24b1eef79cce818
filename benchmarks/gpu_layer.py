"""`python -m benchmarks.gpu_layer`: lookup and row-wise Adagrad update on one GPU.

It needs JAX's CUDA build beside the driver: `pip install "jax[cuda13]"` (or `jax[cuda12]`).
A machine without network needs the wheels of keras, keras-rs, namex and optree as well.
One table of `rows` × `dim` float32 holds `features` features, each in rows of its own; a
step looks up one id a feature for each of `batch` examples, Zipf(1.05), and updates the
rows with given gradients: 26 features × a batch of 65,536 are 1.7 million ids a step.
The lines, for each number of rows and each width:

- `ours rows=R dim=D`: ms a step; `copy rows=R dim=D`: what the device copies, bytes read
  and written [GB/s], measured by the same process just before;
- `ours/copy rows=R dim=D`: the bytes that a step must move (`moved_bytes`: each distinct
  row read and written with its accumulator, and the gradient of each id read) over its
  time, as a share of that; the goal is 0.5;
- `ours device memory rows=R dim=D`: most memory in use over table and accumulators.

`--allow-cpu` tries the program on a CPU, where the figures mean nothing.
"""

from __future__ import annotations

import argparse
import json
import os
import subprocess
import sys
import time
from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

from benchmarks.measure import (
    last_line,
    log,
    module,
    options_of,
    peak_rss_mib,
    print_line,
    python_path,
    run,
    zipf_batches,
)

BENCH = "gpu_layer"
LEARNING_RATE = 0.05
_COPIED_FLOATS = 1 << 29
"""Length of the array whose copy gives the bandwidth; a tenth of it on a CPU."""
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
    add("--allow-cpu", action="store_true", help="try the program where there is no GPU")
    return parser.parse_args(words)


def main() -> None:
    """Measures every size, each round in a process of its own, and prints it when it is done."""
    options = parse()
    for rows in options.rows:
        for dim in options.dim:
            case = json.dumps({**vars(options), "rows": rows, "dim": dim})
            rounds = [_measure(case) for _ in range(options.rounds)]
            _print(rounds, f"rows={rows} dim={dim}", rows * (dim + 1) * _FLOAT)


def _measure(case: str) -> dict[str, Any]:
    environment = {**os.environ, "PYTHONPATH": python_path(), "KERAS_BACKEND": "jax"}
    command = module("benchmarks.gpu_layer", "one", case)
    done = subprocess.run(command, env=environment, capture_output=True, text=True, check=False)
    if done.returncode:
        sys.exit(done.stderr.strip() or f"the process ended with {done.returncode}")
    measured = last_line(done.stdout)
    log(str(measured))
    return measured


def _print(rounds: list[dict[str, Any]], size: str, state_bytes: int) -> None:
    times = [ms for measured in rounds for ms in measured["step_ms"]]
    rates = [rate for measured in rounds for rate in measured["copy_gb_s"]]
    shares = [rounds[0]["moved"] / _GIGA / (ms * 1e-3) / np.median(rates) for ms in times]
    memory = [measured["peak_device_bytes"] / state_bytes for measured in rounds]
    peak = max(measured["peak_rss_mib"] for measured in rounds)
    print_line(BENCH, f"ours {size}", times, "ms", peak)
    print_line(BENCH, f"copy {size}", rates, "GB/s", peak)
    print_line(BENCH, f"ours/copy {size}", shares, "share", peak)
    if any(memory):
        print_line(BENCH, f"ours device memory {size}", memory, "ratio", peak)


def feature_ids(features: int, batch: int, rows: int, seed: int) -> np.ndarray:
    """Returns rows `[sets, features · batch]` int32, each feature's in a part of its own."""
    each = rows // features
    ids = zipf_batches(_N_SETS, batch, each, seed, sides=features)
    ids += (np.arange(features, dtype=np.int32) * each)[:, None]
    return ids.reshape(_N_SETS, -1)


def moved_bytes(ids: np.ndarray, dim: int) -> float:
    """Returns the fewest bytes that a step moves, on average over the sets `[sets, n]`.

    Each distinct row is read and written once, with its accumulator of one float, and the
    gradient of each id is read: 2 · distinct · 4 · (dim + 1) + n · 4 · dim. Not counted:
    that the lookup writes n rows, and that rows are read for it and again for the update.
    """
    distinct = np.mean([len(np.unique(of_step)) for of_step in ids])
    return float(2 * distinct * _FLOAT * (dim + 1) + ids.shape[1] * _FLOAT * dim)


# --- one size, in a process of its own


def measure_one() -> None:
    """Measures the case that the command line names: the engine's own lookup and update."""
    import jax
    import jax.numpy as jnp

    from recsys.embedding import RowWiseAdagrad, rows
    from recsys.embedding.rows import Lookups

    case = argparse.Namespace(**json.loads(sys.argv[-1]))
    device = jax.devices()[0]
    if device.platform == "cpu" and not case.allow_cpu:
        sys.exit("JAX sees no GPU here: install jax[cuda13] or jax[cuda12] beside the driver.")
    optimizer = RowWiseAdagrad(LEARNING_RATE)
    rate = jnp.float32(LEARNING_RATE)
    numbers = rows.Numbers(rate, rate, jnp.float32(1), jnp.uint32(0), jnp.int32(0))

    def step(table: Any, slots: Any, ids: Any, grads: Any) -> Any:
        """Returns the rows `[n, dim]`, and table `[rows, dim]` and slots after the update."""
        lookups = Lookups(ids)
        out = rows.pool(table, lookups, lookups.weights(), ids.shape[0])
        # As in the training step, the update waits for the lookup.
        grads, out = jax.lax.optimization_barrier((grads, out))
        gradients = rows.Gradients(lookups, grads)
        return out, *rows.update(optimizer, table, slots, gradients, numbers)

    copied = _COPIED_FLOATS // (10 if device.platform == "cpu" else 1)
    copy = jax.jit(jnp.copy)
    source = jnp.arange(copied, dtype=jnp.float32)
    copies_ms = _timed_ms(lambda _, __: copy(source), case)
    ids = feature_ids(case.features, case.batch, case.rows, case.seed)
    sets = [jax.device_put(of_step) for of_step in ids]
    grads = jax.random.normal(jax.random.key(1), (ids.shape[1], case.dim)) * 0.01
    (slot,) = optimizer.slot_list()
    table = jax.random.uniform(jax.random.key(0), (case.rows, case.dim))
    slots = (jnp.full((case.rows, 1), slot.initial, jnp.float32),)
    compiled = jax.jit(step, donate_argnums=(0, 1))
    step_ms = _timed_ms(
        lambda i, state: compiled(*state[1:], sets[i % _N_SETS], grads), case, (None, table, slots)
    )
    measured = {
        "step_ms": step_ms,
        "copy_gb_s": [2 * copied * _FLOAT / _GIGA / (ms * 1e-3) for ms in copies_ms],
        "moved": moved_bytes(ids, case.dim),
        "peak_device_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use", 0),
        "peak_rss_mib": peak_rss_mib(),
        "device": device.device_kind,
        "jax": jax.__version__,
    }
    print(json.dumps(measured), flush=True)


def _timed_ms(
    step: Callable[[int, Any], Any], case: argparse.Namespace, state: Any = None
) -> list[float]:
    """Returns the time of a step, on average over `case.steps`, for each repeat [ms].

    Args:
        step: Starts the i-th step; takes and returns the state.
        case: How many steps and repeats; one repeat before them warms up.
        state: The first state.
    """
    import jax

    times = []
    for _ in range(case.repeats + 1):
        started = time.perf_counter()
        for i in range(case.steps):
            state = step(i, state)
        jax.block_until_ready(state)
        times.append((time.perf_counter() - started) * 1000 / case.steps)
    return times[1:]


if __name__ == "__main__":
    run(main, one=measure_one)
