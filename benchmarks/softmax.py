"""`python -m benchmarks.softmax`: the sampled softmax with its gradients, three ways.

- `plain`: the formula as it is written, under `jax.value_and_grad`; it holds several
  arrays of batch × candidates, and is left out where one of them exceeds 1 GiB;
- `blocks`: `recsys.losses.SampledSoftmax` without the C kernels;
- `native`: the same with them.

The candidates are the batch's items, drawn by Zipf's law from 100,000 (in a batch of 4096
two fifths of them are distinct, in one of 65,536 a sixth), and `--negatives` others, drawn
evenly. `--known` is how many items each query is known to like.

They take turns, run by run, in one process. Per case: the time, and the memory that the
first run took beyond what was held before it; then the ratios to `plain`, run by run.
"""

from __future__ import annotations

import functools
import itertools
import json
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

from benchmarks.measure import (
    forget_peak,
    in_turns,
    peak_rss_mib,
    print_line,
    ratios,
    run,
    zipf_batches,
)
from recsys import kernels, registry
from recsys.losses import Loss

TEMPERATURE = 0.05
_ITEMS = 100_000
_PLAIN_BYTES = 2**30
_BATCHES = [4096, 16384, 65536]
_KNOWN = [0, 50]
_LOSSES = ["sampled_softmax"]

Arrays = tuple[jax.Array, ...]
Run = Callable[[], Any]


def main(
    batch: list[int] = _BATCHES,
    negatives: Annotated[int, Option(help="Candidates beside the batch's own.")] = 0,
    dim: Annotated[int, Option(help="Width of the embeddings [floats].")] = 64,
    known: list[int] = _KNOWN,
    loss: Annotated[list[str], Option(help="Names of losses, or JSON with options.")] = _LOSSES,
    runs: int = 15,
) -> None:
    """Measures all ways of each case, and prints the lines."""
    losses = {text: _read(text) for text in loss}
    for n, n_known in itertools.product(batch, known):
        case = f"batch={n} dim={dim}"
        case += f" negatives={negatives}" if negatives else ""
        case += f" known={n_known}" if n_known else ""
        compare(case, batch_of(n, dim, n_known, negatives), runs, losses)


def _read(text: str) -> Loss:
    return registry.Choice("loss").read(json.loads(text) if text.startswith("{") else text)


def batch_of(batch: int, dim: int, n_known: int, negatives: int) -> Arrays:
    """Returns query, candidate, item_row, log_q and known, as losses take them."""
    rng = np.random.default_rng(0)
    n_candidates = batch + negatives
    unit = rng.normal(size=(batch + n_candidates, dim)).astype(np.float32)
    unit /= np.linalg.norm(unit, axis=1, keepdims=True)
    log_q = np.log(rng.uniform(1e-6, 1e-2, n_candidates)).astype(np.float32)
    drawn = rng.integers(1, _ITEMS, negatives).astype(np.int32)
    item_row = np.concatenate([_zipf(batch, 0), drawn])
    known = _zipf(batch * n_known, 1).reshape(batch, n_known)
    arrays = (unit[:batch], unit[batch:], item_row, log_q, known)
    return tuple(jnp.asarray(x) for x in arrays)


def _zipf(n: int, seed: int) -> np.ndarray:
    return zipf_batches(1, n, _ITEMS, seed)[0, 1]


def ways(arrays: Arrays, loss: Loss) -> Iterator[tuple[str, Run]]:
    """Yields the ways by name, each compiled: loss, and gradients to query and candidate.

    The one that takes least memory comes first: memory that an earlier one has freed, but the
    allocator still holds, can't be distinguished from memory of a later one.
    """

    def ours(query: Any, candidate: Any, item_row: Any, log_q: Any, known: Any) -> Any:
        more = {"item_row": item_row, "log_q": log_q, "known": known}
        return loss(query, candidate, temperature=TEMPERATURE, **more)

    switches = {"native": "1", "blocks": "0"} if kernels.available() else {"blocks": "0"}
    for name, switch in switches.items():
        with mock.patch.dict(os.environ, RECSYS_NATIVE=switch):
            yield name, _compiled(ours, arrays)
    if len(arrays[0]) * len(arrays[1]) * 4 <= _PLAIN_BYTES:
        with mock.patch("recsys.losses.softmax_jax.can_sweep", return_value=False):
            yield "plain", _compiled(ours, arrays)


def _compiled(loss: Callable[..., Any], arrays: Arrays) -> Run:
    compiled = jax.jit(jax.value_and_grad(loss, argnums=(0, 1))).lower(*arrays).compile()
    return lambda: jax.block_until_ready(compiled(*arrays))


def compare(case: str, arrays: Arrays, runs: int, losses: dict[str, Loss]) -> None:
    """Measures all ways of one case, and prints the lines."""
    first, *others = losses
    compiled = {
        name if title == first else f"{title}/{name}": way
        for title, loss in losses.items()
        for name, way in ways(arrays, loss)
    }
    memory: dict[str, float] = {}
    for name, way in compiled.items():
        before = forget_peak()
        way()
        memory[name] = peak_rss_mib() - before
    times = in_turns({name: functools.partial(_ms, way) for name, way in compiled.items()}, runs)
    for name, ms in times.items():
        print_line("softmax", f"{name} {case}", ms, "ms", memory[name])
    for name in [name for name in ("native", "blocks") if {name, "plain"} <= {*times}]:
        over = ratios(times[name], times["plain"])
        print_line("softmax", f"{name}/plain {case}", over, "times", memory[name])
    for title, name in itertools.product(others, ("native", "blocks", "plain")):
        if name in times:
            other = f"{title}/{name}"
            over = ratios(times[other], times[name])
            print_line("softmax", f"{other}/{first} {case}", over, "times", memory[other])


def _ms(way: Run) -> float:
    started = time.perf_counter()
    way()
    return (time.perf_counter() - started) * 1000


if __name__ == "__main__":
    run(main)
