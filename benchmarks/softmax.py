"""`python -m benchmarks.softmax`: the sampled softmax with its gradients, three ways.

- `plain`: the formula as it is written, under `jax.value_and_grad`; it holds several
  arrays of batch × candidates, and is left out where one of them exceeds 1 GiB;
- `blocks`: `recsys.losses.sampled_softmax` without the C kernels;
- `native`: the same with them.

The candidates are the batch's items, drawn by Zipf's law from 100,000 (in a batch of 4096
two fifths of them are distinct, in one of 65,536 a sixth). `--known` is how many items each
query is known to like.

They take turns, run by run, in one process. Per case: the time, the rate at which the
three products of batch × candidates × dim would be done if none were left out, and the
memory that the first run took beyond what was held before it; then the ratios to `plain`,
run by run.
"""

from __future__ import annotations

import itertools
import os
import time
from collections.abc import Callable, Iterator
from typing import Annotated, Any
from unittest import mock

os.environ["KERAS_BACKEND"] = "jax"  # Before anything imports Keras.

import jax
import jax.numpy as jnp
import numpy as np
from typer import Option

from benchmarks.measure import forget_peak, peak_rss_mib, print_line, ratios, run, zipf_batches
from recsys import kernels
from recsys.losses import sampled_softmax
from recsys.losses.softmax_plain import plain_loss

TEMPERATURE = 0.05
_ITEMS = 100_000
_PLAIN_BYTES = 2**30
_SECONDS = 60.0
_FEWEST = 3
_BATCHES = [4096, 16384, 65536]
_KNOWN = [0, 50]

Arrays = tuple[jax.Array, ...]
Run = Callable[[], Any]


def main(
    batch: list[int] = _BATCHES,
    dim: int = 64,
    known: list[int] = _KNOWN,
    runs: Annotated[int, Option(help="Of each; fewer if they take minutes.")] = 15,
    seed: int = 0,
) -> None:
    """Measures all ways of each case, and prints the lines."""
    for n, n_known in itertools.product(batch, known):
        case = f"batch={n} dim={dim}"
        case += f" known={n_known}" if n_known else ""
        compare(case, 3 * 2 * n * n * dim, batch_of(n, dim, n_known, seed), runs)


def batch_of(batch: int, dim: int, n_known: int, seed: int) -> Arrays:
    """Returns query, candidate, item_row, log_q and known, as `sampled_softmax` takes them."""
    rng = np.random.default_rng(seed)
    unit = rng.normal(size=(2, batch, dim)).astype(np.float32)
    unit /= np.linalg.norm(unit, axis=2, keepdims=True)
    log_q = np.log(rng.uniform(1e-6, 1e-2, batch)).astype(np.float32)
    item_row = _zipf(batch, seed)
    known = _zipf(batch * n_known, seed + 1).reshape(batch, n_known)
    return tuple(jnp.asarray(x) for x in (*unit, item_row, log_q, known))


def _zipf(n: int, seed: int) -> np.ndarray:
    return zipf_batches(1, n, _ITEMS, seed)[0, 1]


def ways(arrays: Arrays) -> Iterator[tuple[str, Run]]:
    """Yields the ways by name, each compiled: loss, and gradients to query and candidate.

    The one that takes least memory comes first: what an earlier one has freed, but the
    allocator still holds, can't be told from what a later one takes.
    """
    n = arrays[0].shape[0]
    shares = jnp.full((n,), 1 / n)

    def plain(query: Any, candidate: Any, item_row: Any, log_q: Any, known: Any) -> Any:
        return plain_loss(query, candidate, item_row, log_q, TEMPERATURE, shares, known)

    def ours(query: Any, candidate: Any, item_row: Any, log_q: Any, known: Any) -> Any:
        return sampled_softmax(query, candidate, item_row, log_q, TEMPERATURE, known=known)

    switches = {"native": "1", "blocks": "0"} if kernels.available() else {"blocks": "0"}
    for name, switch in switches.items():
        with mock.patch.dict(os.environ, RECSYS_NATIVE=switch):
            yield name, _compiled(ours, arrays)
    if n * n * 4 <= _PLAIN_BYTES:
        yield "plain", _compiled(plain, arrays)


def _compiled(loss: Callable[..., Any], arrays: Arrays) -> Run:
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*arrays).compile()
    return lambda: jax.block_until_ready(compiled(*arrays))


def compare(case: str, flop: int, arrays: Arrays, runs: int) -> None:
    """Measures all ways of one case, and prints the lines."""
    compiled = dict(ways(arrays))
    memory: dict[str, float] = {}
    for name, way in compiled.items():
        before = forget_peak()
        way()
        memory[name] = peak_rss_mib() - before
    times: dict[str, list[float]] = {name: [] for name in compiled}
    began = time.perf_counter()
    for done in range(runs):
        if done >= _FEWEST and time.perf_counter() - began > _SECONDS:
            break
        for name, way in compiled.items():
            started = time.perf_counter()
            way()
            times[name].append((time.perf_counter() - started) * 1000)
    for name, ms in times.items():
        print_line("softmax", f"{name} {case}", ms, "ms", memory[name])
        rates = [flop / t / 1e6 for t in ms]
        print_line("softmax", f"{name} {case}", rates, "GFLOP/s", memory[name])
    for name in [name for name in times if "plain" in times and name != "plain"]:
        over = ratios(times[name], times["plain"])
        print_line("softmax", f"{name}/plain {case}", over, "times", memory[name])


if __name__ == "__main__":
    run(main)
