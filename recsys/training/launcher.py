"""`--processes N`: the parent of the processes of a run on this machine.

A process cannot continue when a peer dies. So if one dies, the parent ends all of them and
starts them again; they resume from the last checkpoint.
"""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import tempfile
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path
from types import FrameType
from typing import Any, Self

from recsys.errors import RecsysError
from recsys.system.parent import as_parent, child_command
from recsys.system.process import last_json_line, stage_result
from recsys.system.signals import signals_to
from recsys.training.preflight import address_to_publish
from recsys.training.processes import (
    ADDRESS,
    COUNT,
    INDEX,
    LOCAL_DEVICE,
    SERVICE,
    StopSignals,
    note,
)

POLL_S = 0.1
"""How often processes are looked at [s]."""
LAST_WORDS_S = 2.0
"""How long the others may take to give a reason after one has failed [s]."""
_GONE_S = 60.0
"""How long a process that is killed may take to free its memory [s]."""


def launch(
    module: str, arguments: Sequence[str], n_processes: int, checkpoints: Path | None = None
) -> dict[str, Any]:
    """Runs a stage in several processes of this machine.

    Args:
        module: The stage, such as `recsys.train`.
        arguments: Its command line, for each of them.
        n_processes: How many.
        checkpoints: Folder of the checkpoints of all runs: when a process dies, all start again
            from the last one. None: the stage saves none, and ends.

    Returns:
        The result of the first process; with `restarts`, where there are checkpoints.

    Raises:
        RecsysError: A process refused to go on, or died (R610); with checkpoints, they died
            several times without a new one between.
    """
    attempts = None if checkpoints is None else Attempts(checkpoints)
    with tempfile.TemporaryDirectory(prefix="recsys-processes-") as scratch:
        while True:
            result, code = _attempt(
                module, arguments, n_processes, Path(scratch), saves=attempts is not None
            )
            if attempts is None:
                return stage_result(module, code, "") if result is None else result
            if result is not None:
                return {**result, "restarts": attempts.failed}
            attempts.add(f"exit code {code}")
            note(f"A process ended with {code}: all start again from the last checkpoint.")


class Attempts:
    """Counts the failed attempts of a training, and gives up if they make no progress.

    Args:
        checkpoints: Folder of the checkpoints of all runs.

    Attributes:
        failed: How many failed.
    """

    _WITHOUT_PROGRESS = 3

    def __init__(self, checkpoints: Path) -> None:
        self._checkpoints, self._saved = checkpoints, saved_in(checkpoints)
        self.failed = self._without_progress = 0

    def add(self, reason: str) -> None:
        """Counts an attempt that failed.

        Raises:
            RecsysError: The last ones made no new checkpoint.
        """
        self.failed += 1
        before, self._saved = self._saved, saved_in(self._checkpoints)
        self._without_progress = 0 if self._saved != before else self._without_progress + 1
        if self._without_progress >= self._WITHOUT_PROGRESS:
            raise RecsysError(
                "R377",
                "The processes of a training must survive from one checkpoint to the next.",
                "See the end of the log; exit code -9 usually means out of memory."
                " A lower train.checkpoint.every_steps loses less.",
                {"restarts": self.failed, "last": reason},
            )


def saved_in(checkpoints: Path) -> set[Path]:
    """Returns the complete checkpoints of all runs."""
    return {path for path in checkpoints.glob("*/last/*") if path.name.isdecimal()}


def _attempt(
    module: str,
    arguments: Sequence[str],
    n_processes: int,
    scratch: Path,
    *,
    saves: bool,
) -> tuple[dict[str, Any] | None, int]:
    """Runs the processes once; leaves none of them running.

    Args:
        module: What each of them runs.
        arguments: Its command line.
        n_processes: How many.
        scratch: Folder for what they print.
        saves: Whether it saves before it stops.

    Returns:
        The first one's result, None if one died; and the exit code of that one.

    Raises:
        RecsysError: A process reported an error, or the run was stopped.
    """
    same = {SERVICE: f"127.0.0.1:{free_port()}", COUNT: str(n_processes)}
    if (address := address_to_publish(None)) is not None:
        same[ADDRESS] = address
    environments = [
        {**same, INDEX: str(index), LOCAL_DEVICE: devices_of(index, n_processes)}
        for index in range(n_processes)
    ]
    with LocalProcesses(module, arguments, environments, scratch) as processes:
        while not processes.are_done and processes.failed() is None:
            time.sleep(POLL_S)
        failed = processes.failed()
        if failed is None:
            return processes.last_words(0), 0
        # The others get time to give a reason, where there is one: without their peer
        # they would wait for a minute or more.
        deadline = time.monotonic() + LAST_WORDS_S
        while time.monotonic() < deadline and processes.is_one_running:
            time.sleep(POLL_S)
    # An error of the others may come from its death.
    last_words, code = processes.last_words(failed), processes.codes[failed]
    if last_words is not None and "error" in last_words:
        raise RecsysError.from_json(last_words["error"])
    if processes.stop.is_set:
        raise stopped(code, saves=saves)
    return None, code or 0


