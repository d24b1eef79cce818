"""The driver of a stage on Ray: `python -m recsys.distributed.ray_group LAUNCHER EVENTS STAGE …`.

It places an actor (`ray_host.py`) on each host, which starts the stage's process, and polls the
actors. If a host is lost or doesn't answer, or its process fails, the group ends. `launchers.py`
starts the driver, and restarts it after a loss.
"""

from __future__ import annotations

import os
import signal
import sys
import textwrap
import time
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import ray
from ray.exceptions import ActorUnavailableError, GetTimeoutError, RayError
from ray.util.placement_group import placement_group, remove_placement_group
from ray.util.scheduling_strategies import PlacementGroupSchedulingStrategy

from recsys.distributed.launchers import RayLauncher, started_again
from recsys.distributed.ray_host import Host
from recsys.errors import RecsysError, UsageError
from recsys.system import events
from recsys.system.process import (
    StopSignals,
    last_json_line,
    signals_to,
    stage_environment,
    stage_main,
    stage_result,
)

_POLL_S = 0.1
_REASON_S = 3.0
"""Time that the other hosts have to report a reason after one has failed [s]."""
_SAVE_S = 120.0
"""Time that they have after a stop, since they save a checkpoint [s]."""
_FEWER_S = 10.0
"""Timeout for a smaller group of hosts, after the one for the full group [s]."""
_END_S = 8.0
_STARTS = 3
"""Attempts to start a local Ray, whose agents may time out on a busy machine."""
_STORE_BYTES = 80 << 20
_UNEVEN = "R321"
_ABORTED = ("R388", "R389")
"""Errors with which a process reports that another one was lost."""


def main() -> dict[str, Any]:
    """Runs the stage of the command line, if any, and returns the result of the first host."""
    os.setpgid(0, 0)  # Ctrl-C reaches the run, which passes it on, but not Ray's processes.
    launcher = RayLauncher.model_validate_json(sys.argv[1])
    try:
        if not sys.argv[2:]:
            _connect(launcher)
            return {}
        progress, module, *words = sys.argv[2:]

        def attempt() -> dict[str, Any]:
            Path(progress).unlink(missing_ok=True)
            _connect(launcher)
            most = launcher.hosts
            while True:
                with _placed(launcher, most) as actors:
                    try:
                        return _Group(launcher, actors, module).run(words, Path(progress))
                    except RecsysError as error:
                        most = len(actors) - 1
                        # The batch can't be divided among the remaining hosts.
                        is_uneven = error.code == _UNEVEN and len(actors) < launcher.hosts
                        if not is_uneven or most < launcher.fewest:
                            raise

        return started_again(launcher.restarts, attempt)
    finally:
        ray.shutdown()


def _connect(launcher: RayLauncher) -> None:
    """Connects to the cluster, or starts a local one (again, if its only node is lost)."""
    is_local = launcher.address == "local"
    if ray.is_initialized():
        if not is_local or any(node["Alive"] for node in ray.nodes()):
            return
        ray.shutdown()
    how: dict[str, Any] = {"log_to_driver": False, "logging_level": "ERROR"}
    if is_local:
        own = {name: launcher.hosts * value for name, value in launcher.resources.items()}
        own.pop("GPU", None)  # Ray detects them.
        how |= {"num_cpus": own.pop("CPU", 1.0), "resources": own}
        how |= {"include_dashboard": False, "object_store_memory": _STORE_BYTES}
    for left in range(_STARTS - 1 if is_local else 0, -1, -1):
        try:
            ray.init(launcher.address, **how)
            return
        except Exception as error:  # noqa: BLE001 Ray raises `Exception` itself
            ray.shutdown()
            if not left:
                raise _unreachable(launcher, str(error)) from None


def _unreachable(launcher: RayLauncher, reason: str) -> UsageError:
    if launcher.address == "local":
        rule = "Ray must start on this machine."
        return UsageError("R268", rule, "Try again when the machine is less busy.", reason)
    return UsageError(
        "R268",
        f"`launcher.address`, {launcher.address!r}, must be a cluster of Ray to which this machine"
        " belongs.",
        "Start the run on one of its nodes, or Ray on this machine: ray start --address=…",
        reason,
    )


