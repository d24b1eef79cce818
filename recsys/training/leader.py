"""The parent process of the first host, to which those of the others connect."""

from __future__ import annotations

import dataclasses
import signal
import socket
import time
from collections.abc import Iterator, Mapping
from contextlib import ExitStack, contextmanager
from typing import Any, Self

from recsys.errors import BusyError, RecsysError, UsageError
from recsys.runs.lock import RunLock, run_lock
from recsys.system.host_connections import Connection, Listener, loopback_in, wait_for
from recsys.training.cluster import Cluster
from recsys.training.launcher import LAST_WORDS_S, POLL_S, free_port
from recsys.training.meeting import (
    GONE,
    SILENT_S,
    End,
    Failure,
    Party,
    Start,
    is_hello,
    lost,
    silent,
)
from recsys.training.preflight import (
    SEEN_WITHIN_S,
    Member,
    SharedFolders,
    check_address,
    check_numbers,
    check_same,
    not_shared,
)
from recsys.training.processes import note

_SAVING_S = 120.0
_FAREWELL_S = 3.0
_STOPPED = "R375"
_STILL = "its process stands still: JAX's service heard nothing of it"


class Leader(Party):
    """The parent process of the first host."""

    def __init__(self, cluster: Cluster, facts: Mapping[str, Any], folders: SharedFolders) -> None:
        super().__init__(cluster, facts, folders)
        self._connections: dict[int, Connection] = {}
        self._members: dict[int, Member] = {}
        self._n_processes: dict[int, int] = {}
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        cluster = self.cluster
        with ExitStack() as stack, self._stoppable():
            self._lock: RunLock = stack.enter_context(self._held())
            try:
                self._listener = Listener(cluster.port, loopback_in(cluster.host))
            except OSError as error:
                raise UsageError(
                    "R383",
                    f"The first host must be able to listen on port {cluster.port}.",
                    "End the program that listens there, or name another port on all hosts.",
                    error.strerror or str(error),
                ) from None
            stack.callback(self._listener.close)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        for connection in self._connections.values():
            connection.close()
        self._stack.close()

    @contextmanager
    def _held(self) -> Iterator[RunLock]:
        """Holds the lock of this training; waits for an earlier holder that is gone."""
        deadline, stack = time.monotonic() + self.cluster.wait_s, ExitStack()
        while True:
            try:
                lock = stack.enter_context(run_lock(self._folders.folder))
                break
            except BusyError as error:
                if time.monotonic() > deadline or self._stop.is_set:
                    raise BusyError(
                        "R393",
                        "Only one group of hosts can do this at a time, and another one is active.",
                        "Wait until it ends, or stop it; or name another folder with"
                        " --checkpoints or --out.",
                        error.rule,
                    ) from None
                time.sleep(1.0)
        with stack:
            yield lock

    def check(self) -> None:
        """Makes sure that no other group of hosts has taken over.

        Raises:
            RecsysError: One has (R604).
        """
        self._lock.check()

    def meet(self) -> Start:
        """Waits for all others, checks that they fit, and tells them to start.

        Raises:
            RecsysError: They don't fit, or didn't come in time.
        """
        self._connections, self._members, self._n_processes = {}, {}, {}
        self._failures: dict[int, Failure] = {}
        self._done: set[int] = set()
        self._failed_at = 0.0
        ours = self._member(0, socket.gethostname(), self.cluster.host, self._facts)
        self._members[0], self._n_processes[0] = ours, self.cluster.n_processes
        try:
            with self._stoppable():
                self._gather()
                own_address = self._check_addresses()
                self._check_folders()
        except RecsysError as error:
            self._farewell(End(error))
            raise
        return self._start(own_address)

    def _gather(self) -> None:
        began, is_noted = time.monotonic(), False
        while len(self._members) < self.cluster.n_members:
            wait_for([self._listener, *self._connections.values()], POLL_S)
            for index, connection in [*self._connections.items()]:
                connection.messages()
                if connection.is_closed or connection.silent_s > SILENT_S:  # It may come again.
                    connection.close()
                    del self._connections[index], self._members[index], self._n_processes[index]
            for connection, fields in self._listener.greeted(is_hello):
                self._admit(connection, fields)
            missing = [i for i in range(self.cluster.n_members) if i not in self._members]
            waited = time.monotonic() - began
            shown = ", ".join(map(str, missing[:8])) + ("…" if len(missing) > 8 else "")
            self._raise_if_stopped()
            if waited > self.cluster.wait_s:
                raise RecsysError(
                    "R384",
                    f"Each {self.cluster.kind} must come within {self.cluster.wait_s:.0f} s to"
                    f" {self.cluster.host}:{self.cluster.port}; {self.cluster.kind}"
                    f" {shown} didn't.",
                    "Check its log; to continue with fewer, leave it out of the list or the"
                    " number on all hosts.",
                    f"{self.cluster.n_members - len(missing)} of {self.cluster.n_members}",
                )
            if waited > 5 and missing and not is_noted:
                note(f"Waits for {self.cluster.kind} {shown}.")
                is_noted = True

    def _admit(self, connection: Connection, fields: Mapping[str, Any]) -> None:
        facts = dict(fields["facts"])
        n_processes = facts.pop("processes", 1)
        address = connection.address if connection.is_local else fields["address"]
        member = self._member(fields["member"], fields["name"], address, facts)
        try:
            others = [m for i, m in self._members.items() if i]
            check_numbers(self.cluster.n_members, others, member)
            check_same(self._members[0], member)
        except UsageError:
            self._connections[-1] = connection  # It is told too.
            raise
        self._members[member.index], self._n_processes[member.index] = member, int(n_processes)
        self._connections[member.index] = connection

    def _check_addresses(self) -> str | None:
        """Returns this host's address for the others; None if all are on this machine."""
        remote = [index for index, link in self._connections.items() if not link.is_local]
        if not remote:
            return None
        own_address = self._connections[remote[0]].own_address
        for index, link in self._connections.items():
            if link.is_local:
                self._members[index] = dataclasses.replace(
                    self._members[index], address=own_address
                )
        for index in remote:
            check_address(self._members[index])
        return own_address

    def _check_folders(self) -> None:
        self._epoch, token = self._folders.begin([str(m) for m in self._members.values()])
        try:
            self._show(token)
        finally:
            self._folders.clear(token)

    def _show(self, token: str) -> None:
        """Asks the others whether they see this host's files."""
        for connection in self._connections.values():
            connection.send("look", token=token)
        waiting, deadline = {*self._connections}, time.monotonic() + SEEN_WITHIN_S + 5.0
        seen: dict[int, bool] = {}
        while waiting:
            wait_for([*self._connections.values()], POLL_S)
            for index in [*waiting]:
                connection = self._connections[index]
                for fields in connection.messages():
                    if fields.get("kind") == "seen":
                        seen[index] = bool(fields.get("is_seen"))
                if index in seen and (not seen[index] or self._folders.sees_answer(index, token)):
                    waiting.remove(index)
                elif connection.is_closed:
                    raise lost(str(self._members[index]), GONE)
            self._raise_if_stopped()
            if time.monotonic() > deadline:
                break
        for index in sorted(self._connections):
            if not seen.get(index) or index in waiting:
                raise not_shared(self._members[index], self._folders)

    def _start(self, own_address: str | None) -> Start:
        host = f"[{self.cluster.host}]" if ":" in self.cluster.host else self.cluster.host
        service, total = f"{host}:{free_port()}", sum(self._n_processes.values())
        self._members[0] = dataclasses.replace(
            self._members[0], address=own_address or self.cluster.host
        )
        first = self._n_processes[0]
        for index in sorted(self._connections):
            start = Start(
                service, first, total, self._members[index].address if own_address else None
            )
            first += self._n_processes[index]
            leader = str(self._members[0])
            self._connections[index].send("start", leader=leader, **dataclasses.asdict(start))
        note(f"All {len(self._members)} have met: epoch {self._epoch} of this run.")
        return Start(service, 0, total, own_address)

    def poll(self) -> End | None:
        """Waits a little; returns how the attempt ended, once it has, after telling all."""
        wait_for([*self._connections.values()], POLL_S)
        for index, connection in self._connections.items():
            for fields in connection.messages():
                if fields.get("kind") == "failed":
                    self._failures[index] = Failure(
                        int(fields["process"]), int(fields["code"]), fields.get("error")
                    )
                    self._failed_at = self._failed_at or time.monotonic()
                elif fields.get("kind") == "done":
                    self._done.add(index)
        end = self._decided()
        if end is not None:
            self._farewell(end)
        return end

    def report_failed(self, failure: Failure) -> None:
        """Notes that a process of this host failed."""
        self._failures[0] = failure
        self._failed_at = self._failed_at or time.monotonic()

    def report_done(self) -> None:
        """Notes that the processes of this host have ended well."""
        self._done.add(0)

    def _decided(self) -> End | None:
        for index, connection in self._connections.items():
            if index in self._done or index in self._failures:
                continue
            if connection.is_closed:
                return End(lost(str(self._members[index]), GONE), again=True)
            if connection.silent_s > SILENT_S:
                return End(lost(str(self._members[index]), silent()), again=True)
        if len(self._done) == self.cluster.n_members:
            return End()
        if not self._failures:
            return None
        causes = [index for index, failure in self._failures.items() if failure.is_cause]
        reasons = [index for index, failure in self._failures.items() if failure.error]
        is_stopped = any((self._failures[i].error or {}).get("code") == _STOPPED for i in reasons)
        limit_s = _SAVING_S if is_stopped and not causes else LAST_WORDS_S
        are_all_over = len(self._failures) + len(self._done) == self.cluster.n_members
        if not causes and not are_all_over and time.monotonic() - self._failed_at < limit_s:
            return None
        if not causes and all(failure.is_abort for failure in self._failures.values()):
            for index, member in self._members.items():
                if index not in self._failures and index not in self._done:
                    return End(lost(str(member), _STILL), again=True)
        index = next(iter([*causes, *reasons, *self._failures]))
        failure = self._failures[index]
        if index not in causes and failure.error is not None:
            return End(RecsysError.from_json(failure.error))
        who = str(self._members[index])
        if self.cluster.kind == "host":
            who = f"process {failure.process} on {who}"
        return End(lost(who, _ending(failure.code)), again=True)

    def _farewell(self, end: End) -> None:
        """Tells all others that an attempt is over, and waits for them to have read it."""
        for connection in self._connections.values():
            connection.send("end", **end.to_json())
        deadline = time.monotonic() + _FAREWELL_S
        while time.monotonic() < deadline:
            waiting = [link for link in self._connections.values() if not link.is_closed]
            if not waiting:
                break
            wait_for(waiting, POLL_S)
            for link in waiting:
                link.messages()
        for link in self._connections.values():
            link.close()


def _ending(code: int) -> str:
    if code < 0:
        return f"exit code {code}, {signal.Signals(-code).name}"
    return f"exit code {code}, no reason given"
