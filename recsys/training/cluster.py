"""The hosts of a run, as the command line, a file or a scheduler names them."""

from __future__ import annotations

import argparse
import dataclasses
import os
import re
from pathlib import Path
from typing import Literal, Self

from recsys.errors import UsageError
from recsys.training.processes import LOCAL_DEVICE

WAIT_S = 300.0
"""How long the hosts wait for each other by default [s]."""
_LINE = re.compile(r"(\S+):(\d+)(?:\s+processes=(\d+))?")


@dataclasses.dataclass(frozen=True)
class Cluster:
    """The hosts of a training or an evaluation, and which one this is.

    Attributes:
        kind: `host` with `--hosts`; `process` with `--coordinator`.
        host: Name or address of the first one.
        port: Where it listens for the others.
        n_members: How many there are.
        member: Which one this is, from 0.
        n_processes: How many processes this one starts.
        devices: The GPUs that its process takes, as `0,1`; None: all, or one for each process.
        wait_s: How long they wait for each other [s].
    """

    kind: Literal["host", "process"]
    host: str
    port: int
    n_members: int
    member: int
    n_processes: int = 1
    devices: str | None = None
    wait_s: float = WAIT_S

    @classmethod
    def of_file(cls, path: Path, member: int, wait_s: float) -> Self:
        """Returns the hosts that a file names, one a line: `HOST:PORT [processes=N]`.

        Raises:
            UsageError: The file can't be read, or a line is something else.
        """
        lines = _lines(path)
        if not 0 <= member < len(lines):
            rule = f"--host must be a line of {path.name}, from 0 to {len(lines) - 1}."
            raise UsageError("R392", rule, "Give each host the number of its line.", member)
        host, port, _ = lines[0]
        return cls("host", host, port, len(lines), member, lines[member][2], None, wait_s)

    @classmethod
    def of_options(
        cls,
        coordinator: str,
        count: str | None,
        index: str | None,
        devices: str | None,
        wait: float,
    ) -> Self:
        """Returns the cluster that the options of one process name.

        Args:
            coordinator: `HOST:PORT` of the first one, or `auto`: as the scheduler says.
            count: How many processes there are.
            index: Which one this is.
            devices: The GPUs that it takes, as `0,1`; None: all.
            wait: How long they wait for each other [s].

        Raises:
            UsageError: One of them is missing or wrong.
        """
        if coordinator == "auto":
            return cls("process", *_detected(wait), wait_s=wait)
        host, port = _address(coordinator)
        n_members = _number("--num-processes", count, 1)
        member = _number("--process-id", index, 0)
        if member >= n_members:
            raise UsageError(
                "R376",
                "--process-id must be below --num-processes.",
                "Count from 0.",
                f"{member} of {n_members}",
            )
        return cls("process", host, port, n_members, member, 1, devices, wait)


def _number(name: str, text: str | None, least: int) -> int:
    if text is None or not text.isdecimal() or int(text) < least:
        raise UsageError(
            "R376",
            f"With --coordinator, {name} must be a whole number from {least} on.",
            "Give --num-processes, how many there are, and --process-id, which one this is.",
            text,
        )
    return int(text)


def _address(text: str) -> tuple[str, int]:
    host, _, port = text.rpartition(":")
    if not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 65536:
        rule = "--coordinator must be HOST:PORT of the first process, or auto."
        raise UsageError("R376", rule, "Write, for example, 10.0.0.1:8476.", text)
    return host.strip("[]"), int(port)


def _detected(wait_s: float) -> tuple[str, int, int, int, int, str | None]:
    """Returns what JAX finds out from Slurm, Open MPI or Kubernetes."""
    reason = "no Slurm, Open MPI or Kubernetes"
    try:
        from jax._src.clusters import ClusterEnv

        address, count, index, devices = ClusterEnv.auto_detect_unset_distributed_params(
            None, None, None, None, None, round(wait_s)
        )
    except Exception as error:  # noqa: BLE001 whatever the clients of a scheduler raise
        address, reason = None, str(error)
    if address is None or count is None or index is None:
        raise UsageError(
            "R376",
            "--coordinator auto needs a scheduler that says which processes there are.",
            "Give --coordinator HOST:PORT, --num-processes and --process-id.",
            reason,
        )
    return (
        *_address(address),
        count,
        index,
        1,
        ",".join(map(str, devices)) if devices else None,
    )


def _lines(path: Path) -> list[tuple[str, int, int]]:
    """Returns host, port and number of processes of each line of a file."""
    rule = "A file of hosts must have one host per line: HOST:PORT [processes=N]."
    cure = "Write, for example, 10.0.0.1:8476; lines that start with # are comments."
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, ValueError) as error:
        raise UsageError("R392", rule, cure, f"{path}: {error}") from None
    hosts: list[tuple[str, int, int]] = []
    for number, line in enumerate(text.splitlines(), 1):
        if not line.strip() or line.lstrip().startswith("#"):
            continue
        match = _LINE.fullmatch(line.strip())
        if match is None or not 0 < int(match[2]) < 65536 or not 0 < int(match[3] or 1) <= 256:
            raise UsageError("R392", rule, cure, f"line {number}: {line.strip()}")
        host = (match[1].strip("[]"), int(match[2]), int(match[3] or 1))
        if host[:2] in [other[:2] for other in hosts]:
            rule = "A file of hosts must name each host once."
            raise UsageError("R392", rule, cure, f"line {number}: {line.strip()}")
        hosts.append(host)
    if not hosts:
        raise UsageError("R392", rule, cure, f"no host in {path}")
    return hosts


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of one of several processes; the environment may name it too."""
    parser.add_argument("--processes", type=int, default=1, help="processes on this machine")
    parser.set_defaults(hosts=None, host=None)
    for name, variable, text in (
        ("coordinator", "RECSYS_COORDINATOR", "HOST:PORT of the first process, or auto"),
        ("num-processes", "RECSYS_PROCESSES", "how many processes there are"),
        ("process-id", "RECSYS_PROCESS", "which one this is, from 0"),
    ):
        parser.add_argument(f"--{name}", default=os.environ.get(variable), help=text)
    parser.add_argument("--wait", type=float, default=WAIT_S, help="seconds that hosts are awaited")


def add_host_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options of a training on several hosts: of a process, or of a file of hosts."""
    add_process_options(parser)
    parser.add_argument("--hosts", type=Path, help="file of hosts, HOST:PORT [processes=N] a line")
    parser.add_argument("--host", type=int, help="which line of it this host is, from 0")


def cluster_of(options: argparse.Namespace) -> Cluster | None:
    """Returns the hosts that the command line or the environment names; None for this one alone.

    Raises:
        UsageError: They are named wrongly.
    """
    is_file = options.hosts is not None
    if is_file != (options.host is not None):
        rule = "--hosts FILE and --host N, the line of this host, must be given together."
        raise UsageError("R392", rule, "Give both, or none.", options.host)
    if options.processes > 1 and (is_file or options.coordinator):
        rule = "--processes is for one machine; a file of hosts says processes=N in a line."
        raise UsageError("R392", rule, "Leave it out.", options.processes)
    if is_file:
        return Cluster.of_file(options.hosts, options.host, options.wait)
    if not options.coordinator:
        return None
    return Cluster.of_options(
        options.coordinator,
        options.num_processes,
        options.process_id,
        os.environ.get(LOCAL_DEVICE) or None,
        options.wait,
    )