@contextmanager
def _placed(launcher: RayLauncher, most: int) -> Iterator[list[Any]]:
    """Yields an actor for each of `most` hosts, or of as many as the cluster has room for."""
    bundle = launcher.resources
    for n in range(most, launcher.fewest - 1, -1):
        room = [node for node in ray.nodes() if node["Alive"] and _fits(bundle, node["Resources"])]
        group = placement_group([bundle] * n, "STRICT_SPREAD" if len(room) >= n else "SPREAD")
        if group.wait(launcher.wait_s if n == launcher.hosts else _FEWER_S):
            break
        remove_placement_group(group)
    else:
        raise RecsysError(
            "R269",
            f"Ray must have {bundle} free for each of {launcher.fewest} hosts within"
            f" {launcher.wait_s:.0f} s.",
            "Start nodes or end what runs there (ray status), or change launcher.hosts,"
            " launcher.min_hosts or launcher.resources.",
            f"{len(room)} nodes of this size",
        )
    if n < launcher.hosts:
        note = f"Goes on with {n} of {launcher.hosts} hosts: no node came for the others."
        print(note, file=sys.stderr, flush=True)  # noqa: T201 the log of the run
    own = {name: value for name, value in bundle.items() if name not in ("CPU", "GPU")}
    how = {"num_cpus": bundle.get("CPU", 0), "num_gpus": bundle.get("GPU", 0), "resources": own}
    try:
        yield [
            ray.remote(Host)
            .options(scheduling_strategy=PlacementGroupSchedulingStrategy(group, i), **how)
            .remote()
            for i in range(n)
        ]
    finally:
        remove_placement_group(group)


def _fits(bundle: dict[str, float], node: dict[str, float]) -> bool:
    return all(node.get(name, 0.0) >= value for name, value in bundle.items())


class _Member:
    """A host of the group.

    Attributes:
        code: Exit code of its process; None while it runs.
        lost: Reason for its loss; empty if it isn't lost.
        ended: Time of its end or loss [s].
    """

    def __init__(self, index: int, actor: Any, address: str) -> None:
        self.index, self.actor, self.address = index, actor, address
        self.code: int | None = None
        self.lost, self.printed, self.ended = "", "", 0.0
        self._offset, self._silent_s = 0, 0.0
        self.poll()

    def __str__(self) -> str:
        return f"host {self.index} ({self.address})"

    def poll(self) -> None:
        """Polls the host."""
        self.answer = self.actor.poll.remote(self._offset)

    def read_answer(self) -> None:
        """Reads the host's answer, which has arrived."""
        try:
            self.code, log, self._offset, self.printed = ray.get(self.answer)
        except ActorUnavailableError:  # It may recover.
            self.poll()
            return
        except RayError as error:
            self._lose(str(error).strip().splitlines()[-1])
            return
        self._silent_s = 0.0
        sys.stderr.write(textwrap.indent(log, f"{self}: "))
        if self.code is None:
            self.poll()
        else:
            self.ended = time.monotonic()

    def wait(self, seconds: float, limit_s: float) -> None:
        """Adds `seconds` without an answer; the host is lost after `limit_s`."""
        self._silent_s += min(seconds, 1.0)  # A longer time means that this process hung.
        if self._silent_s > limit_s:
            self._lose(f"no answer for {limit_s:.0f} s: its node or its link is down")

    def _lose(self, reason: str) -> None:
        self.lost, self.ended = reason, time.monotonic()

    @property
    def is_running(self) -> bool:
        """Whether its process is not known to have ended."""
        return self.code is None and not self.lost

    def error(self) -> RecsysError | None:
        """Returns the error that its process reported, or None."""
        said = (last_json_line(self.printed) or {}).get("error")
        return None if said is None else RecsysError.from_json(said)

    @property
    def is_cause(self) -> bool:
        """Whether it was lost or killed, which no other host can have caused."""
        return bool(self.lost) or ((self.code or 0) < 0 and self.code != -signal.SIGABRT)

    def rank(self) -> tuple[int, float]:
        """Returns a sort key: likelier causes of the failure come first."""
        error = self.error()
        is_own = error is not None and error.code not in _ABORTED
        return (0 if self.is_cause else 1 if is_own else 2), self.ended

    def failure(self) -> RecsysError:
        """Returns the error with which the group ends because of this host."""
        return self.error() or RecsysError(
            "R388",
            f"All hosts of a run must stay alive and connected until its end; {self} was lost.",
            "See its lines in the log; the same command resumes from the last checkpoint.",
            self.lost or f"its process ended with exit code {self.code}, no reason given",
        )


