"""`python -m benchmarks.softmax`: the sampled softmax with its gradients, three ways.

- `plain`: the formula as it is written, under `jax.value_and_grad`; it holds several
  arrays of batch × candidates, and is left out where one of them exceeds 1 GiB;
- `blocks`: `recsys.losses.sampled_softmax` without the C kernels;
- `native`: the same with them.

The candidates are the batch's items, drawn by Zipf's law from 100,000 (in a batch of 4096
two fifths of them are distinct, in one of 65,536 a sixth), and `--negatives` that are
drawn evenly; `--items distinct` gives every candidate an item of its own, the most work
there can be. `--known` is how many items each query is known to like.

They take turns, run by run, in one process. Per case: the time, the rate at which the
three products of batch × candidates × dim would be done if none were left out, and the
memory that the first run took beyond what was held before it; then the ratios to `plain`,
run by run.
"""

from __future__ import annotations

import argparse
import os
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any, NamedTuple
from unittest import mock

os.environ["KERAS_BACKEND"] = "jax"  # Before anything imports Keras.

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import (
    forget_peak,
    options_of,
    peak_rss_mib,
    print_line,
    ratios,
    zipf_batches,
)
from recsys import kernels
from recsys.losses import sampled_softmax
from recsys.losses.softmax_plain import plain_loss

BENCH = "softmax"
TEMPERATURE = 0.05
_ITEMS = 100_000
_PLAIN_BYTES = 2**30
_SECONDS = 60.0
_FEWEST = 3

Arrays = tuple[jax.Array, ...]
Run = Callable[[], Arrays]


class Case(NamedTuple):
    """What is measured.

    Attributes:
        batch: Queries.
        dim: Width of the embeddings [floats].
        known: Items that each query is known to like.
        negatives: Candidates beside the positives.
        items: `zipf`, or `distinct`.
    """

    batch: int
    dim: int = 64
    known: int = 0
    negatives: int = 0
    items: str = "zipf"

    @property
    def n_candidates(self) -> int:
        """Positives and negatives."""
        return self.batch + self.negatives

    def __str__(self) -> str:
        """Returns the case for people; what is usual is left out."""
        usual = self._field_defaults
        parts = [f"batch={self.batch}", f"dim={self.dim}"]
        parts += [
            f"{name}={getattr(self, name)}"
            for name in ("known", "negatives", "items")
            if getattr(self, name) != usual[name]
        ]
        return " ".join(parts)


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = options_of(BENCH, __doc__)
    parser.add_argument("--batch", type=int, nargs="+", default=[4096, 16384, 65536])
    parser.add_argument("--dim", type=int, default=64)
    parser.add_argument("--known", type=int, nargs="+", default=[0, 50])
    parser.add_argument("--negatives", type=int, default=0)
    parser.add_argument("--items", choices=["zipf", "distinct"], default="zipf")
    parser.add_argument("--runs", type=int, default=15, help="of each; fewer if they take minutes")
    parser.add_argument("--seed", type=int, default=0)
    return parser.parse_args(words)


def batch_of(case: Case, seed: int) -> Arrays:
    """Returns query, candidate, item_row, log_q and known, as `sampled_softmax` takes them."""
    rng = np.random.default_rng(seed)
    sizes = (case.batch, case.n_candidates)
    unit = [rng.normal(size=(size, case.dim)).astype(np.float32) for size in sizes]
    unit = [x / np.linalg.norm(x, axis=1, keepdims=True) for x in unit]
    log_q = np.log(rng.uniform(1e-6, 1e-2, case.n_candidates)).astype(np.float32)
    even = rng.integers(1, _ITEMS, case.negatives).astype(np.int32)
    item_row = np.concatenate([_zipf(case.batch, seed), even])
    if case.items == "distinct":
        item_row = rng.permutation(case.n_candidates).astype(np.int32) + 1
    known = _zipf(case.batch * case.known, seed + 1).reshape(case.batch, case.known)
    return tuple(jnp.asarray(x) for x in (*unit, item_row, log_q, known))


def _zipf(n: int, seed: int) -> np.ndarray:
    return zipf_batches(1, n, _ITEMS, seed)[0, 1].astype(np.int32)


def cases(arrays: Arrays) -> Iterator[tuple[str, Run]]:
    """Yields the ways by name, each compiled: loss, and gradients to query and candidate.

    The one that takes least memory comes first: what an earlier one has freed, but the
    allocator still holds, can't be told from what a later one takes.
    """
    n_queries, n_candidates = arrays[0].shape[0], arrays[1].shape[0]
    shares = jnp.full((n_queries,), 1 / n_queries)

    def plain(query: Any, candidate: Any, item_row: Any, log_q: Any, known: Any) -> Any:
        return plain_loss(query, candidate, item_row, log_q, TEMPERATURE, shares, known)

    def ours(query: Any, candidate: Any, item_row: Any, log_q: Any, known: Any) -> Any:
        return sampled_softmax(query, candidate, item_row, log_q, TEMPERATURE, known=known)

    switches = {"native": "1", "blocks": "0"} if kernels.available() else {"blocks": "0"}
    for name, switch in switches.items():
        with mock.patch.dict(os.environ, RECSYS_NATIVE=switch):
            yield name, _compiled(ours, arrays)
    if n_queries * n_candidates * 4 <= _PLAIN_BYTES:
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
    before = forget_peak()
    jax.block_until_ready(run())
    return peak_rss_mib() - before


def compare(case: Case, runs: int, seed: int) -> None:
    """Measures all ways of one case, and prints the lines."""
    ways = dict(cases(batch_of(case, seed)))
    memory = {name: first_run_mib(run) for name, run in ways.items()}
    times: dict[str, list[float]] = {name: [] for name in ways}
    started = time.perf_counter()
    for done in range(runs):
        if done >= _FEWEST and time.perf_counter() - started > _SECONDS:
            break
        for name, run in ways.items():
            times[name].append(measure(run))
    flop = 3 * 2 * case.batch * case.n_candidates * case.dim
    for name, ms in times.items():
        print_line(BENCH, f"{name} {case}", ms, "ms", memory[name])
        rates = [flop / t / 1e6 for t in ms]
        print_line(BENCH, f"{name} {case}", rates, "GFLOP/s", memory[name])
    for name in [name for name in times if "plain" in times and name != "plain"]:
        over = ratios(times[name], times["plain"])
        print_line(BENCH, f"{name}/plain {case}", over, "times", memory[name])


def main(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    options = parse(words)
    for batch in options.batch:
        for known in options.known:
            case = Case(batch, options.dim, known, options.negatives, options.items)
            compare(case, options.runs, options.seed)


if __name__ == "__main__":
    main()
