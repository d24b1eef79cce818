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

import argparse
import dataclasses
import functools
import os
import time
from collections import defaultdict
from collections.abc import Callable, Iterator, Sequence
from pathlib import Path

os.environ["KERAS_BACKEND"] = "jax"  # Before anything imports Keras.

import numpy as np

from benchmarks.evaluate_case import blocked_jax, children, ours
from benchmarks.evaluate_case.case import Case, Data, draw
from benchmarks.measure import print_line
from benchmarks.two_tower_step.clock import peak_rss_mib

BENCH = "evaluate"
PEERS = ("jax", "tfrs")
_TFRS_BATCHES = [128, 4096, 65536, 0]

Rates = dict[str, list[float]]
Run = Callable[[], float]


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.evaluate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
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
    # 5 sets the peak back to what is held now (man 5 proc).
    Path("/proc/self/clear_refs").write_text("5")
    before, started = peak_rss_mib(), time.perf_counter()
    ours.evaluate(case, data)
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
    for name, run in peers(some, data, options):
        rate = some.users / run()
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
        yield "jax", lambda: blocked_jax.seconds(case, data.first(case.users))
    for batch in options.tfrs_batches if "tfrs" in options.peers else ():
        name = f"tfrs batch={batch}" if batch else "tfrs brute force"
        yield name, functools.partial(children.tfrs_seconds, case, batch)


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
        expected = children.our_digest(case, 1, way == "kernel")
        for n in devices:
            same = children.our_digest(case, n, way == "kernel") == expected
            print_line(BENCH, f"same bits devices={n}/1 {way} {case}", [float(same)], "share", 0)


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


if __name__ == "__main__":
    main()
