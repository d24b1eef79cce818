"""`python -m benchmarks.serve_case.client`: asks a server, in a process of its own.

Prints one JSON object: the answers by status, errors of connections, seconds, and the
times of the answers with 200 [ms]. A closed loop by default: each of `--clients` asks
again when it was answered. With `--rate` the loop is open: requests start at that rate
whatever comes back, each on one of `--clients` connections, or not at all if all wait.
"""

from __future__ import annotations

import argparse
import asyncio
import collections
import contextlib
import json
import random
import time
from collections.abc import Sequence

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

    async def client() -> None:
        nonlocal left
        asker = Asker(options, found)
        while time.perf_counter() < end and left > 0:
            left -= 1
            await asker.ask()
        await asker.close()

    await asyncio.gather(*(client() for _ in range(options.clients)))


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


def main(words: Sequence[str] | None = None) -> None:
    """Runs from the command line."""
    parser = argparse.ArgumentParser(prog="python -m benchmarks.serve_case.client")
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
    main()
