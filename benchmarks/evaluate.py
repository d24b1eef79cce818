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

import argparse
import dataclasses
import functools
import hashlib
import json
import subprocess
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import jax
import jax.numpy as jnp
import numpy as np

from benchmarks.measure import (
    forget_peak,
    last_line,
    module,
    options_of,
    peak_rss_mib,
    peer,
    print_line,
    python_path,
    run,
    simulated,
)
from benchmarks.peers.evaluate_case import Case, Data, draw
from recsys.config import EvaluateConfig
from recsys.evaluation import measurement
from recsys.evaluation.queries import Queries
from recsys.evaluation.scores import DotProducts
from recsys.metrics.metric import Items
from recsys.ragged import RaggedRows

BENCH = "evaluate"
PEERS = ("jax", "tfrs")
_TFRS_BATCHES = [128, 4096, 65536, 0]

Rates = dict[str, list[float]]
Run = Callable[[], float]


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = options_of("evaluate", __doc__)
    add = parser.add_argument
    add("--users", type=int, default=100_000)
    add("--items", type=int, default=1_000_000)
    add("--dim", type=int, default=64, help="width of the embeddings [floats]")
    add("--positives", type=int, default=1, help="of each user")
    add("--seen", type=int, default=50, help="items left out of each user's list")
    add("--runs", type=int, default=3)
    add("--peers", nargs="*", choices=PEERS, default=list(PEERS))
    add("--peer-users", type=int, default=512)
    add("--turn-users", type=int, default=8192, help="of ours, before and after each peer")
    add("--tfrs-batches", type=int, nargs="+", default=_TFRS_BATCHES, metavar="N", help="0: all")
    add("--devices", type=int, nargs="*", default=[8], metavar="N", help="simulated")
    add("--matmul", type=int, default=8192, metavar="N", help="rows of the plain product")
    add("--seed", type=int, default=0)
    return parser.parse_args(words)


def matmul_gflops(n: int) -> float:
    """Returns the rate of a product of two `n` × `n` float32 matrices [GFLOP/s]."""
    matrix = np.full((n, n), 0.5, np.float32)
    started = time.perf_counter()
    np.matmul(matrix, matrix)
    return 2.0 * n**3 / (time.perf_counter() - started) / 1e9


def our_run(case: Case, data: Data) -> tuple[float, float]:
    """Returns the time of an evaluation [s], and its memory beyond what was held [MiB]."""
    before, started = forget_peak(), time.perf_counter()
    evaluate(case, data)
    return time.perf_counter() - started, peak_rss_mib() - before


def one_round(case: Case, data: Data, options: argparse.Namespace, rates: Rates) -> None:
    """Measures everything once, and adds what it finds to `rates`."""
    plain = matmul_gflops(options.matmul)
    seconds, mib = our_run(case, data)
    plain = (plain + matmul_gflops(options.matmul)) / 2
    gflops = case.flop / seconds / 1e9
    rates["matmul"].append(plain)
    rates["ours"].append(case.users / seconds)
    rates["ours rate"].append(gflops)
    rates["ours/matmul"].append(gflops / plain)
    rates["memory"].append(mib)
    beside, some = (of_fewer(case, n) for n in (options.turn_users, options.peer_users))
    before = users_per_second(beside, data)
    for name, timed in peers(some, data, options):
        rate = some.users / timed()
        after = users_per_second(beside, data)
        rates[name].append(rate)
        rates[f"ours/{name}"].append((before + after) / 2 / rate)
        before = after


def of_fewer(case: Case, users: int) -> Case:
    """Returns the case of the first `users`."""
    return dataclasses.replace(case, users=min(case.users, users))


def users_per_second(case: Case, data: Data) -> float:
    """Returns our rate for the first users."""
    return case.users / our_run(case, data.first(case.users))[0]


def peers(case: Case, data: Data, options: argparse.Namespace) -> Iterator[tuple[str, Run]]:
    """Yields what is compared with ours by name: a function that returns its time [s]."""
    if "jax" in options.peers:
        yield "jax", lambda: jax_seconds(case, data.first(case.users))
    for batch in options.tfrs_batches if "tfrs" in options.peers else ():
        name = f"tfrs batch={batch}" if batch else "tfrs brute force"
        yield name, functools.partial(tfrs_seconds, case, batch)


def print_rates(case: Case, some: Case, rates: Rates) -> None:
    """Prints the lines of all rounds; peers were measured with `some` users."""
    units = {"ours rate": "GFLOP/s", "matmul": "GFLOP/s", "ours/matmul": "share", "memory": "MiB"}
    names = {"memory": "ours memory beyond embeddings"}
    for name, values in rates.items():
        unit = units.get(name, "times" if name.startswith("ours/") else "users/s")
        whose = some if name.startswith(PEERS) else case
        print_line(BENCH, f"{names.get(name, name)} {whose}", values, unit, rates["memory"][0])


