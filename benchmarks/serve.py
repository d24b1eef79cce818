"""`python -m benchmarks.serve`: a bundle over HTTP, as clients of TensorFlow Serving ask it.

`recsys serve` and its clients share this machine. Users are drawn at random, and what
they did is left out of their list. The lines of a round, for each `--items`:

- `recall`: share of the exact best items that are among the answers of 200 users;
- `p50`, `p99`: time of an answer where one client asks one user at a time [ms];
- `rate`: answers of one user a second, of `--clients` that ask at once; and in rows/s,
  with `--batch` users a request;
- `swap`: requests that failed while another version was swapped in `--swaps` times, and
  requests in all;
- `overload`: at five times the rate for `--overload-s`: answers other than 200, 429 and
  503; seconds until a single client is answered as before; memory after / before.
"""

from __future__ import annotations

import argparse
import shutil
import statistics
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.measure import print_line
from benchmarks.serve_case.recall import recall_of
from benchmarks.serve_case.server import Server, bundle_of, finished, publish, running

BENCH = "serve"
_OVER = 5
_ALLOWED = {"200", "429", "503"}


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = argparse.ArgumentParser(
        prog="python -m benchmarks.serve",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    add = parser.add_argument
    add("--items", type=int, nargs="+", default=[100_000])
    add("--users", type=int, default=10_000)
    add("--dim", type=int, default=64, help="width of the embeddings [floats]")
    add("--k", type=int, default=100, help="candidates of an answer")
    add("--clusters", type=int, default=0, help="of the items; 0: embeddings as drawn")
    add("--clients", type=int, default=8)
    add("--batch", type=int, default=64)
    add("--seconds", type=float, default=20.0, help="of each case")
    add("--runs", type=int, default=3)
    add("--swaps", type=int, default=0)
    add("--swap-requests", type=float, default=0.0, help="at the least while swapping")
    add("--overload-s", type=float, default=0.0)
    add("--bundle", type=Path, help="one that is there, made for --users and one of --items")
    return parser.parse_args(words)


def main(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    options = parse(words)
    for n_items in options.items:
        with tempfile.TemporaryDirectory() as folder:
            measure(options, n_items, Path(folder))


def measure(options: argparse.Namespace, n_items: int, folder: Path) -> None:
    """Measures one size."""
    case = f"items={n_items} dim={options.dim} k={options.k}"
    bundle = bundle_of(options, n_items, folder)
    served = folder / "serving"
    shutil.copytree(bundle, served / "world" / "1")
    bundle = served / "world" / "1"
    with running(served / "world") as server:
        server.wait_for(1)
        recall = recall_of(server.port, "world", bundle, options.users)
        _print(server, f"recall {case}", [recall], "share")
        rate = measure_answers(server, options, case)
        if options.swaps:
            measure_swaps(server, options, bundle, case)
        if options.overload_s:
            measure_overload(server, options, rate, case)


def measure_answers(server: Server, options: argparse.Namespace, case: str) -> float:
    """Prints times and rates; returns the requests of one user that are answered [1/s]."""
    asked = {"users": options.users, "seconds": options.seconds}
    server.client(**{**asked, "seconds": 3})  # The first answers are slow.
    one = [_whole(server.client(**asked)) for _ in range(options.runs)]
    for name, share in (("p50", 0.5), ("p99", 0.99)):
        values = [_quantile(found["times_ms"], share) for found in one]
        _print(server, f"{name} batch=1 clients=1 {case}", values, "ms")
    many = [_whole(server.client(**asked, clients=options.clients)) for _ in range(options.runs)]
    rates = [len(found["times_ms"]) / found["seconds"] for found in many]
    _print(server, f"rate batch=1 clients={options.clients} {case}", rates, "requests/s")
    values = [_quantile(found["times_ms"], 0.99) for found in many]
    _print(server, f"p99 batch=1 clients={options.clients} {case}", values, "ms")
    many = [
        _whole(server.client(**asked, clients=2, batch=options.batch)) for _ in range(options.runs)
    ]
    rows = [len(found["times_ms"]) * options.batch / found["seconds"] for found in many]
    _print(server, f"rate batch={options.batch} clients=2 {case}", rows, "rows/s")
    return statistics.median(rates)


def measure_swaps(server: Server, options: argparse.Namespace, bundle: Path, case: str) -> None:
    """Prints the requests that failed while versions were swapped."""
    founds: list[dict[str, Any]] = []
    version = 1
    while version <= options.swaps or _n_asked(founds) < options.swap_requests:
        client = server.start_client(users=options.users, clients=4, seconds=20)
        while client.poll() is None and version <= options.swaps:
            publish(bundle, server.folder, version + 1)
            server.wait_for(version + 1)
            version += 1
        founds.append(finished(client))
    n_failed = sum(_n_asked([one]) - len(one["times_ms"]) for one in founds)
    times = [_quantile(found["times_ms"], 0.99) for found in founds]
    _print(
        server,
        f"swap failed of {_n_asked(founds)} swaps={options.swaps} {case}",
        [n_failed],
        "requests",
    )
    _print(server, f"swap p99 {case}", times, "ms")


def measure_overload(server: Server, options: argparse.Namespace, rate: float, case: str) -> None:
    """Prints what comes back at five times the rate, and how it is afterwards."""
    before = server.rss_mib()
    found = server.client(
        users=options.users, clients=256, rate=_OVER * rate, seconds=options.overload_s
    )
    other = {key: n for key, n in found["statuses"].items() if key not in _ALLOWED}
    n_bad = sum(other.values()) + sum(found["errors"].values())
    case = f"rate={_OVER * rate:.0f}/s {case}"
    _print(server, f"overload neither 200, 429 nor 503 {case}", [n_bad], "requests")
    for status, n in sorted(found["statuses"].items()):
        _print(server, f"overload {status} {case}", [n / found["seconds"]], "requests/s")
    _print(server, f"overload p99 of 200 {case}", [_quantile(found["times_ms"], 0.99)], "ms")
    started = time.perf_counter()
    while _quantile(server.client(users=options.users, requests=50)["times_ms"], 0.5) > 3e3 / rate:
        pass
    _print(server, f"overload recovered after {case}", [time.perf_counter() - started], "s")
    _print(server, f"overload memory after/before {case}", [server.rss_mib() / before], "times")


def _n_asked(founds: Sequence[dict[str, Any]]) -> int:
    return sum(sum(one["statuses"].values()) + sum(one["errors"].values()) for one in founds)


def _whole(found: dict[str, Any]) -> dict[str, Any]:
    if set(found["statuses"]) != {"200"} or found["errors"]:
        raise RuntimeError(f"not all was answered: {found['statuses']} {found['errors']}")
    return found


def _quantile(values: Sequence[float], share: float) -> float:
    ordered = sorted(values) or [float("inf")]
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


def _print(server: Server, case: str, values: Sequence[float], unit: str) -> None:
    print_line(BENCH, case, values, unit, server.rss_mib("VmHWM"))


if __name__ == "__main__":
    main()
