"""The place of this process among several, from the command line or the environment."""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
from typing import Self

from recsys.errors import UsageError

WAIT_S = 300.0
"""Default timeout for the other processes [s]."""
_VARIABLE = "RECSYS_PLACE"
_OPTIONS = (
    ("coordinator", str, "RECSYS_COORDINATOR", "HOST:PORT of the first process, or auto"),
    ("num-processes", int, "RECSYS_PROCESSES", "number of processes"),
    ("process-id", int, "RECSYS_PROCESS", "index of this one, from 0"),
)


@dataclasses.dataclass(frozen=True)
class Place:
    """The place of a process among several.

    Attributes:
        coordinator: `HOST:PORT` of process 0, or `auto`: the scheduler provides it and the rest.
        n_processes: Number of processes.
        process: Index of this process.
        devices: Its GPUs, such as `0,1`; empty: all.
        wait_s: Timeout for the other processes [s].
        members: File for the names of all processes, which the parent reads; empty: none.
        is_local: Whether one parent on this machine started all of them.
    """

    coordinator: str
    n_processes: int = 1
    process: int = 0
    devices: str = ""
    wait_s: float = WAIT_S
    members: str = ""
    is_local: bool = False

    @property
    def address(self) -> tuple[str, int]:
        """Host and port of process 0.

        Raises:
            UsageError: The coordinator has another form (R376).
        """
        host, _, port = self.coordinator.rpartition(":")
        if not host.strip("[]") or not port.isdecimal() or not 0 < int(port) < 65536:
            rule = "--coordinator must be HOST:PORT of the first process, or auto."
            raise UsageError("R376", rule, "Write, for example, 10.0.0.1:8476.", self.coordinator)
        return host.strip("[]"), int(port)

    def environment(self) -> dict[str, str]:
        """Returns the environment variables that give a process this place."""
        return {_VARIABLE: json.dumps(dataclasses.asdict(self))}

    @classmethod
    def of_environment(cls) -> Self | None:
        """Returns the place that a parent gave this process, or None."""
        text = os.environ.get(_VARIABLE)
        return cls(**json.loads(text)) if text else None


def add_process_options(parser: argparse.ArgumentParser) -> None:
    """Adds the options for running in several processes; the environment can set them too."""
    parser.add_argument("--processes", type=int, default=1, help="processes on this machine")
    for name, kind, variable, text in _OPTIONS:
        parser.add_argument(f"--{name}", type=kind, default=os.environ.get(variable), help=text)
    parser.add_argument("--wait", type=float, default=WAIT_S, help="timeout for the others [s]")


def place_of(options: argparse.Namespace) -> Place | None:
    """Returns the place that the options describe; None without `--coordinator`.

    Raises:
        UsageError: They are incomplete or wrong (R376).
    """
    if not options.coordinator:
        return None
    if options.processes > 1:
        rule = "--processes is for one machine, --coordinator for several."
        raise UsageError("R376", rule, "Leave one of them out.", options.processes)
    if options.coordinator == "auto":
        return Place("auto", wait_s=options.wait)
    n_processes, process = options.num_processes, options.process_id
    if n_processes is None or process is None or not 0 <= process < n_processes:
        raise UsageError(
            "R376",
            "With --coordinator, --num-processes must be given, and a lower --process-id.",
            "Give the number of processes, and the index of this one, counted from 0.",
            {"num-processes": n_processes, "process-id": process},
        )
    devices = os.environ.get("RECSYS_LOCAL_DEVICE", "")
    place = Place(options.coordinator, n_processes, process, devices, options.wait)
    _ = place.address
    return place
