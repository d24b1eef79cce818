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
import asyncio
import collections
import contextlib
import json
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow.parquet as pq

from benchmarks.measure import last_line, memory_mib, module, options_of, print_line, run, words_of

BENCH = "serve"
_OVER = 5
_ALLOWED = {"200", "429", "503"}


def parse(words: Sequence[str] | None = None) -> argparse.Namespace:
    """Returns the options of a command line."""
    parser = options_of("serve", __doc__)
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


# --- A `recsys serve` as a process, and what is asked of it and of its folder.


_START_S = 600.0


class Server:
    """A server that runs.

    Args:
        folder: Serving folder.
        process: The process.
        port: Its port.
    """

    def __init__(self, folder: Path, process: subprocess.Popen[str], port: int) -> None:
        self.folder, self.process, self.port = folder, process, port

    def version(self) -> int | None:
        """Returns the newest version that is served; None before there is one."""
        try:
            url = f"http://127.0.0.1:{self.port}/healthz"
            with urllib.request.urlopen(url, timeout=60) as page:
                return int(json.load(page)["version"])
        except urllib.error.HTTPError:
            return None

    def wait_for(self, version: int) -> None:
        """Waits until a version is served."""
        end = time.monotonic() + _START_S
        while self.version() != version:
            if time.monotonic() > end or self.process.poll() is not None:
                raise RuntimeError(f"version {version} was never served")
            time.sleep(0.05)

    def rss_mib(self, what: str = "VmRSS") -> float:
        """Returns its memory now, or with `VmHWM` at the most [MiB]."""
        return memory_mib(f"{self.process.pid}/status", what)

    def client(self, **options: Any) -> dict[str, Any]:
        """Runs a client to its end, and returns what it found."""
        return finished(self.start_client(**options))

    def start_client(self, **options: Any) -> subprocess.Popen[str]:
        """Starts a client."""
        command = module("benchmarks.serve", "client", *words_of(port=self.port, **options))
        return subprocess.Popen(command, stdout=subprocess.PIPE, text=True)


