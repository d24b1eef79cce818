"""`python -m benchmarks.softmax`: the sampled softmax with its gradients, three ways.

- `plain`: the formula as it is written, under `jax.value_and_grad`; it holds several
  arrays of batch × batch, and is left out where one of them exceeds 1 GiB;
- `blocks`: `recsys.losses.sampled_softmax` without the C kernels;
- `native`: the same with them.

They take turns, run by run, in one process. Per case: the time, the rate at which the
three products of batch × batch × dim are done, and the memory that the first run took
beyond what was held before it; then the ratios to `plain`, run by run.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path
from typing import Any
from unittest import mock

os.environ["KERAS_BACKEND"] = "jax"  # Before anything imports Keras.

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import print_line
from benchmarks.two_tower_step.clock import peak_rss_mib
from benchmarks.two_tower_step.ids import zipf_batches
from recsys import native
from recsys.losses import plain_loss, sampled_softmax

BENCH = "softmax"
TEMPERATURE = 0.05
_ITEMS = 100_000
_PLAIN_BYTES = 2**30
_SECONDS = 60.0
_FEWEST = 3

Arrays = tuple[jax.Array, ...]
Run = Callable[[], Arrays]


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.softmax",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--batch", type=int, nargs="+", default=[4096, 16384, 65536])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--runs", type=int, default=15, help="of each; fewer if they take minutes")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


def batch_of(batch: int, dim: int, seed: int) -> Arrays:
    """Returns unit vectors `[batch, dim]` twice, zipf item rows and log_q `[batch]`."""
    rng = np.random.default_rng(seed)
    query, candidate = rng.normal(size=(2, batch, dim)).astype(np.float32)
    item_row = zipf_batches(1, batch, _ITEMS, seed)[0, 1]
    log_q = np.log(rng.uniform(1e-6, 1e-2, batch)).astype(np.float32)
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in (query, candidate)]
    return tuple(jnp.asarray(x) for x in (*unit, item_row, log_q))


def cases(arrays: Arrays) -> Iterator[tuple[str, Run]]:
    """Yields the ways by name, each compiled: loss, and gradients to query and candidate.

    The one that takes least memory comes first: what an earlier one has freed, but the
    allocator still holds, can't be told from what a later one takes.
    """
    batch = arrays[0].shape[0]
    shares = jnp.full((batch,), 1 / batch)

    def plain(query: Any, candidate: Any, item_row: Any, log_q: Any) -> Any:
        return plain_loss(query, candidate, item_row, log_q, TEMPERATURE, shares)

    def ours(query: Any, candidate: Any, item_row: Any, log_q: Any) -> Any:
        return sampled_softmax(query, candidate, item_row, log_q, TEMPERATURE)

    switches = {"native": "1", "blocks": "0"} if native.available() else {"blocks": "0"}
    for name, switch in switches.items():
        with mock.patch.dict(os.environ, RECSYS_NATIVE=switch):
            yield name, _compiled(ours, arrays)
    if batch * batch * 4 <= _PLAIN_BYTES:
        yield "plain", _compiled(plain, arrays)


def _compiled(loss: Callable[..., Any], arrays: Arrays) -> Run:
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*arrays).compile()
    return lambda: compiled(*arrays)


def measure(run: Run) -> float:
    """Returns the time of a run [ms]."""
    started = time.perf_counter()
    jax.block_until_ready(run())
    return (time.perf_counter() - started) * 1000


def first_run_mib(run: Run) -> float:
    """Returns the memory that a run takes beyond what is held before it [MiB]."""
    # 5 sets the peak back to what is held now (man 5 proc).
    Path("/proc/self/clear_refs").write_text("5")
    before = peak_rss_mib()
    jax.block_until_ready(run())
    return peak_rss_mib() - before


def compare(batch: int, dim: int, runs: int, seed: int) -> None:
    """Measures all ways at one size, and prints the lines."""
    ways = dict(cases(batch_of(batch, dim, seed)))
    memory = {name: first_run_mib(run) for name, run in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    for done in range(runs):
        if done >= _FEWEST and time.perf_counter() - started > _SECONDS:
            break
        for name, run in ways.items():
            times[name].append(measure(run))
    flop = 3 * 2 * batch * batch * dim
    for name, ms in times.items():
        case = f"{name} batch={batch} dim={dim}"
        print_line(BENCH, case, ms, "ms", memory[name])
        print_line(BENCH, case, [flop / t / 1e6 for t in ms], "GFLOP/s", memory[name])
    for name in [name for name in times if "plain" in times and name != "plain"]:
        ratios = [a / b for a, b in zip(times[name], times["plain"], strict=True)]
        print_line(BENCH, f"{name}/plain batch={batch} dim={dim}", ratios, "times", memory[name])


def main(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    options = parse(words)
    for batch in options.batch:
        compare(batch, options.dim, options.runs, options.seed)


if __name__ == "__main__":
    main()
