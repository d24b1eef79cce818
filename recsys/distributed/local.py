"""The parent of processes that train or evaluate together; it needs neither JAX nor Keras.

`--processes N` starts all of them on this machine. A process cannot continue if a peer dies: the
parent ends all of them and starts them again from the last checkpoint.

`--coordinator` starts one, which JAX aborts if a peer is lost. Its parent then reports the loss.
"""

from __future__ import annotations

import argparse
import dataclasses
import json
import os
import re
import signal
import socket
import tempfile
from collections.abc import Sequence
from contextlib import suppress
from pathlib import Path
from typing import IO, Any

from recsys.distributed.children import Children
from recsys.distributed.place import Place, place_of
from recsys.errors import RecsysError, UsageError
from recsys.system.events import note
from recsys.system.parent import child_command
from recsys.system.process import last_json_line, stage_result

_GRACE_S = 2.0
_WITHOUT_PROGRESS = 3
_ABORT = b"Terminating process because the JAX distributed service"
_SILENT = re.compile(r"stopped sending heartbeats\):\n((?:\d+\n)+)")


def run_in_processes(
    module: str, options: argparse.Namespace, names: Sequence[str], checkpoints: Path | None = None
) -> dict[str, Any] | None:
    """Runs a stage in child processes; returns None if this process must run it itself.

    Args:
        module: The stage.
        options: Its command line, with `place.add_process_options`.
        names: Its other options, which each process gets.
        checkpoints: Folder of the checkpoints of all runs; see `launch`.
    """
    if Place.of_environment() is not None:
        return None
    values = {name: getattr(options, name) for name in names}
    given = {name: value for name, value in values.items() if value is not None}
    words = [f"--{name.replace('_', '-')}={value}" for name, value in given.items()]
    place = place_of(options)
    if place is not None:
        return run_placed(module, words, place)
    return launch(module, words, options.processes, checkpoints) if options.processes > 1 else None


def launch(
    module: str, arguments: Sequence[str], n_processes: int, checkpoints: Path | None = None
) -> dict[str, Any]:
    """Runs a stage in several processes of this machine.

    Args:
        module: The stage, such as `recsys.stages.train`.
        arguments: Command-line arguments of each process.
        n_processes: Number of processes.
        checkpoints: Folder of the checkpoints of all runs: if a process dies, all start again
            from the last one. None: the stage has no checkpoints, and isn't restarted.

    Returns:
        The result of the first process, and `restarts` if there are checkpoints.

    Raises:
        RecsysError: A process failed with an error, or died (R610); with checkpoints, they died
            several times without a new checkpoint.
    """
    failed = without_progress = 0
    saved = saved_in(checkpoints)
    while True:
        code, printed, signals = _attempt(module, arguments, n_processes)
        if checkpoints is None:
            return stage_result(module, code, printed, signals)
        if not _is_silent(code, printed, signals):
            return {**stage_result(module, code, printed, signals), "restarts": failed}
        failed += 1
        before, saved = saved, saved_in(checkpoints)
        without_progress = 0 if saved != before else without_progress + 1
        if without_progress == _WITHOUT_PROGRESS:
            raise RecsysError(
                "R377",
                "The processes of a training must survive from one checkpoint to the next.",
                "See the end of the log; exit code -9 usually means out of memory."
                " A lower train.checkpoint.every_steps loses less.",
                {"restarts": failed, "last": f"exit code {code}"},
            )
        note(f"A process ended with {code}: all start again from the last checkpoint.")


def saved_in(checkpoints: Path | None) -> set[Path]:
    """Returns the complete checkpoints of all runs."""
    if checkpoints is None:
        return set()
    saved = (*checkpoints.glob("*/last/*"), *checkpoints.glob("*/training/*/*/last/*"))  # Of pairs.
    return {path for path in saved if path.name.isdecimal()}


def _is_silent(code: int, printed: str, signals: Sequence[int]) -> bool:
    """Returns whether a process failed without an error message or a signal to stop."""
    return code != 0 and not signals and "error" not in (last_json_line(printed) or {})