class _Group:
    """The hosts of a stage; none continues without the others.

    Args:
        launcher: The config.
        actors: An actor for each host.
        module: The stage.
    """

    def __init__(self, launcher: RayLauncher, actors: Sequence[Any], module: str) -> None:
        self._launcher, self._actors, self._module = launcher, actors, module
        self._members: list[_Member] = []
        self._stop = StopSignals()

    def run(self, words: Sequence[str], progress: Path) -> dict[str, Any]:
        """Runs the stage to its end.

        Args:
            words: Command line of the stage.
            progress: File for the events of the stage, which the first host writes.
        """
        with signals_to(self._on_signal):
            try:
                self._start(words, progress)
                self._watch(progress)
            finally:
                self._end()
        failed = self._failed()
        if not failed:
            return stage_result(self._module, 0, self._members[0].printed)
        if self._stop.is_set and failed[0].error() is None:
            return stage_result(self._module, 1, "", [signal.SIGTERM])
        raise failed[0].failure()

    def _start(self, words: Sequence[str], progress: Path) -> None:
        actors, wait_s = self._actors, self._launcher.wait_s
        try:
            places = ray.get([actor.address.remote() for actor in actors], timeout=wait_s)
            host, port = places[0]
            words = [*words, "--coordinator", f"{f'[{host}]' if ':' in host else host}:{port}"]
            words += ["--wait", str(wait_s), "--num-processes", str(len(actors))]
            own = stage_environment("jax")
            own |= {k: v for k, v in os.environ.items() if k == "OMP_NUM_THREADS"}
            starts = []
            for index, actor in enumerate(actors):
                seen = {events.ENVIRONMENT_VARIABLE: str(progress) if index == 0 else ""}
                command = [*words, "--process-id", str(index)]
                starts.append(
                    actor.start.remote(self._module, command, {**own, **seen}, str(Path.cwd()))
                )
            ray.get(starts, timeout=wait_s)
        except (RayError, GetTimeoutError) as error:
            rule = f"The actors of all hosts must start within {wait_s:.0f} s."
            cure = "See Ray's logs on its nodes; the installation must be the same on each."
            raise RecsysError("R388", rule, cure, str(error)) from None
        for index, (address, _) in enumerate(places):
            self._members.append(_Member(index, actors[index], address))

    def _watch(self, progress: Path) -> None:
        """Waits until all processes have ended; if one fails, stops the others."""
        relay, is_stopping, now = events.relay(progress), False, time.monotonic()
        while running := [member for member in self._members if member.is_running]:
            answers = {member.answer: member for member in running}
            ready, _ = ray.wait([*answers], num_returns=len(answers), timeout=_POLL_S)
            before, now = now, time.monotonic()
            for answer, member in answers.items():
                if answer in ready:
                    member.read_answer()
                else:
                    member.wait(now - before, self._launcher.silent_s)
            relay()
            if self._stop.is_set and not is_stopping:
                is_stopping = True
                for member in running:
                    member.actor.stop.remote()
            if failed := self._failed():
                grace_s = _SAVE_S if is_stopping else _REASON_S
                if failed[0].is_cause or now - min(m.ended for m in failed) > grace_s:
                    return
        relay()

    def _failed(self) -> list[_Member]:
        """Returns the failed hosts, the likeliest cause first."""
        return sorted((m for m in self._members if m.lost or m.code), key=_Member.rank)

    def _end(self) -> None:
        """Kills the running processes, and waits for their end except on lost hosts."""
        lost = [member.actor for member in self._members if member.lost]
        with suppress(RayError):
            kills = {actor: actor.stop.remote(signal.SIGKILL) for actor in self._actors}
            ends = [kill for actor, kill in kills.items() if actor not in lost]
            if ends:
                ray.wait(ends, num_returns=len(ends), timeout=_END_S)
            for actor in self._actors:
                ray.kill(actor)

    def _on_signal(self, signum: int, _frame: Any) -> None:
        if self._stop.add(signum):
            sys.exit(1)


if __name__ == "__main__":
    stage_main(main)
