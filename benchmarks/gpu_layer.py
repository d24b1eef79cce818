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

import itertools
import subprocess
import sys
import time
from collections.abc import Callable
from typing import Annotated, Any

import numpy as np
from typer import Option

from benchmarks.measure import call, log, peak_rss_mib, print_line, run, zipf_batches

LEARNING_RATE = 0.05
_COPIED_FLOATS = 1 << 29
"""Length of the array whose copy gives the bandwidth; a tenth of it on a CPU."""
_N_SETS = 4
_FLOAT, _GIGA = 4, 1e9
_ROWS = [1_000_000, 10_000_000, 100_000_000]
_DIMS = [64, 128]


def main(
    rows: list[int] = _ROWS,
    dim: list[int] = _DIMS,
    features: int = 26,
    batch: int = 65_536,
    steps: Annotated[int, Option(help="Timed together.")] = 20,
    repeats: int = 5,
    rounds: int = 2,
    seed: int = 0,
    allow_cpu: Annotated[bool, Option("--allow-cpu")] = False,
) -> None:
    """Measures every size, each round in a process of its own, and prints it when it is done."""
    case = {"features": features, "batch": batch, "steps": steps, "repeats": repeats}
    case |= {"seed": seed, "allow_cpu": allow_cpu}
    environment = {"KERAS_BACKEND": "jax"}
    for n, width in itertools.product(rows, dim):
        try:
            measured = [
                call(measure, environment, rows=n, dim=width, **case).result for _ in range(rounds)
            ]
        except subprocess.CalledProcessError as error:
            sys.exit(error.returncode)
        log(str(measured))
        _print(measured, f"rows={n} dim={width}", n * (width + 1) * _FLOAT)


def _print(rounds: list[dict[str, Any]], size: str, state_bytes: int) -> None:
    times = [ms for measured in rounds for ms in measured["step_ms"]]
    rates = [rate for measured in rounds for rate in measured["copy_gb_s"]]
    shares = [rounds[0]["moved"] / _GIGA / (ms * 1e-3) / np.median(rates) for ms in times]
    memory = [measured["peak_device_bytes"] / state_bytes for measured in rounds]
    peak = max(measured["peak_rss_mib"] for measured in rounds)
    print_line("gpu_layer", f"ours {size}", times, "ms", peak)
    print_line("gpu_layer", f"copy {size}", rates, "GB/s", peak)
    print_line("gpu_layer", f"ours/copy {size}", shares, "share", peak)
    if any(memory):
        print_line("gpu_layer", f"ours device memory {size}", memory, "ratio", peak)


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


def measure(
    rows: int,
    dim: int,
    features: int,
    batch: int,
    steps: int,
    repeats: int,
    seed: int,
    allow_cpu: bool,
) -> dict[str, Any]:
    """Returns the figures of the engine's own lookup and update, at one size."""
    import jax
    import jax.numpy as jnp

    from recsys.embedding import RowWiseAdagrad
    from recsys.embedding import rows as row_operations

    device = jax.devices()[0]
    if device.platform == "cpu" and not allow_cpu:
        sys.exit("JAX sees no GPU here: install jax[cuda13] or jax[cuda12] beside the driver.")
    optimizer = RowWiseAdagrad(LEARNING_RATE)
    rate = jnp.float32(LEARNING_RATE)
    numbers = row_operations.Numbers(rate, rate, jnp.float32(1), jnp.uint32(0), jnp.int32(0))

    def step(table: Any, slots: Any, ids: Any, grads: Any) -> Any:
        """Returns the rows `[n, dim]`, and table `[rows, dim]` and slots after the update."""
        lookups = row_operations.Lookups(ids)
        out = row_operations.pool(table, lookups, lookups.weights(), ids.shape[0])
        # As in the training step, the update waits for the lookup.
        grads, out = jax.lax.optimization_barrier((grads, out))
        gradients = row_operations.Gradients(lookups, grads)
        return out, *row_operations.update(optimizer, table, slots, gradients, numbers)

    def timed_ms(step: Callable[[int, Any], Any], state: Any = None) -> list[float]:
        """Returns the time of a step of each repeat [ms]; one repeat more warms up."""
        times = []
        for _ in range(repeats + 1):
            started = time.perf_counter()
            for i in range(steps):
                state = step(i, state)
            jax.block_until_ready(state)
            times.append((time.perf_counter() - started) * 1000 / steps)
        return times[1:]

    copied = _COPIED_FLOATS // (10 if device.platform == "cpu" else 1)
    copy = jax.jit(jnp.copy)
    source = jnp.arange(copied, dtype=jnp.float32)
    copies_ms = timed_ms(lambda _, __: copy(source))
    ids = feature_ids(features, batch, rows, seed)
    sets = [jax.device_put(of_step) for of_step in ids]
    grads = jax.random.normal(jax.random.key(1), (ids.shape[1], dim)) * 0.01
    (slot,) = optimizer.slot_list()
    table = jax.random.uniform(jax.random.key(0), (rows, dim))
    slots = (jnp.full((rows, 1), slot.initial, jnp.float32),)
    compiled = jax.jit(step, donate_argnums=(0, 1))
    step_ms = timed_ms(
        lambda i, state: compiled(*state[1:], sets[i % _N_SETS], grads), (None, table, slots)
    )
    return {
        "step_ms": step_ms,
        "copy_gb_s": [2 * copied * _FLOAT / _GIGA / (ms * 1e-3) for ms in copies_ms],
        "moved": moved_bytes(ids, dim),
        "peak_device_bytes": (device.memory_stats() or {}).get("peak_bytes_in_use", 0),
        "peak_rss_mib": peak_rss_mib(),
        "device": device.device_kind,
        "jax": jax.__version__,
    }


if __name__ == "__main__":
    run(main)
