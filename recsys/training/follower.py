"""The parent process of every host but the first, to whose parent it connects."""

from __future__ import annotations

import dataclasses
import socket
import time
from typing import NoReturn, Self

from recsys.errors import RecsysError
from recsys.system.host_connections import Connection, wait_for
from recsys.training.launcher import POLL_S
from recsys.training.meeting import (
    GONE,
    SILENT_S,
    End,
    Failure,
    Party,
    Start,
    connect,
    hello,
    lost,
    silent,
)
from recsys.training.preflight import SEEN_WITHIN_S
from recsys.training.processes import note


class Follower(Party):
    """The parent process of a host that is not the first one."""

    _link: Connection
    _leader: str

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *error: object) -> None:
        if hasattr(self, "_link"):
            self._link.close()

    def meet(self) -> Start:
        """Comes to the first host, answers what it asks, and waits until it says to start.

        Raises:
            RecsysError: It can't be reached, or refuses.
        """
        deadline = time.monotonic() + self.cluster.wait_s
        with self._stoppable():
            while True:
                start = self._visit(deadline)
                if start is not None:
                    return start

    def _visit(self, deadline: float) -> Start | None:
        """Comes once; returns None if the connection was lost before the start."""
        cluster = self.cluster
        where = f"{cluster.host}:{cluster.port}"
        self._leader = f"{cluster.kind} 0 ({where})"
        link = connect(
            cluster.host,
            cluster.port,
            deadline - time.monotonic(),
            lambda: self._stop.is_set,
            note,
        )
        self._raise_if_stopped()
        if isinstance(link, str):
            self._unreachable(link)
        self._link = link
        facts = {"processes": cluster.n_processes, **self._facts}
        link.send("hello", **hello(cluster.member, facts, link.own_address))
        token, asked_at = "", 0.0
        while not link.is_closed and link.silent_s < SILENT_S:
            wait_for([link], POLL_S)
            for fields in link.messages():
                if fields.get("kind") == "look":
                    token, asked_at = str(fields["token"]), time.monotonic()
                    self._folders.answer(cluster.member, token)
                elif fields.get("kind") == "start":
                    self._leader = str(fields.pop("leader"))
                    del fields["kind"]
                    return Start(**fields)
                elif fields.get("kind") == "end":
                    link.close()
                    error = End.from_json(fields).error
                    if error is not None:
                        raise error
            if token:
                is_seen = self._folders.sees_first(token)
                if is_seen or time.monotonic() - asked_at > SEEN_WITHIN_S:
                    link.send("seen", is_seen=is_seen)
                    token = ""
            self._raise_if_stopped()
        if time.monotonic() > deadline:
            self._unreachable(GONE)
        time.sleep(POLL_S)
        return None

    def _unreachable(self, reason: str) -> NoReturn:
        cluster = self.cluster
        raise RecsysError(
            "R383",
            f"The first {cluster.kind}, {cluster.host}:{cluster.port}, must be reachable from"
            f" {cluster.kind} {cluster.member} ({socket.gethostname()!r}) within"
            f" {cluster.wait_s:.0f} s.",
            "Check whether the name is right, the command was started there, and no firewall"
            " is between.",
            reason,
        )

    def poll(self) -> End | None:
        """Waits a little; returns how the attempt ended, once it has."""
        wait_for([self._link], POLL_S)
        for fields in self._link.messages():
            if fields.get("kind") == "end":
                self._link.close()
                return End.from_json(fields)
        if self._link.is_closed:
            return End(lost(self._leader, GONE), again=True)
        if self._link.silent_s > SILENT_S:
            self._link.close()
            return End(lost(self._leader, silent()), again=True)
        return None

    def report_failed(self, failure: Failure) -> None:
        """Tells the first host that a process of this one failed."""
        self._link.send("failed", **dataclasses.asdict(failure))

    def report_done(self) -> None:
        """Tells the first host that the processes of this one have ended well."""
        self._link.send("done")