def _attempt(module: str, arguments: Sequence[str], n_processes: int) -> tuple[int, str, list[int]]:
    """Runs the processes once; leaves none of them running.

    Returns:
        Exit code and output of the first that failed, or of process 0; received signals to stop.
    """
    coordinator = f"127.0.0.1:{free_port()}"
    places = [
        Place(coordinator, n_processes, index, devices_of(index, n_processes), is_local=True)
        for index in range(n_processes)
    ]
    commands = [child_command(module, arguments)] * n_processes
    environments = [place.environment() for place in places]
    with (
        tempfile.TemporaryDirectory(prefix="recsys-processes-") as scratch,
        Children(commands, environments, Path(scratch)) as children,
    ):
        index = next(iter(children.wait(_GRACE_S)), 0)
        return children.codes[index] or 0, children.printed(index), children.stop.received


def run_placed(module: str, arguments: Sequence[str], place: Place) -> dict[str, Any]:
    """Runs one of several processes, and returns its result.

    Args:
        module: The stage, such as `recsys.stages.train`.
        arguments: Its command-line arguments.
        place: Place of the process among the others.

    Raises:
        RecsysError: The error of the process; or it, or a peer, was lost (R388).
    """
    abort = _Abort()
    with tempfile.TemporaryDirectory(prefix="recsys-process-") as scratch:
        members = Path(scratch) / "members.json"
        own = dataclasses.replace(place, members=str(members)).environment()
        command = child_command(module, arguments)
        with Children([command], [own], Path(scratch), relay=abort.relay) as children:
            children.wait(_GRACE_S)
            code, printed = children.codes[0] or 0, children.printed(0)
        own_name, *names = json.loads(members.read_text()) if members.exists() else [""]
    if _is_silent(code, printed, children.stop.received):
        raise abort.error(code, own_name or "this process", names)
    return stage_result(module, code, printed, children.stop.received)


class _Abort:
    """Holds back the message with which JAX aborts a process from the log on stderr."""

    def __init__(self) -> None:
        self._text = b""

    def relay(self, log: IO[bytes]) -> None:
        """Passes on the log of a process until it ends."""
        with suppress(ValueError):  # The pipe is closed while a grandchild holds it open.
            for line in log:
                if self._text or _ABORT in line:
                    self._text += line
                else:
                    os.write(2, line)

    def error(self, code: int, own: str, members: Sequence[str]) -> RecsysError:
        """Returns the error of a process that ended without an error message.

        Args:
            code: Exit code of the process.
            own: Name of the process.
            members: Names of all processes, as far as they are known.
        """
        text = self._text.decode(errors="replace")
        status = text.partition("absl::Status: ")[2].partition("\n\n")[0].replace("\n", " ")
        if "Unexpected task" in text or "newer incarnation" in text:
            return UsageError(
                "R376",
                "Each process must have an index of its own, below the number of processes.",
                "Give --num-processes and --process-id, counted from 0, the same number of"
                " processes everywhere.",
                status,
            )
        silent = _SILENT.search(text)
        if silent is not None:
            lost, how = [int(index) for index in silent[1].split()], "no heartbeat"
        elif text:  # The service runs in process 0.
            lost, how = [0], status
        else:
            ending = signal.Signals(-code).name if code < 0 else "no reason given"
            return _lost(own, f"exit code {code}, {ending}")
        names = [members[index] if members else f"process {index}" for index in lost]
        return _lost(" and ".join(names), how)


def _lost(who: str, how: str) -> RecsysError:
    return RecsysError(
        "R388",
        f"All processes of a run must stay alive and connected until its end; {who} was lost.",
        "Check its log; with the same command on all hosts a training resumes from its last"
        " checkpoint, and an evaluation starts again.",
        how,
    )


def devices_of(index: int, n_processes: int) -> str:
    """Returns the GPUs of this machine for one of its processes, such as `0` or `0,1`.

    Each process gets an equal share; with fewer GPUs than processes, the GPU of its own index.
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
