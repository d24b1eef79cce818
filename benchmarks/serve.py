"""`python -m benchmarks.serve`: a bundle over HTTP, queried like TensorFlow Serving.

`recsys serve` and its clients share this machine. Users are drawn at random, and what
they did is left out of their list. The lines of a round, for each `--items`:

- `p50`, `p99`: time of an answer where one client asks one user at a time [ms];
- `rate`: answers of one user a second, of eight clients that ask at once; and in rows/s,
  of two, with 64 users a request;
- `swap`: requests that failed while another version was swapped in `--swaps` times, and
  requests in all;
- `overload`: at five times the rate for `--overload-s`: answers other than 200, 429 and
  503; seconds until a single client is answered as before; memory after / before.
"""

from __future__ import annotations

import asyncio
import collections
import contextlib
import json
import math
import os
import random
import shutil
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from concurrent.futures import Future, ThreadPoolExecutor
from pathlib import Path
from typing import Annotated, Any

import httpx
from typer import Option

from benchmarks.measure import call, memory_mib, module, print_line, run, words_of

ITEMS = [100_000]
_CLIENTS, _BATCH = 8, 64
_OVER = 5
_ALLOWED = {"200", "429", "503"}
_START_S = 600.0


def main(
    items: list[int] = ITEMS,
    users: int = 10_000,
    clusters: Annotated[int, Option(help="Of the items; 0: embeddings as drawn.")] = 0,
    seconds: Annotated[float, Option(help="Of each case.")] = 20.0,
    runs: int = 3,
    swaps: int = 0,
    swap_requests: Annotated[float, Option(help="At the least while swapping.")] = 0.0,
    overload_s: float = 0.0,
) -> None:
    """Measures each size."""
    for n_items in items:
        with tempfile.TemporaryDirectory() as name:
            folder = Path(name) / "serving" / "world"
            sizes = {"users": users, "items": n_items, "clusters": clusters}
            shutil.move(make_bundle(Path(name) / "bundle", **sizes), folder / "1")
            with running(folder, users, f"items={n_items} dim=64 k=100") as server:
                server.wait_for(1)
                rate = measure_answers(server, seconds, runs)
                if swaps:
                    measure_swaps(server, swaps, swap_requests)
                if overload_s:
                    measure_overload(server, rate, overload_s)


def make_bundle(out: Path, **sizes: int) -> Path:
    """Writes a bundle, in a process of its own; returns its folder."""
    command = module("benchmarks.worlds", *words_of(**sizes, out=out))
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)
    shutil.rmtree(out.parent / f"{out.name}.work")
    return out


def measure_answers(server: Server, seconds: float, runs: int) -> float:
    """Prints times and rates; returns the requests of one user that are answered [1/s]."""
    server.ask(seconds=3)  # The first answers are slow.
    loads = ({"clients": 1}, {"clients": _CLIENTS}, {"clients": 2, "batch": _BATCH})
    single, many, large = (server.answers(runs, seconds=seconds, **load) for load in loads)
    for rounds, n, percent in ((single, 1, 50), (single, 1, 99), (many, _CLIENTS, 99)):
        values = [quantile(answers["times_ms"], percent / 100) for answers in rounds]
        server.print(f"p{percent} batch=1 clients={n}", values, "ms")
    rates = [len(answers["times_ms"]) / answers["seconds"] for answers in many]
    server.print(f"rate batch=1 clients={_CLIENTS}", rates, "requests/s")
    rows = [len(answers["times_ms"]) * _BATCH / answers["seconds"] for answers in large]
    server.print(f"rate batch={_BATCH} clients=2", rows, "rows/s")
    return statistics.median(rates)


def measure_swaps(server: Server, swaps: int, least_requests: float) -> None:
    """Prints the requests that failed while versions were swapped."""
    rounds: list[dict[str, Any]] = []
    n_requests, version = 0, 1
    while version <= swaps or n_requests < least_requests:
        client = server.start(clients=4, seconds=20)
        while not client.done() and version <= swaps:
            version += 1
            # Hard links: the same content under another number.
            hidden = server.folder / f".publish-{version}"
            shutil.copytree(server.folder / "1", hidden, copy_function=os.link)
            hidden.rename(server.folder / str(version))
            server.wait_for(version)
        rounds.append(client.result())
        n_requests = sum(_n_requests(answers) for answers in rounds)
    n_failed = n_requests - sum(len(answers["times_ms"]) for answers in rounds)
    times = [quantile(answers["times_ms"], 0.99) for answers in rounds]
    server.print(f"swap failed of {n_requests} swaps={swaps}", [n_failed], "requests")
    server.print("swap p99", times, "ms")