def finished(client: subprocess.Popen[str]) -> dict[str, Any]:
    """Returns what a client found, once it has ended."""
    said, _ = client.communicate()
    if client.returncode:
        raise RuntimeError(f"the client ended with {client.returncode}")
    return last_line(said)


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Serves a folder; ends it by SIGTERM, and fails if that wasn't in peace."""
    command = module("recsys", "serve", "--model-dir", folder)
    process = subprocess.Popen(
        [*command, "--port", "0", "--json"], stdout=subprocess.PIPE, text=True
    )
    try:
        url = json.loads((process.stdout or sys.stdin).readline())["url"]
        yield Server(folder, process, int(url.rpartition(":")[2]))
        process.terminate()
        if process.wait(120):
            raise RuntimeError(f"the server ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


def make_world(out: Path, **sizes: int) -> None:
    """Writes a bundle, in a process of its own."""
    command = module("benchmarks.worlds", *words_of(**sizes, out=out))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(out.parent / f"{out.name}.work")


def bundle_of(options: argparse.Namespace, n_items: int, folder: Path) -> Path:
    """Returns the bundle that a benchmark was given, or one made for it in `folder`."""
    if options.bundle is not None:
        return Path(options.bundle)
    sizes = {"users": options.users, "items": n_items, "dim": options.dim, "k": options.k}
    make_world(folder / "bundle", **sizes, clusters=options.clusters)
    return folder / "bundle"


def publish(bundle: Path, folder: Path, version: int) -> None:
    """Makes hard links of a bundle a version: the same content under another number."""
    hidden = folder / f".publish-{version}"
    shutil.copytree(bundle, hidden, copy_function=os.link)
    hidden.rename(folder / str(version))


# --- How much of the exact best a server answers with.


_USERS = 200


def recall_of(port: int, name: str, bundle: Path, n_users: int) -> float:
    """Returns the share of the exact best items that are among the answers [0..1].

    The exact ones are reckoned here, from the embeddings that the server gives of its
    queries and those of the bundle's items, without what the users did.

    Args:
        port: Of the server.
        name: Of the model.
        bundle: What is served.
        n_users: Users that there are, `u1`, `u2`, …
    """
    users = [f"u{n}" for n in range(1, min(n_users, _USERS) + 1)]
    stored = {"user_id": users, "history": [[""]] * len(users)}
    query = np.array(_ask(port, name, "embed_query", stored), np.float32)
    wish = {**stored, "exclude_seen": [True] * len(users)}
    answers = _ask(port, name, "recommend", wish)["candidate_ids"]
    seen = _ask(port, name, "stored_history", {"user_id": users})["item_ids"]
    items = np.load(bundle / "item_embeddings.npy", mmap_mode="r")
    ids = ["", *pq.read_table(bundle / "titles.parquet", columns=["id"])["id"].to_pylist()]
    row_of = {id_: row for row, id_ in enumerate(ids) if id_}
    hits, n = 0, 0
    for one, answer, did in zip(query, answers, seen, strict=True):
        scores = items @ one
        scores[[0, *(row_of[id_] for id_ in did if id_)]] = -np.inf
        least = np.partition(scores, -len(answer))[-len(answer)]
        # By their scores: of items that have the same one, any is as good.
        hits += int((scores[[row_of[id_] for id_ in set(answer)]] >= least).sum())
        n += len(answer)
    return hits / n


def _ask(port: int, name: str, signature: str, inputs: dict[str, Any]) -> Any:
    body = json.dumps({"signature_name": signature, "inputs": inputs}).encode()
    url = f"http://127.0.0.1:{port}/v1/models/{name}:predict"
    with urllib.request.urlopen(urllib.request.Request(url, body), timeout=120) as answer:
        return json.load(answer)["outputs"]


# --- `python -m benchmarks.serve_case.client`: asks a server, in a process of its own.


_HEADERS = "POST {path} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {size}\r\n\r\n"


class Asker:
    """One connection, kept open.

    Args:
        options: Of the command line.
        found: What all askers found.
    """

    def __init__(self, options: argparse.Namespace, found: Found) -> None:
        self._options, self._found = options, found
        self._random = random.Random(options.seed)
        self._reader: asyncio.StreamReader | None = None
        self._writer: asyncio.StreamWriter | None = None

    async def ask(self) -> None:
        """Asks once, and notes what came back."""
        started = time.perf_counter()
        try:
            status = await self._status()
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self._found.errors[type(error).__name__] += 1
            await self.close()
            return
        self._found.statuses[status] += 1
        if status == 200:
            self._found.times_ms.append((time.perf_counter() - started) * 1e3)

    async def close(self) -> None:
        """Closes the connection."""
        if self._writer is not None:
            self._writer.close()
            with contextlib.suppress(OSError):
                await self._writer.wait_closed()
        self._reader = self._writer = None

    async def _status(self) -> int:
        if self._writer is None or self._reader is None:
            self._reader, self._writer = await asyncio.open_connection(
                "127.0.0.1", self._options.port
            )
        self._writer.write(self._request())
        head = (await self._reader.readuntil(b"\r\n\r\n")).lower()
        await self._reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
        if b"connection: close" in head:
            await self.close()
        return int(head.split()[1])

    def _request(self) -> bytes:
        rows = [
            {
                "user_id": f"u{self._random.randrange(1, self._options.users)}",
                "history": [""],
                "exclude_seen": True,
            }
            for _ in range(self._options.batch)
        ]
        body = json.dumps({"signature_name": "recommend", "instances": rows})
        path = f"/v1/models/{self._options.name}:predict"
        return (_HEADERS.format(path=path, size=len(body)) + body).encode()


class Found:
    """What came back."""

    def __init__(self) -> None:
        self.statuses: collections.Counter[int] = collections.Counter()
        self.errors: collections.Counter[str] = collections.Counter()
        self.times_ms: list[float] = []
        self.skipped = 0


async def closed_loop(options: argparse.Namespace, found: Found) -> None:
    """Asks with all clients until the time is over, or all requests are sent."""
    end, left = time.perf_counter() + options.seconds, options.requests

    async def one_client() -> None:
        nonlocal left
        asker = Asker(options, found)
        while time.perf_counter() < end and left > 0:
            left -= 1
            await asker.ask()
        await asker.close()

    await asyncio.gather(*(one_client() for _ in range(options.clients)))


async def open_loop(options: argparse.Namespace, found: Found) -> None:
    """Asks at a rate, whatever comes back."""
    resting = [Asker(options, found) for _ in range(options.clients)]
    everyone = list(resting)
    started, n, asked = time.perf_counter(), 0, set()

    async def ask(asker: Asker) -> None:
        await asker.ask()
        resting.append(asker)

    while (now := time.perf_counter() - started) < options.seconds:
        while n < now * options.rate:
            n += 1
            if resting:
                task = asyncio.create_task(ask(resting.pop()))
                asked.add(task)
                task.add_done_callback(asked.discard)
            else:
                found.skipped += 1
        await asyncio.sleep(0.001)
    await asyncio.gather(*asked)
    for asker in everyone:
        await asker.close()


def client_process(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    parser = options_of("serve client", client_process.__doc__)
    add = parser.add_argument
    add("--port", type=int, required=True)
    add("--name", default="world")
    add("--users", type=int, required=True)
    add("--batch", type=int, default=1)
    add("--clients", type=int, default=1)
    add("--seconds", type=float, default=10.0)
    add("--requests", type=float, default=float("inf"), help="most of them")
    add("--rate", type=float, help="requests/s of an open loop")
    add("--seed", type=int, default=0)
    options = parser.parse_args(words)
    found, started = Found(), time.perf_counter()
    asyncio.run((open_loop if options.rate else closed_loop)(options, found))
    seconds = time.perf_counter() - started
    print(
        json.dumps(
            {
                "statuses": found.statuses,
                "errors": found.errors,
                "skipped": found.skipped,
                "seconds": seconds,
                "times_ms": found.times_ms,
            }
        )
    )


if __name__ == "__main__":
    run(main, client=client_process)
