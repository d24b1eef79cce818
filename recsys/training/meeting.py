"""The messages between the parents of a run's hosts, before and during the run.

The parent of the first host leads; see `recsys.system.host_connections` for the connections:

    hello     name of a host, and what it would train: all hosts must agree
    look      a file that the first host wrote: every host must see it, and write one
    seen      whether it did
    start     where JAX's service listens, and which processes belong to which host
    failed    a process died, or reported an error
    done      the processes of a host have succeeded
    end       how the attempt ended; `again`: all meet again

This does not use JAX, whose own service aborts a process that has lost another one.
"""

from __future__ import annotations

import dataclasses
import signal
import socket
import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from typing import Any, Self

from recsys.errors import RecsysError
from recsys.system.host_connections import Connection
from recsys.system.signals import signals_to
from recsys.training.cluster import Cluster
from recsys.training.preflight import Member, SharedFolders
from recsys.training.processes import StopSignals

SILENT_S = 20.0
"""After how long without a sign of life a host is lost [s]: less than gloo waits, 30."""
GONE = "its connection was closed: it was killed or stopped"
_VERSION = 1


@dataclasses.dataclass(frozen=True)
class Start:
    """The information with which a host starts its processes."""

    service: str
    first: int
    n_processes: int
    address: str | None


@dataclasses.dataclass(frozen=True)
class End:
    """How an attempt ended; without an error, all processes have succeeded."""

    error: RecsysError | None = None
    again: bool = False

    def to_json(self) -> dict[str, Any]:
        """Returns it as the fields of a message."""
        error = None if self.error is None else self.error.to_json()
        return {"error": error, "again": self.again}

    @classmethod
    def from_json(cls, fields: Mapping[str, Any]) -> Self:
        """Returns what the fields of a message say."""
        error = fields.get("error")
        return cls(None if error is None else RecsysError.from_json(error), bool(fields["again"]))


@dataclasses.dataclass(frozen=True)
class Failure:
    """How a process failed."""

    process: int
    code: int
    error: dict[str, Any] | None

    @property
    def is_cause(self) -> bool:
        """Whether it didn't end because of another one: it was killed, but not by itself."""
        return self.error is None and self.code < 0 and not self.is_abort

    @property
    def is_abort(self) -> bool:
        """Whether it ended itself, as JAX's service makes it when it misses another one."""
        return self.code == -signal.SIGABRT


class Party:
    """The common part of leader and followers.

    Args:
        cluster: The hosts.
        facts: What this one would train.
        folders: What all of them must share.
    """

    def __init__(self, cluster: Cluster, facts: Mapping[str, Any], folders: SharedFolders) -> None:
        self.cluster = cluster
        self._facts, self._folders = facts, folders
        self._stop = StopSignals()

    def check(self) -> None:
        """Makes sure that this host may still go on; the first one alone may lose that."""

    @contextmanager
    def _stoppable(self) -> Iterator[None]:
        """Hears signals to stop while there are no processes yet."""
        if threading.current_thread() is not threading.main_thread():
            yield
            return
        with signals_to(lambda *_: self._stop.add()):
            yield

    def _raise_if_stopped(self) -> None:
        if self._stop.is_set:
            raise RecsysError(
                "R611",
                "The run was stopped while its hosts waited for each other.",
                "Run the same command again; training resumes from its last checkpoint.",
                "SIGTERM or SIGINT",
            )

    def _member(self, index: int, name: str, address: str, facts: Mapping[str, Any]) -> Member:
        return Member(index, self.cluster.kind, name, address, facts)


def lost(who: str, how: str) -> RecsysError:
    """Returns the error for a lost host or process."""
    return RecsysError(
        "R388",
        f"All hosts of a run must stay alive and connected until its end; {who} was lost.",
        "Check its log; with the same command on all hosts a training resumes from its last"
        " checkpoint, and an evaluation starts again.",
        how,
    )


def silent() -> str:
    """Returns the reason for a host that was lost by its silence."""
    return f"no sign of life for {SILENT_S:.0f} s: its machine or its link is down"


def hello(member: int, facts: Mapping[str, Any], own_address: str) -> dict[str, Any]:
    """Returns the fields of the first message of a host."""
    return {
        "version": _VERSION,
        "member": member,
        "name": socket.gethostname(),
        "address": own_address,
        "facts": facts,
    }


def is_hello(message: Mapping[str, Any]) -> bool:
    """Returns whether a message, from any sender, is a hello of this version."""
    types = {"version": int, "member": int, "name": str, "address": str, "facts": dict}
    return message.get("kind") == "hello" and all(
        type(message.get(name)) is kind for name, kind in types.items()
    )


def connect(
    host: str, port: int, wait_s: float, is_stopped: Callable[[], bool], note: Callable[[str], None]
) -> Connection | str:
    """Connects to the first host, which may start later than this one.

    Args:
        host: Its name or address.
        port: Where it listens.
        wait_s: How long it may take [s].
        is_stopped: Whether to give up.
        note: Says, once, what is waited for.

    Returns:
        The connection, or why there is none.
    """
    deadline, reason = time.monotonic() + wait_s, ""
    while True:
        try:
            return Connection(socket.create_connection((host, port), timeout=5.0))
        except OSError as error:
            is_unknown = isinstance(error, socket.gaierror)
            now = "its name isn't known here" if is_unknown else error.strerror or str(error)
        if now != reason:
            note(f"Waits for the first host, {host}:{port}: {now}.")
        reason = now
        if time.monotonic() > deadline or is_stopped():
            return reason
        time.sleep(0.3)