def stopped(code: int | None, *, saves: bool) -> RecsysError:
    """Returns the error of a stage of which a process died after a stop."""
    received = f"exit code {code}"
    if saves:
        rule = "The processes of a training save before they stop."
        cure = "Run the same command again; it resumes from the last checkpoint."
        return RecsysError("R378", rule, cure, received)
    rule = "The evaluation was stopped before it finished."
    return RecsysError("R611", rule, "Run the same command again, on all hosts.", received)


class LocalProcesses:
    """The processes of a run on this machine, as a context manager that leaves none running.

    Inside the context, stop signals are passed on to the processes: a training saves and
    stops, and ends at once on a second signal.

    Args:
        module: What each of them runs, such as `recsys.train`.
        arguments: Its command line.
        environments: Variables of each one, on top of those of this process.
        scratch: Folder for what they print.

    Attributes:
        stop: The signals to stop that came.
    """

    def __init__(
        self,
        module: str,
        arguments: Sequence[str],
        environments: Sequence[Mapping[str, str]],
        scratch: Path,
    ) -> None:
        self.stop = StopSignals()
        self._command, self._environments = child_command(module, arguments), environments
        self._outputs = [scratch / f"{index}.out" for index in range(len(environments))]
        self._children: list[subprocess.Popen[bytes]] = []
        self._stack = ExitStack()

    def __enter__(self) -> Self:
        with ExitStack() as stack:
            stack.callback(self._kill)
            stack.enter_context(signals_to(self._forward))
            for own, output in zip(self._environments, self._outputs, strict=True):
                with output.open("wb") as file:
                    child = subprocess.Popen(
                        self._command,
                        env={**os.environ, **own, **as_parent()},
                        stdin=subprocess.DEVNULL,
                        stdout=file,
                        process_group=0,  # Ctrl-C comes to them through `_forward`.
                    )
                self._children.append(child)
            self._stack = stack.pop_all()
        return self

    def __exit__(self, *error: object) -> None:
        self._stack.close()

    @property
    def codes(self) -> list[int | None]:
        """Exit codes; None for what runs."""
        return [child.poll() for child in self._children]

    @property
    def are_done(self) -> bool:
        """Whether all have ended well."""
        return set(self.codes) == {0}

    @property
    def is_one_running(self) -> bool:
        """Whether one at least still runs."""
        return None in self.codes

    def failed(self) -> int | None:
        """Returns which one failed, if any did.

        Of several, one that was killed: the others may have failed because of it.
        """
        codes = self.codes
        failed = [index for index, code in enumerate(codes) if code]
        return min(failed, key=lambda index: (codes[index] or 0) > 0, default=None)

    def last_words(self, index: int) -> dict[str, Any] | None:
        """Returns the result or the error that a process printed last."""
        return last_json_line(self._outputs[index].read_text(errors="replace"))

    def _forward(self, _signum: int, _frame: FrameType | None) -> None:
        signum = signal.SIGKILL if self.stop.add() else signal.SIGTERM
        for child in self._children:
            if child.poll() is None:
                child.send_signal(signum)

    def _kill(self) -> None:
        for child in self._children:
            if child.poll() is None:
                child.kill()
        for child in self._children:
            # One that hangs in the kernel ends after that.
            with suppress(subprocess.TimeoutExpired):
                child.wait(_GONE_S)


def devices_of(index: int, n_processes: int) -> str:
    """Returns the GPUs of this machine that one of its processes takes, as `0` or `0,1`.

    Each gets an equal share; with fewer GPUs than processes, the GPU with its own number.
    """
    visible = os.environ.get("CUDA_VISIBLE_DEVICES")
    if visible is None:
        n_gpus = sum(file.name[6:].isdecimal() for file in Path("/dev").glob("nvidia[0-9]*"))
    else:
        n_gpus = len([name for name in visible.split(",") if name.strip()])
    share = max(1, n_gpus // n_processes)
    return ",".join(str(index * share + place) for place in range(share))


def free_port() -> int:
    """Returns a free port of this machine."""
    with socket.socket() as probe:
        probe.bind(("", 0))
        port: int = probe.getsockname()[1]
        return port
