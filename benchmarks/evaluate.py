"""`python -m benchmarks.evaluate`: all metrics of all users over a whole catalogue.

They are those of retrieval's `case`, at the cut-offs 1, 5, 10, 20, 50 and 100:
exact ranks of all positives, the best 100 of each user, and what is made of both. Beside
it, taking turns round after round:

- a plain product of two square float32 matrices by NumPy, before and after ours;
- `jax`: blocks of users × items by one matrix product each, and `top_k` (no ranks);
- `tfrs`: `FactorizedTopK` of TensorFlow Recommenders (hit rates alone), with candidates in
  batches of several sizes (128 is its tutorials') and all at once (`brute force`).

Peers evaluate `--peer-users` of the users, and we 8,192 before and after each of
them: neighbours on the cores come and go within a round. The lines: users/s of each, ours
also as GFLOP/s; `ours/matmul`, the share of the plain product's rate; `ours/jax` and
`ours/tfrs …`, how many times as many users/s; the memory that an evaluation of all users
took beyond the embeddings, first to last.
"""

from __future__ import annotations

import os

os.environ["KERAS_BACKEND"] = "jax"  # Before anything imports Keras.

import functools
import time
from collections import defaultdict
from collections.abc import Callable, Iterator
from enum import StrEnum
from typing import Annotated

import jax
import jax.numpy as jnp
import numpy as np
from typer import Option

from benchmarks.measure import forget_peak, peak_rss_mib, peer, print_line, run, watch
from benchmarks.peers.evaluate_case import KS, Data, draw
from recsys.config import EvaluateConfig
from recsys.metrics import Items
from recsys.ragged import RaggedRows
from recsys.tasks.retrieval.judging.case import Case
from recsys.tasks.retrieval.judging.queries import Queries
from recsys.tasks.retrieval.judging.scores import DotProducts

Peer = StrEnum("Peer", ["jax", "tfrs"])
_PEERS = [*Peer]
_TFRS_BATCHES = (128, 4096, 65536, 0)  # 0: all at once.
_SEEN, _TURN_USERS = 50, 8192
_UNITS = {"ours rate": "GFLOP/s", "matmul": "GFLOP/s", "ours/matmul": "share"}
_UNITS["ours memory beyond embeddings"] = "MiB"


def main(
    users: int = 100_000,
    items: int = 1_000_000,
    dim: Annotated[int, Option(help="Width of the embeddings [floats].")] = 64,
    positives: Annotated[int, Option(help="Of each user.")] = 1,
    runs: int = 3,
    peers: list[Peer] = _PEERS,
    peer_users: int = 512,
    matmul: Annotated[int, Option(help="Rows of the plain product.")] = 8192,
) -> None:
    """Measures all rounds and prints the lines."""
    case = {"users": users, "items": items, "dim": dim, "positives": positives}
    case |= {"seen": _SEEN, "seed": 0, "evaluated": peer_users}
    data = draw(**case)
    some, ours_beside = data.first(peer_users), data.first(_TURN_USERS)
    others: dict[str, Callable[[], float]] = {}
    if "jax" in peers:
        others["jax"] = functools.partial(jax_seconds, some)
    for batch in _TFRS_BATCHES if "tfrs" in peers else ():
        name = f"tfrs batch={batch}" if batch else "tfrs brute force"
        others[name] = functools.partial(tfrs_seconds, case, batch)
    rates: dict[str, list[float]] = defaultdict(list)
    for _ in range(runs):
        for name, rate in one_round(data, matmul):
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


def one_round(data: Data, n: int) -> Iterator[tuple[str, float]]:
    """Yields our figures by name, next to a product of `n` × `n` before and after."""
    plain = matmul_gflops(n)
    held = forget_peak()
    rate = users_per_second(data)
    yield "ours memory beyond embeddings", peak_rss_mib() - held
    plain = (plain + matmul_gflops(n)) / 2
    gflops = 2.0 * rate * data.items * data.query.shape[1] / 1e9
    yield from {"matmul": plain, "ours": rate}.items()
    yield from {"ours rate": gflops, "ours/matmul": gflops / plain}.items()


def matmul_gflops(n: int) -> float:
    """Returns the rate of a product of two `n` × `n` float32 matrices [GFLOP/s]."""
    matrix, started = np.full((n, n), 0.5, np.float32), time.perf_counter()
    np.matmul(matrix, matrix)
    return 2.0 * n**3 / (time.perf_counter() - started) / 1e9


def users_per_second(data: Data) -> float:
    """Returns the rate at which we find all metrics of `data` at all cut-offs."""
    started, users = time.perf_counter(), np.arange(len(data.query))
    positives, seen = (_ragged(rows) for rows in (data.positives, data.seen))
    is_item = np.arange(len(data.candidates)) > 0
    case = Case(
        queries=Queries(users, users.astype(np.int32), seen, positives),
        items=Items(data.counts, is_item, data.candidates),
        ks=KS,
        metrics=EvaluateConfig().metrics,
    )
    case.measure(DotProducts(data.query, data.candidates))
    return len(users) / (time.perf_counter() - started)


def _ragged(rows: np.ndarray) -> RaggedRows:
    n, width = rows.shape
    return RaggedRows(rows.reshape(-1), np.arange(n + 1, dtype=np.int64) * width)


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

    seconds = []
    for start in (0, *blocks):  # The first compiles.
        part, started = slice(start, start + size), time.perf_counter()
        np.asarray(top(data.query[part], data.seen[part], candidates, k=k))
        seconds.append(time.perf_counter() - started)
    return sum(seconds[1:]) * len(data.query) / (len(blocks) * size)


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
