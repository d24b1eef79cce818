"""A `recsys serve` as a process, and what is asked of it and of its folder."""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import shutil
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

_START_S = 600.0
_KIB_PER_MIB = 1024


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
            with urllib.request.urlopen(
                f"http://127.0.0.1:{self.port}/healthz", timeout=60
            ) as page:
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
        for line in Path(f"/proc/{self.process.pid}/status").read_text().splitlines():
            if line.startswith(f"{what}:"):
                return int(line.split()[1]) / _KIB_PER_MIB
        raise RuntimeError(f"no {what}")

    def client(self, **options: Any) -> dict[str, Any]:
        """Runs a client to its end, and returns what it found."""
        return finished(self.start_client(**options))

    def start_client(self, **options: Any) -> subprocess.Popen[str]:
        """Starts a client."""
        words = [word for name, value in options.items() for word in (f"--{name}", str(value))]
        command = [sys.executable, "-m", "benchmarks.serve_case.client", "--port", str(self.port)]
        return subprocess.Popen([*command, *words], stdout=subprocess.PIPE, text=True)


def finished(client: subprocess.Popen[str]) -> dict[str, Any]:
    """Returns what a client found, once it has ended."""
    said, _ = client.communicate()
    if client.returncode:
        raise RuntimeError(f"the client ended with {client.returncode}")
    found: dict[str, Any] = json.loads(said)
    return found


@contextlib.contextmanager
def running(folder: Path) -> Iterator[Server]:
    """Serves a folder; ends it by SIGTERM, and fails if that wasn't in peace."""
    command = [sys.executable, "-m", "recsys", "serve", "--model-dir", str(folder)]
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
    words = [word for name, value in sizes.items() for word in (f"--{name}", str(value))]
    command = [sys.executable, "-m", "benchmarks.serve_case.world", *words, "--out", str(out)]
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
