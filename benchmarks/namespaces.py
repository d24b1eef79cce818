"""Hosts with addresses, names and links of their own, on this machine: network namespaces."""

from __future__ import annotations

import contextlib
import itertools
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, Self

from benchmarks.measure import repeated, simulated
from recsys.distributed.launchers import NOTICED_SOON, PATIENT

_NUMBERS = itertools.count()
_GROUPS = Path("/sys/fs/cgroup/memory")
_SAMPLE_EVERY_S = 0.05
_HEADERS = 66
"""Headers of a packet: Ethernet 14, IPv4 20, TCP 20 and its timestamps 12 [bytes]."""


def can_have_hosts() -> bool:
    """Returns whether this machine lets us make network namespaces."""
    if os.geteuid() or shutil.which("ip") is None:
        return False
    name = f"recsys-try-{os.getpid()}"
    made = subprocess.run(["ip", "netns", "add", name], capture_output=True, check=False)
    subprocess.run(["ip", "netns", "del", name], capture_output=True, check=False)
    return made.returncode == 0


def _ip(*words: object) -> None:
    subprocess.run(["ip", *map(str, words)], check=True, capture_output=True)


class Hosts:
    """Some hosts on one switch, which last as long as the context.

    They share this machine's files. Each has an address of its own, a link of its own to the
    switch, and a name that nothing resolves.

    Args:
        n: How many.
        limit: Memory that the processes of one may hold together, beside pages of files that
            can be read again, by a memory cgroup (version 1) [bytes]; None: any.
    """

    def __init__(self, n: int, limit: int | None = None) -> None:
        self.limit = limit
        self.n, self._id = n, f"rs{os.getpid() % 10**6}x{next(_NUMBERS)}"
        self._stack = contextlib.ExitStack()

    def __enter__(self) -> Self:
        _ip("link", "add", self._id, "type", "bridge")
        _ip("link", "set", self._id, "up")
        for host in range(self.n):
            name, link = self.namespace(host), self._link(host)
            _ip("netns", "add", name)
            _ip("link", "add", link, "type", "veth", "peer", "name", "eth0", "netns", name)
            _ip("link", "set", link, "master", self._id, "up")
            _ip("-n", name, "addr", "add", f"{self.address(host)}/24", "dev", "eth0")
            # Packets as a cable carries them: by default a link counts 64 kB as one.
            _ip("-n", name, "link", "set", "eth0", "up", "gso_max_segs", 1)
            _ip("-n", name, "link", "set", "lo", "up")
            if self.limit is not None:
                self._group(host).mkdir()
                (self._group(host) / "memory.limit_in_bytes").write_text(str(self.limit))
        return self

    def __exit__(self, *error: object) -> None:
        for host in range(self.n):
            self.kill(host)
            with contextlib.suppress(subprocess.CalledProcessError):
                _ip("netns", "del", self.namespace(host))
        self._stack.close()
        for host in range(self.n if self.limit is not None else 0):
            while self._group(host).exists():  # Until the last of them has gone.
                with contextlib.suppress(OSError):
                    self._group(host).rmdir()
        with contextlib.suppress(subprocess.CalledProcessError):
            _ip("link", "del", self._id)

    def namespace(self, host: int) -> str:
        """Returns the name of a host's namespace."""
        return f"{self._id}-{host}"

    def _group(self, host: int) -> Path:
        return _GROUPS / self.namespace(host)

    def _link(self, host: int) -> str:
        return f"{self._id}v{host}"

    def address(self, host: int) -> str:
        """Returns a host's address."""
        return f"10.213.7.{host + 1}"

    def start(
        self, host: int, words: Sequence[object], name: str | None = None, **options: Any
    ) -> subprocess.Popen[str]:
        """Starts a program on a host.

        Args:
            host: Which one.
            words: Its command line.
            name: The host's name, `node0` and so on by default.
            **options: Of `subprocess.Popen`.
        """
        own = ["unshare", "--uts", "sh", "-c", 'hostname "$0"; exec "$@"', name or f"node{host}"]
        command = ["ip", "netns", "exec", self.namespace(host), *own, *map(str, words)]
        if self.limit is not None:  # Before: a namespace sees no groups.
            join = 'echo $$ > "$0"/cgroup.procs && exec "$@"'
            command = ["sh", "-c", join, str(self._group(host)), *command]
        return self._stack.enter_context(subprocess.Popen(command, text=True, **options))

    def kill(self, host: int) -> None:
        """Ends all that runs on a host, as a power cut does."""
        while pids := self.pids(host):
            for pid in pids:
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
            time.sleep(0.01)

    def pids(self, host: int) -> list[int]:
        """Returns all processes of a host."""
        words = ["ip", "netns", "pids", self.namespace(host)]
        done = subprocess.run(words, capture_output=True, text=True, check=False)
        return [int(pid) for pid in done.stdout.split()]

    def cut(self, host: int) -> None:
        """Pulls the cable of a host."""
        _ip("link", "set", self._link(host), "down")

    def mend(self, host: int) -> None:
        """Plugs it in again."""
        _ip("link", "set", self._link(host), "up")

    def wire_bytes(self, host: int) -> int:
        """Returns what a host has sent so far [bytes]."""
        return self._counted(host, "rx_bytes")

    def payload_bytes(self, host: int) -> int:
        """Returns what a host has sent so far over TCP, without the headers [bytes]."""
        return self.wire_bytes(host) - _HEADERS * self._counted(host, "rx_packets")

    def _counted(self, host: int, counter: str) -> int:
        return int(Path("/sys/class/net", self._link(host), "statistics", counter).read_text())

    @contextlib.contextmanager
    def peak(self) -> Iterator[list[int]]:
        """Yields the most memory that a limited host's processes hold while it is open [bytes]."""
        most = [0]

        def look() -> None:
            most[0] = max(most[0], *map(self._held, range(self.n)))

        with repeated(look, _SAMPLE_EVERY_S):
            yield most

    def _held(self, host: int) -> int:
        stat = (self._group(host) / "memory.stat").read_text().split()
        return int(stat[stat.index("total_rss") + 1])


# --- a cluster of Ray on such hosts


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