def measure_overload(server: Server, rate: float, seconds: float) -> None:
    """Prints what comes back at five times the rate, and how it is afterwards."""
    before = server.rss_mib()
    load = f"rate={_OVER * rate:.0f}/s"
    answers = server.ask(clients=256, rate=_OVER * rate, seconds=seconds)
    n_allowed = sum(n for status, n in answers["statuses"].items() if status in _ALLOWED)
    n_bad = _n_requests(answers) - n_allowed
    server.print(f"overload neither 200, 429 nor 503 {load}", [n_bad], "requests")
    for status, n in sorted(answers["statuses"].items()):
        server.print(f"overload {status} {load}", [n / answers["seconds"]], "requests/s")
    p99 = quantile(answers["times_ms"], 0.99)
    server.print(f"overload p99 of 200 {load}", [p99], "ms")
    started = time.perf_counter()
    while quantile(server.ask(requests=50)["times_ms"], 0.5) > 3e3 / rate:
        pass
    server.print(f"overload recovered after {load}", [time.perf_counter() - started], "s")
    server.print(f"overload memory after/before {load}", [server.rss_mib() / before], "times")


def _n_requests(answers: dict[str, Any]) -> int:
    return sum(answers["statuses"].values()) + sum(answers["errors"].values())


def quantile(values: list[float], share: float) -> float:
    """Returns a quantile; infinity without values."""
    ordered = sorted(values) or [math.inf]
    return ordered[min(int(share * len(ordered)), len(ordered) - 1)]


# --- A `recsys serve` as a process, and requests to it.


class Server:
    """A server that runs.

    Args:
        folder: Serving folder.
        process: The process.
        port: Its port.
        n_users: Users that it knows: `u1`, `u2`, ….
        case: Sizes of the bundle, for the lines.
    """

    def __init__(
        self, folder: Path, process: subprocess.Popen[str], port: int, n_users: int, case: str
    ) -> None:
        self.folder, self._process, self._case = folder, process, case
        self.port, self._n_users = port, n_users
        self._pool = ThreadPoolExecutor()

    def print(self, name: str, values: list[float], unit: str, bench: str = "serve") -> None:
        """Prints a line, with the most memory of the server."""
        print_line(bench, f"{name} {self._case}", values, unit, self.rss_mib("VmHWM"))

    def wait_for(self, version: int) -> None:
        """Waits until a version is served."""
        end = time.monotonic() + _START_S
        while True:
            health = httpx.get(f"http://127.0.0.1:{self.port}/healthz", timeout=60)
            if health.is_success and int(health.json()["version"]) == version:
                return
            if time.monotonic() > end or self._process.poll() is not None:
                raise RuntimeError(f"version {version} was never served")
            time.sleep(0.05)

    def rss_mib(self, name: str = "VmRSS") -> float:
        """Returns its memory now, or with `VmHWM` at the most [MiB]."""
        return memory_mib(f"{self._process.pid}/status", name)

    def start(self, **load: float) -> Future[dict[str, Any]]:
        """Starts a client, which returns the result of `ask_server`."""
        case = {"port": self.port, "n_users": self._n_users, **load}
        return self._pool.submit(lambda: dict(call(ask_server, **case).result))

    def ask(self, **load: float) -> dict[str, Any]:
        """Runs a client to its end; returns what `ask_server` does."""
        return self.start(**load).result()

    def answers(self, runs: int, **load: float) -> list[dict[str, Any]]:
        """Runs clients one after the other; raises an error unless all requests are answered."""
        rounds = [self.ask(**load) for _ in range(runs)]
        wrong = [a for a in rounds if set(a["statuses"]) != {"200"} or a["errors"]]
        if wrong:
            raise RuntimeError(f"not all was answered: {wrong[0]['statuses']} {wrong[0]['errors']}")
        return rounds


