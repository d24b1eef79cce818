"""`python -m benchmarks.evaluate`: all metrics of all users over a whole catalogue.

They are those of `recsys.evaluation.measurement`, at the cut-offs 1, 5, 10, 20, 50 and 100:
exact ranks of all positives, the best 100 of each user, and what is made of both. Beside
it, taking turns round after round:

- a plain product of two square float32 matrices by NumPy, before and after ours;
- `jax`: blocks of users × items by one matrix product each, and `top_k` (no ranks);
- `tfrs`: `FactorizedTopK` of TensorFlow Recommenders (hit rates alone), with candidates in
  batches of several sizes (128 is its tutorials') and all at once (`brute force`).

Peers evaluate `--peer-users` of the users, and we `--turn-users` before and after each of
them: neighbours on the cores come and go within a round. The lines: users/s of each, ours
also as GFLOP/s; `ours/matmul`, the share of the plain product's rate; `ours/jax` and
`ours/tfrs …`, how many times as many users/s; the memory that an evaluation of all users
took beyond the embeddings, first to last; and with `--devices`, whether all figures have
the bits of those on one device, by the kernel and by JAX alone, for `--peer-users`.
"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"  # Before anything imports Keras.

import functools
import hashlib
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated, Any

import jax
import jax.numpy as jnp
import numpy as np
from typer import Option

from benchmarks.measure import (
    call,
    forget_peak,
    peak_rss_mib,
    peer,
    print_line,
    run,
    simulated,
    watch,
)
from benchmarks.peers.evaluate_case import KS, Data, draw
from recsys.config import EvaluateConfig
from recsys.evaluation import measurement
from recsys.evaluation.queries import Queries
from recsys.evaluation.scores import DotProducts
from recsys.metrics.metric import Items
from recsys.ragged import RaggedRows

Peer = StrEnum("Peer", ["jax", "tfrs"])
_PEERS = [*Peer]
_TFRS_BATCHES = [128, 4096, 65536, 0]
_DEVICES = [8]
_UNITS = {"ours rate": "GFLOP/s", "matmul": "GFLOP/s", "ours/matmul": "share"}
_UNITS["ours memory beyond embeddings"] = "MiB"


def main(
    users: int = 100_000,
    items: int = 1_000_000,
    dim: Annotated[int, Option(help="Width of the embeddings [floats].")] = 64,
    positives: Annotated[int, Option(help="Of each user.")] = 1,
    seen: Annotated[int, Option(help="Items left out of each user's list.")] = 50,
    runs: int = 3,
    peers: list[Peer] = _PEERS,
    peer_users: int = 512,
    turn_users: Annotated[int, Option(help="Of ours, before and after each peer.")] = 8192,
    tfrs_batches: Annotated[list[int], Option(help="0: all.")] = _TFRS_BATCHES,
    devices: Annotated[list[int], Option(help="Simulated.")] = _DEVICES,
    matmul: Annotated[int, Option(help="Rows of the plain product.")] = 8192,
    seed: int = 0,
) -> None:
    """Measures all rounds and prints the lines."""
    case = {"users": users, "items": items, "dim": dim, "positives": positives}
    case |= {"seen": seen, "seed": seed, "evaluated": peer_users}
    data = draw(**case)
    some, ours_beside = data.first(peer_users), data.first(turn_users)
    others: dict[str, Callable[[], float]] = {}
    if "jax" in peers:
        others["jax"] = functools.partial(jax_seconds, some)
    for batch in tfrs_batches if "tfrs" in peers else ():
        name = f"tfrs batch={batch}" if batch else "tfrs brute force"
        others[name] = functools.partial(tfrs_seconds, case, batch)
    rates: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        for name, rate in one_round(data, ours_beside, matmul):
            rates[name].append(rate)
        before = users_per_second(ours_beside)
        for name, seconds in others.items():
            rate = len(some.query) / seconds()
            after = users_per_second(ours_beside)
            rates[name].append(rate)
            rates[f"ours/{name}"].append((before + after) / 2 / rate)
            before = after
    memory = rates["ours memory beyond embeddings"][0]
    for name, values in rates.items():
        unit = _UNITS.get(name, "times" if name.startswith("ours/") else "users/s")
        whose = some if name in others else data
        print_line("evaluate", f"{name} {whose}", values, unit, memory)
    for native, way in (("1", "kernel"), ("0", "jax alone")):
        expected = None
        for n in (1, *devices):
            environment = {**simulated(n), "RECSYS_NATIVE": native}
            digest = call(digest_of, environment, n_devices=n, **case).result
            expected = expected or digest
            if n > 1:
                same = [float(digest == expected)]
                print_line("evaluate", f"same bits devices={n}/1 {way} {some}", same, "share")


def one_round(data: Data, beside: Data, n: int) -> Iterator[tuple[str, float]]:
    """Yields our figures by name, next to a product of `n` × `n` before and after."""
    plain = matmul_gflops(n)
    seconds, mib = our_run(data)
    plain = (plain + matmul_gflops(n)) / 2
    gflops = 2.0 * len(data.query) * data.items * data.query.shape[1] / seconds / 1e9
    yield "matmul", plain
    yield "ours", len(data.query) / seconds
    yield "ours rate", gflops
    yield "ours/matmul", gflops / plain
    yield "ours memory beyond embeddings", mib


def matmul_gflops(n: int) -> float:
    """Returns the rate of a product of two `n` × `n` float32 matrices [GFLOP/s]."""
    matrix = np.full((n, n), 0.5, np.float32)
    started = time.perf_counter()
    np.matmul(matrix, matrix)
    return 2.0 * n**3 / (time.perf_counter() - started) / 1e9


# --- Ours.


def our_run(data: Data) -> tuple[float, float]:
    """Returns the time of an evaluation [s], and its memory beyond what was held [MiB]."""
    before, started = forget_peak(), time.perf_counter()
    evaluate(data)
    return time.perf_counter() - started, peak_rss_mib() - before


def users_per_second(data: Data) -> float:
    """Returns our rate."""
    return len(data.query) / our_run(data)[0]


def evaluate(data: Data) -> measurement.Measured:
    """Returns all metrics of `data` at all cut-offs."""
    users = np.arange(len(data.query))
    positives, seen = (_ragged(rows) for rows in (data.positives, data.seen))
    is_item = np.arange(len(data.candidates)) > 0
    case = measurement.Case(
        queries=Queries(users, users.astype(np.int32), seen, positives),
        items=Items(data.counts, is_item, data.candidates),
        ks=KS,
        metrics=EvaluateConfig().metrics,
    )
    return measurement.measure(DotProducts(data.query, data.candidates), case)


def _ragged(rows: np.ndarray) -> RaggedRows:
    n, width = rows.shape
    return RaggedRows(rows.reshape(-1), np.arange(n + 1, dtype=np.int64) * width)


def digest_of(n_devices: int, evaluated: int, **case: Any) -> str:
    """Returns a hash of every rank, list, score and metric of the first users."""
    if jax.device_count() != n_devices:
        raise RuntimeError(f"{jax.device_count()} devices in place of {n_devices}")
    measured = evaluate(draw(**case).first(evaluated))
    ranking = measured.ranking
    arrays = [ranking.ranks, ranking.n_ranked, ranking.top, ranking.top_scores]
    arrays += [measured.per_query[name] for name in sorted(measured.per_query)]
    arrays += [np.array([measured.totals[name]]) for name in sorted(measured.totals)]
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


# --- The usual way in JAX: a block of users' scores by one matrix product, then `top_k`.


_SCORES = 2**28
"""Scores of a block; of 16 to 512 users, 256 are the fastest over a million items."""


def jax_seconds(data: Data) -> float:
    """Returns the time that the lists of all users of `data` take [s], once compiled."""
    size = max(1, min(len(data.query), _SCORES // data.items))
    blocks = range(0, len(data.query) - size + 1, size)
    candidates = jnp.asarray(data.candidates)
    top = jax.jit(_top, static_argnames="k")
    k = min(max(KS), data.items)

    def run(start: int) -> np.ndarray:
        part = slice(start, start + size)
        return np.asarray(top(data.query[part], data.seen[part], candidates, k=k))

    run(0)
    started = time.perf_counter()
    for start in blocks:
        run(start)
    return (time.perf_counter() - started) * len(data.query) / (len(blocks) * size)


def _top(query: jax.Array, seen: jax.Array, candidates: jax.Array, k: int) -> jax.Array:
    scores = query @ candidates.T
    users = jnp.arange(query.shape[0])[:, None]
    scores = scores.at[users, seen].set(-jnp.inf).at[:, 0].set(-jnp.inf)
    return jax.lax.top_k(scores, k)[1]


def tfrs_seconds(case: dict[str, int], batch: int) -> float:
    """Returns the time that TFRS takes [s]; `batch`: candidates at a time, 0 for all."""
    few = {**case, "users": case["evaluated"]}
    return float(watch(peer("evaluate_tfrs", **few, batch=batch), memory=False).result["seconds"])


if __name__ == "__main__":
    run(main)
