"""A cluster of Ray whose nodes are network namespaces of this machine."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Self

from benchmarks.measure import simulated
from benchmarks.namespaces import Hosts
from recsys.distributed.ray_launcher import NOTICED_SOON, PATIENT

_PORT = 6379
_LIMIT_S = 300.0
_TRIES = 3


class RayHosts(Hosts):
    """Hosts 0 … n-1, each a node with one CPU and one device, and the head, on which runs start.

    Args:
        n: How many, without the head.
        compiled: Folder of JAX's compilation cache.
        limit: As for `Hosts`.

    Attributes:
        head: Number of the head.
    """

    def __init__(self, n: int, compiled: Path, limit: int | None = None) -> None:
        super().__init__(n + 1, limit)
        self.head, self._compiled = n, compiled

    def __enter__(self) -> Self:
        super().__enter__()
        try:
            # Each has sockets and logs of its own; their paths must be short.
            name = self._stack.enter_context(tempfile.TemporaryDirectory(prefix="rh-"))
            self._folder = Path(name)
            self.join(self.head)
            self.join(*range(self.head))
        except BaseException:
            self.__exit__()
            raise
        return self

    @property
    def cluster(self) -> str:
        """Address of the cluster."""
        return f"{self.address(self.head)}:{_PORT}"

    def environment(self, host: int) -> dict[str, str]:
        """Returns the variables of what runs on a host."""
        folder = self._folder / str(host)
        folder.mkdir(exist_ok=True)
        own = {"RAY_TMPDIR": str(folder), "JAX_COMPILATION_CACHE_DIR": str(self._compiled)}
        own |= {"JAX_PERSISTENT_CACHE_MIN_COMPILE_TIME_SECS": "0.1", "RAY_USAGE_STATS_ENABLED": "0"}
        return {**os.environ, **simulated(1), **NOTICED_SOON, **PATIENT, **own}

    def join(self, *hosts: int) -> None:
        """Starts Ray on some hosts, as nodes of the cluster."""
        for _ in range(_TRIES):  # On a busy machine Ray gives up on its own agents.
            hosts = tuple(host for host in hosts if self._start_ray(host).wait(_LIMIT_S))
            if not hosts:
                return
            for host in hosts:
                self.kill(host)
        logs = [*self._folder.glob("*.log"), *self._folder.glob("*/ray/session_2*/logs/raylet.*")]
        raise SystemExit("\n".join(log.read_text()[-2000:] for log in logs))

    def _start_ray(self, host: int) -> subprocess.Popen[str]:
        words = [sys.executable, "-m", "ray.scripts.scripts", "start"]
        words += ["--node-ip-address", self.address(host), "--include-log-monitor", "false"]
        words += ["--object-store-memory", str(80 << 20)]
        if host == self.head:
            words += ["--head", "--port", str(_PORT), "--num-cpus", "0"]
            words += ["--include-dashboard", "false", "--no-monitor"]
        else:
            words += ["--address", self.cluster, "--num-cpus", "1"]
        with (self._folder / f"{host}.log").open("w") as log:
            own = self.environment(host)
            return self.start(host, words, env=own, stdout=log, stderr=log)

    def kill_raylet(self, host: int) -> float:
        """Kills the raylet of a host; returns when, by the monotonic clock [s]."""
        raylets = [pid for pid in self.pids(host) if "raylet/raylet" in command(pid)]
        for pid in raylets:
            os.kill(pid, 9)
        return time.monotonic()

    def replace(self, host: int) -> None:
        """Ends all that runs on a host, and starts another node of Ray there."""
        self.kill(host)
        self.join(host)

    def trains(self, host: int) -> bool:
        """Returns whether a process of a stage runs on a host."""
        return any("--process-id" in command(pid) for pid in self.pids(host))

    def run(self, words: Any, own: Mapping[str, str], output: Any) -> subprocess.Popen[str]:
        """Starts a program on the head."""
        environment = {**self.environment(self.head), **own}
        return self.start(self.head, words, env=environment, stdout=output, stderr=output)


def command(pid: int) -> str:
    """Returns the command line of a process; empty if it has ended."""
    try:
        return Path(f"/proc/{pid}/cmdline").read_bytes().replace(b"\0", b" ").decode()
    except OSError:
        return ""