@contextlib.contextmanager
def running(folder: Path, n_users: int, case: str) -> Iterator[Server]:
    """Serves a folder; ends it by SIGTERM, and fails if it doesn't end well."""
    command = module("recsys", "serve", "--model-dir", folder, "--port", "0", "--json")
    process = subprocess.Popen(command, stdout=subprocess.PIPE, text=True)
    try:
        url = json.loads((process.stdout or sys.stdin).readline())["url"]
        yield Server(folder, process, int(url.rpartition(":")[2]), n_users, case)
        process.terminate()
        if process.wait(120):
            raise RuntimeError(f"the server ended with {process.returncode}")
    finally:
        process.kill()
        process.wait()


# --- A client, in a process of its own.


_PATH = "/v1/models/world:predict"
_HEADERS = f"POST {_PATH} HTTP/1.1\r\nHost: 127.0.0.1\r\nContent-Length: {{size}}\r\n\r\n"


def ask_server(
    port: int,
    n_users: int,
    batch: int = 1,
    clients: int = 1,
    seconds: float = 10.0,
    requests: float = math.inf,
    rate: float = math.inf,
) -> dict[str, Any]:
    """Asks a server until the time is over, or all requests are sent.

    Args:
        port: Of the server.
        n_users: Users, `u1`, `u2`, …, that are drawn.
        batch: Users of a request.
        clients: Connections that ask at once.
        seconds: How long.
        requests: Most requests.
        rate: Most requests/s; by default each client asks again once answered.

    Returns:
        `statuses` and `errors`: how often each; `times_ms` of what was answered; `seconds`.
    """
    connections = [Connection(port, n_users, batch) for _ in range(clients)]
    started = time.perf_counter()
    asyncio.run(_ask_all(connections, seconds, requests, rate))
    return {
        "statuses": sum((c.statuses for c in connections), collections.Counter()),
        "errors": sum((c.errors for c in connections), collections.Counter()),
        "times_ms": [ms for c in connections for ms in c.times_ms],
        "seconds": time.perf_counter() - started,
    }


class Connection:
    """One connection, kept open, and what came back on it."""

    def __init__(self, port: int, n_users: int, batch: int) -> None:
        self._port, self._n_users, self._batch = port, n_users, batch
        self._random = random.Random(0)
        self._streams: tuple[asyncio.StreamReader, asyncio.StreamWriter] | None = None
        self.statuses, self.errors = collections.Counter[str](), collections.Counter[str]()
        self.times_ms: list[float] = []

    async def ask(self) -> None:
        """Asks once, and notes what came back."""
        started = time.perf_counter()
        try:
            status = await self._status()
        except (OSError, asyncio.IncompleteReadError, ValueError) as error:
            self.errors[type(error).__name__] += 1
            await self.close()
            return
        self.statuses[status] += 1
        if status == "200":
            self.times_ms.append((time.perf_counter() - started) * 1e3)

    async def close(self) -> None:
        """Closes the connection."""
        if self._streams is not None:
            self._streams[1].close()
            with contextlib.suppress(OSError):
                await self._streams[1].wait_closed()
        self._streams = None

    async def _status(self) -> str:
        if self._streams is None:
            self._streams = await asyncio.open_connection("127.0.0.1", self._port)
        reader, writer = self._streams
        users = [f"u{self._random.randrange(1, self._n_users)}" for _ in range(self._batch)]
        rows = [{"user_id": user, "history": [""], "exclude_seen": True} for user in users]
        body = json.dumps({"signature_name": "recommend", "instances": rows})
        writer.write((_HEADERS.format(size=len(body)) + body).encode())
        head = (await reader.readuntil(b"\r\n\r\n")).lower()
        await reader.readexactly(int(head.partition(b"content-length: ")[2].split()[0]))
        if b"connection: close" in head:
            await self.close()
        return head.split()[1].decode()


async def _ask_all(
    connections: list[Connection], seconds: float, requests: float, rate: float
) -> None:
    """Asks on all connections, each in its turns, until the time is over, or all is sent.

    A connection whose answer comes after its next turn asks again at once.
    """
    started, left = time.perf_counter(), requests

    async def ask_again(connection: Connection, turn: float) -> None:
        nonlocal left
        while (now := time.perf_counter()) < started + seconds and left > 0:
            left -= 1
            await asyncio.sleep(turn - now)
            await connection.ask()
            turn += len(connections) / rate
        await connection.close()

    await asyncio.gather(*(ask_again(c, started + i / rate) for i, c in enumerate(connections)))


if __name__ == "__main__":
    run(main)