def print_devices(case: Case, devices: Sequence[int]) -> None:
    """Prints whether so many devices find, to the last bit, what one finds."""
    for way in ("kernel", "jax alone") if devices else ():
        expected = our_digest(case, 1, way == "kernel")
        for n in devices:
            same = our_digest(case, n, way == "kernel") == expected
            print_line(BENCH, f"same bits devices={n}/1 {way} {case}", [float(same)], "share")


def main(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    options = parse(words)
    case = Case(
        options.users, options.items, options.dim, options.positives, options.seen,
        seed=options.seed,
    )  # fmt: skip
    some, data = of_fewer(case, options.peer_users), draw(case)
    rates: Rates = defaultdict(list)
    for _ in range(options.runs):
        one_round(case, data, options, rates)
    print_rates(case, some, rates)
    print_devices(some, options.devices)


# --- We evaluate the case; as a program: a digest of what we find, on whatever devices there are.


def evaluate(case: Case, data: Data) -> measurement.Measured:
    """Returns all metrics of `data` at all cut-offs."""
    users = np.arange(len(data.query))
    positives, seen = (_ragged(rows) for rows in (data.positives, data.seen))
    is_item = np.arange(len(data.candidates)) > 0
    asked = measurement.Case(
        queries=Queries(users, users.astype(np.int32), seen, positives),
        items=Items(data.counts, is_item, data.candidates),
        ks=case.ks,
        metrics=EvaluateConfig().metrics,
    )
    return measurement.measure(DotProducts(data.query, data.candidates), asked)


def _ragged(rows: np.ndarray) -> RaggedRows:
    n, width = rows.shape
    return RaggedRows(rows.reshape(-1), np.arange(n + 1, dtype=np.int64) * width)


def digest(found: measurement.Measured) -> str:
    """Returns a hash of every rank, list, score and metric, to the last bit."""
    ranking = found.ranking
    arrays = [ranking.ranks, ranking.n_ranked, ranking.top, ranking.top_scores]
    arrays += [found.per_query[name] for name in sorted(found.per_query)]
    arrays += [np.array([found.totals[name]]) for name in sorted(found.totals)]
    sha = hashlib.sha256()
    for array in arrays:
        sha.update(np.ascontiguousarray(array).tobytes())
    return sha.hexdigest()


def print_digest() -> None:
    """Evaluates the case that the command line names."""
    import jax

    case = Case.from_command()
    found = digest(evaluate(case, draw(case)))
    print(json.dumps({"devices": jax.device_count(), "digest": found}))


# --- The usual way in JAX: a block of users' scores by one matrix product, then `top_k`.


_SCORES = 2**28
"""Scores of a block; of 16 to 512 users, 256 are the fastest over a million items."""


def jax_seconds(case: Case, data: Data) -> float:
    """Returns the time that the lists of all users of `data` take [s], once compiled."""
    size = max(1, min(len(data.query), _SCORES // case.items))
    blocks = range(0, len(data.query) - size + 1, size)
    candidates = jnp.asarray(data.candidates)
    top = jax.jit(_top, static_argnames="k")
    k = min(max(case.ks), case.items)

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


# --- Starts processes: peers in environments of their own, and ours on several devices.


_TIMEOUT_S = 3600


def tfrs_seconds(case: Case, batch: int) -> float:
    """Returns the time that TFRS takes for the case [s].

    Args:
        case: What to measure.
        batch: Candidates of a batch; 0: all of them at once (`BruteForce`).

    Raises:
        subprocess.CalledProcessError: The process failed; what it said is in `stderr`.
    """
    return float(_run([*peer("evaluate_tfrs"), case.to_json(), str(batch)], {})["seconds"])


def our_digest(case: Case, devices: int, is_native: bool) -> str:
    """Returns a hash of all that we find, on so many simulated devices.

    Args:
        case: What to evaluate.
        devices: Simulated devices.
        is_native: Whether by the C kernel, else by JAX alone.

    Raises:
        subprocess.CalledProcessError: The process failed; what it said is in `stderr`.
    """
    environment = {**simulated(devices), "JAX_PLATFORMS": "cpu"}
    environment["RECSYS_NATIVE"] = "1" if is_native else "0"
    found = _run(module("benchmarks.evaluate", "digest", case.to_json()), environment)
    if found["devices"] != devices:
        raise RuntimeError(f"{found['devices']} devices in place of {devices}")
    return str(found["digest"])


def _run(command: list[str], environment: dict[str, str]) -> dict[str, Any]:
    done = subprocess.run(
        command,
        env={**os.environ, "PYTHONPATH": python_path(), **environment},
        capture_output=True,
        text=True,
        check=True,
        timeout=_TIMEOUT_S,
    )
    return last_line(done.stdout)


if __name__ == "__main__":
    run(main, digest=print_digest)
